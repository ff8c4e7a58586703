"""What a caller asks, as tokens: messages through the model's chat template, text, or tokens as they are."""

from collections.abc import Mapping, Sequence

from bankml.chat import Template
from bankml.errors import PromptTooLong, UsageError
from bankml.guard import guard
from bankml.tokenizer import Tokenizer

Message = Mapping[str, object]
Prompt = str | bytes | Sequence[int] | Sequence[Message]


class Prompts:
    """The tokenizer, the template and the context of one model. n_ctx: the most cells, prompt and answer together."""

    def __init__(self, header, n_ctx: int):
        self.tokenizer, self.header, self.n_ctx = Tokenizer.from_gguf(header), header, n_ctx
        self._template = None

    @classmethod
    def open(cls, path, n_ctx: int) -> "Prompts":
        """Guard the model at `path`. As in the server, the context is no longer than the model was trained on."""
        verdict = guard(path, template=False).check()
        if n_ctx < 1:
            raise UsageError(f"a context of {n_ctx} tokens; it takes 1 or more")
        return cls(verdict.header, min(n_ctx, verdict.plan.shape.n_ctx_train))

    @property
    def template(self) -> Template:
        """The file's chat template; a broken or hostile one is refused when it is used."""
        if self._template is None:
            self._template = Template.of(self.header)
        return self._template

    def render(self, messages, tools=None, **variables) -> bytes:
        """The prompt for a list of messages, as text. Bytes that were no UTF-8 come out as they went in."""
        template = Template.of(self.header, with_tools=True) if tools else self.template
        text = template.render(list(messages), tools=tools, kwargs=variables)
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogatepass")

    def tokens(self, prompt: Prompt, template: Mapping | None = None) -> list[int]:
        """The tokens of a prompt that leaves room for an answer. Raises UsageError where it does not, or is empty.

        template: `tools`, and variables of the chat template such as `enable_thinking`; for messages only.
        """
        tokens = self._tokens(prompt, template or {})
        if not tokens:
            raise UsageError("the prompt is empty")
        if len(tokens) >= self.n_ctx:
            raise PromptTooLong(
                f"the prompt has {len(tokens)} tokens, the context only {self.n_ctx}, and the answer needs one; "
                "a larger context (--ctx, n_ctx) may help",
                len(tokens),
                self.n_ctx,
            )
        return tokens

    def _tokens(self, prompt, template) -> list[int]:
        if isinstance(prompt, str | bytes):
            return self.tokenizer.encode(prompt, add_special=True)
        prompt = list(prompt)
        if all(isinstance(item, Mapping) for item in prompt):
            return self.tokenizer.encode(self.render(prompt, **template), add_special=True) if prompt else []
        ids = [int(item) for item in prompt if hasattr(item, "__index__")]
        if len(ids) < len(prompt):
            raise UsageError("a prompt is a text, a list of tokens, or a list of messages with 'role' and 'content'")
        for token in ids:
            if not 0 <= token < self.tokenizer.n_vocab:
                raise UsageError(f"token {token} is not in the vocabulary of {self.tokenizer.n_vocab}")
        return ids
