"""One answer in the making: the prompt by micro-batches, then a token at a time until something ends it."""

import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from bankml.sampler_chain import TokenProbs
from bankml.text_stream import TextStream


class Cancelled(Exception):
    """Ends a prompt's micro-batch between two layers; whoever iterates sees `finish_reason`, not this."""


@dataclass(frozen=True)
class Step:
    """`token` is what was generated (None for text that was held back to the end), `text` what became ready to show.

    probs: the token's log-probability and the likeliest tokens', where `Params.n_probs` asks for them.
    """

    token: int | None
    text: str
    probs: TokenProbs | None = None


class Generation(Iterator[Step]):
    """An answer: iterate to run it. What is there so far can be read at any time, from any thread.

    prompt, tokens: the prompt's, and the answer's without its end token. cached: prompt tokens that were not computed
    again, None before it is known. probs: what `Params.n_probs` asks for, of every token with the end token, as
    llama-server lists them. finish_reason: "stop" (an end token or a stop string), "length", "cancelled", or None
    while it runs and where an exception ended it. Times are by `time.monotonic`.
    """

    def __init__(self, engine, prompt: list[int], sampler, *, max_tokens=None, stop=(), reuse="prefix"):
        # Its frame must not hold this object: one who drops the generation gives the slot back at once.
        self._steps = Generation._run(weakref.proxy(self))
        self.engine, self.prompt, self.sampler = engine, prompt, sampler
        self.max_tokens = max_tokens if max_tokens is None or max_tokens >= 0 else None
        self.stop, self.reuse = (stop,) if isinstance(stop, str) else tuple(stop or ()), reuse
        self.tokens: list[int] = []
        self.probs: list[TokenProbs] = []
        self.cached: int | None = None
        self.completion_tokens = 0  # as llama-server counts them: with the end token
        self.finish_reason: str | None = None
        self.asked_at = time.monotonic()
        self.started_at = self.first_token_at = self.ended_at = None
        self._cancelled = False

    def __del__(self):
        self._steps.close()

    def __next__(self) -> Step:
        return next(self._steps)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def cancel(self):
        """End it within a token, or a layer of a micro-batch, from any thread; the one who iterates sees it end."""
        self._cancelled = True

    def close(self):
        """Give the slot back before the answer is complete: for the thread that iterates, when it wants no more."""
        self._steps.close()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def check(self):
        """Raises Cancelled if `cancel` was called."""
        if self._cancelled:
            raise Cancelled

    @property
    def prompt_s(self) -> float:
        """Seconds the prompt took, its last row's logits included."""
        if self.started_at is None:
            return 0.0
        return (self.first_token_at or self.ended_at or time.monotonic()) - self.started_at

    @property
    def decode_s(self) -> float:
        """Seconds since the first token."""
        if self.first_token_at is None:
            return 0.0
        return (self.ended_at or time.monotonic()) - self.first_token_at

    @property
    def text(self) -> str:
        """All of the answer so far, told from the tokens alone."""
        stream = TextStream(self.stop)
        stream.push(self.engine.tokenizer.decode(self.tokens))
        return stream.text

    def _run(self) -> Iterator[Step]:
        if self.max_tokens == 0:
            self.finish_reason = "length"
            return
        stream, piece = TextStream(self.stop), self.engine.tokenizer.piece
        try:
            with closing(self.engine.answer(self)) as tokens:  # the slot is given back where the answer ends
                for token in tokens:
                    self.tokens.append(token)
                    text = stream.push(piece(token))
                    if stream.stopped:
                        self.finish_reason = "stop"
                    yield Step(token, text, self.probs[-1] if self.probs else None)
                    if stream.stopped:
                        return
            if rest := stream.finish():
                yield Step(None, rest)
        finally:
            self.ended_at = time.monotonic()
