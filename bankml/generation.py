"""One answer: from a prompt's tokens to steps of whole-character text, until an end token, a stop string or a limit."""

import codecs
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """`token` is what was generated (None for text that was held back to the end), `text` what became ready to show."""

    token: int | None
    text: str


class TextStream:
    """Bytes in as they come, text out in whole characters; what may become a stop string is held back.

    `text` is all that belongs to the answer, `sent` how many characters of it were handed out. A broken byte becomes
    U+FFFD; a character that is cut off at the very end is dropped.
    """

    def __init__(self, stop: Sequence[str] = ()):
        self._stop = [word for word in stop if word]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text, self.sent, self.stopped = "", 0, False

    def push(self, piece: bytes) -> str:
        """The text that these bytes make ready. After a stop string (`stopped`) nothing follows."""
        if self.stopped:
            return ""
        self.text += self._decoder.decode(piece)
        found = [at for at in (self.text.find(word, self.sent) for word in self._stop) if at >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True
            return self._send(len(self.text))
        return self._send(len(self.text) - self._held())

    def finish(self) -> str:
        """The text held back, now that no more will come."""
        return self._send(len(self.text))

    def _send(self, end) -> str:
        ready, self.sent = self.text[self.sent : end], end
        return ready

    def _held(self) -> int:
        """How many characters at the end could be the beginning of a stop string."""
        longest = min(max(map(len, self._stop), default=0) - 1, len(self.text) - self.sent)
        return next(
            (n for n in range(longest, 0, -1) if any(word.startswith(self.text[-n:]) for word in self._stop)), 0
        )


class Generation:
    """An answer in the making: iterate to run it. What is there so far can be read at any time, also after Ctrl-C.

    weights, tokenizer: see `forward.Weights` and `Tokenizer`. caches: with room for `n_ctx` tokens; the prompt goes
    after what they hold. `max_tokens` None means until the context is full. `finish_reason` is "stop" (an end token or
    a stop string), "length", or None while it runs. Times are in seconds, `first_token_at` by `time.monotonic`.
    """

    def __init__(self, weights, tokenizer, caches, prompt, sampler, *, n_ctx, max_tokens=None, stop=(), n_ubatch=512):
        self.weights, self.tokenizer, self.caches, self.sampler = weights, tokenizer, caches, sampler
        self.prompt, self.n_ctx, self.max_tokens, self.stop, self.n_ubatch = prompt, n_ctx, max_tokens, stop, n_ubatch
        self.tokens: list[int] = []  # without the end token
        self.finish_reason: str | None = None
        self.first_token_at: float | None = None
        self._started = self._ended = None

    @property
    def prompt_s(self) -> float:
        """Seconds the prompt took, its last row's logits included."""
        if self._started is None:
            return 0.0
        return (self.first_token_at or self._ended or time.monotonic()) - self._started

    @property
    def decode_s(self) -> float:
        """Seconds since the first token."""
        if self.first_token_at is None:
            return 0.0
        return (self._ended or time.monotonic()) - self.first_token_at

    @property
    def text(self) -> str:
        """All of the answer so far, told from the tokens alone."""
        stream = TextStream(self.stop)
        stream.push(self.tokenizer.decode(self.tokens))
        return stream.text

    def __iter__(self) -> Iterator[Step]:
        stream = TextStream(self.stop)
        try:
            for token in self._tokens():
                self.tokens.append(token)
                text = stream.push(self.tokenizer.decode([token]))
                if stream.stopped:
                    self.finish_reason = "stop"
                yield Step(token, text)
                if stream.stopped:
                    return
            if rest := stream.finish():
                yield Step(None, rest)
        finally:
            self._ended = time.monotonic()

    def _tokens(self) -> Iterator[int]:
        """Tokens until one ends the answer or there is no room for another."""
        self._started = time.monotonic()
        if self.max_tokens == 0:
            self.finish_reason = "length"
            return
        result_norm = self.weights.prefill(self.caches, self.prompt, n_ubatch=self.n_ubatch)
        while True:
            token = self.sampler.sample(self.weights.logits(result_norm))
            if self.first_token_at is None:
                self.first_token_at = time.monotonic()
            if token in self.tokenizer.eog:
                self.finish_reason = "stop"
                return
            self.sampler.accept(token)
            yield token
            if len(self.tokens) == self.max_tokens or len(self.caches[0]) >= self.n_ctx:
                self.finish_reason = "length"
                return
            result_norm = self.weights.decode(self.caches, token)
