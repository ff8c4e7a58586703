"""`bankml.load`: a model to call from Python, with the habits of llama-cpp-python. docs/api.md shows its use."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from bankml import models
from bankml.completions import Chunk, Completion, chunks, completion
from bankml.engine import N_CTX, Engine
from bankml.forward import Outputs
from bankml.params import Params
from bankml.prompts import Message, Prompt

Stop = str | Sequence[str] | None


def load(path_or_name=None, n_ctx: int = N_CTX, gpu=None, **options) -> "Model":
    """Open a model file, a model of the model folders by its name, or the default one (fetched on first use).

    options: those of `Engine.open`, such as `threads`. Raises UsageError, Refused or NeedMore with the reason.
    """
    path = models.default_model() if path_or_name is None else models.resolve(path_or_name)
    return Model.open(path, n_ctx, gpu, **options)


class Model(Engine):
    """An `Engine` that answers with what users of llama-cpp-python expect.

    Sampling is given as keywords, the fields of `Params`: `temperature=0.2, top_k=20, seed=7, repeat_penalty=1.1`. What
    is not given is the model file's recommendation, else llama-server's default.
    """

    @overload
    def __call__(
        self, prompt: Prompt, *, max_tokens: int | None = ..., stop: Stop = ..., stream: Literal[False] = ...,
        echo: bool = ..., reuse: str = ..., **sampling: Any,
    ) -> Completion: ...  # fmt: skip

    @overload
    def __call__(
        self, prompt: Prompt, *, max_tokens: int | None = ..., stop: Stop = ..., stream: Literal[True],
        echo: bool = ..., reuse: str = ..., **sampling: Any,
    ) -> Iterator[Chunk]: ...  # fmt: skip

    def __call__(self, prompt, *, max_tokens=None, stop=(), stream=False, echo=False, reuse="prefix", **sampling):
        """Continue a text, or tokens. `max_tokens` None goes on to an end token or the end of the context.

        stream: an iterator of chunks in place of the whole answer. echo: the prompt's text in front of it.
        """
        generation = self.generate(
            prompt, self.sampling(**sampling), max_tokens=max_tokens, stop=stop or (), reuse=reuse
        )
        before = self.detokenize(generation.prompt).decode("utf-8", "replace") if echo else ""
        return (chunks if stream else completion)(generation, self.name, False, before)

    @overload
    def chat(
        self, messages: Sequence[Message], *, max_tokens: int | None = ..., stop: Stop = ...,
        stream: Literal[False] = ..., reuse: str = ..., tools: Sequence[Any] | None = ...,
        template: Mapping[str, Any] | None = ..., **sampling: Any,
    ) -> Completion: ...  # fmt: skip

    @overload
    def chat(
        self, messages: Sequence[Message], *, max_tokens: int | None = ..., stop: Stop = ...,
        stream: Literal[True], reuse: str = ..., tools: Sequence[Any] | None = ...,
        template: Mapping[str, Any] | None = ..., **sampling: Any,
    ) -> Iterator[Chunk]: ...  # fmt: skip

    def chat(
        self, messages, *, max_tokens=None, stop=(), stream=False, reuse="prefix", tools=None, template=None, **sampling
    ):
        """Answer a list of messages with "role" and "content". template: variables of the chat template, such as
        `{"enable_thinking": False}`. The rest is as for a text."""
        template = dict(template or {}) | ({"tools": tools} if tools else {})
        params = self.sampling(**sampling)
        generation = self.generate(
            list(messages), params, max_tokens=max_tokens, stop=stop or (), reuse=reuse, template=template
        )
        return (chunks if stream else completion)(generation, self.name, True)

    create_completion, create_chat_completion = __call__, chat

    def sampling(self, **given) -> Params:
        """The `Params` of these keywords, over what the model file recommends."""
        if isinstance(given.get("logit_bias"), Mapping):
            given["logit_bias"] = tuple((int(token), float(bias)) for token, bias in given["logit_bias"].items())
        for name in ("samplers", "dry_sequence_breakers", "suppress_tokens"):
            if name in given:
                given[name] = tuple(given[name])
        return Params.from_gguf(self.header.kv, **{name: value for name, value in given.items() if value is not None})

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The tokens of a text. add_bos: with the start token, for models that have one in front of every text.
        special: control tokens in the text, such as <|im_end|>, count as such."""
        return self.tokenizer.encode(text, parse_special=special, add_special=add_bos)

    def detokenize(self, tokens: Iterable[int], special: bool = False) -> bytes:
        """The bytes of tokens; those of control tokens only with `special`."""
        return self.tokenizer.decode(tokens, special)

    def logits(self, prompt: Prompt, all: bool = False, template: Mapping[str, Any] | None = None) -> np.ndarray:
        """What follows a text, tokens or messages: float32 (n_vocab,), with the bits of an uncached run.

        all: of every position of the prompt, float32 (n, n_vocab), as the reference computes all rows at once: for F16
        their bits may differ from those of the last row alone.
        """
        tokens = self.prompts.tokens(prompt, template)
        if not all:
            return self.next_logits(tokens)
        with self._turn():
            caches = self.weights.caches(self.slot.caches[0].kind, n_ctx=len(tokens))
            rows = self.weights.prefill_with(caches, tokens, Outputs.ALL, n_ubatch=self.n_ubatch)
            return self.weights.logits_rows(rows, self.n_ubatch)
