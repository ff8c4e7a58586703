"""One request's answer: its place in the queue, the steps of the engine handed over to the event loop, how it ended."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bankml.completions import usage
from bankml.engine import Engine
from bankml.generation import Generation, Step
from bankml.prompts import Prompt
from bankml.serve import meaning
from bankml.serve.errors import ApiError, api_error

WAKE_S = 0.02  # steps are handed over at most so often: each time the event loop wakes, it takes a core from the engine


@dataclass(frozen=True)
class Request:
    """What is asked of the engine; `Engine.generate` tells what the fields mean.

    sampling: fields of `Params`, over what the model file recommends; `logit_bias` may hold texts, and be an object;
    `ignore_eos` goes with them. prompt may be an array of texts and tokens. model: a name, None for the resident one.
    n_ctx: an answer ends as in a context of that size, no larger than the engine's; None for the engine's.
    """

    prompt: Prompt
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    reuse: str = "prefix"
    template: Mapping[str, Any] | None = None
    model: str | None = None
    n_ctx: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a request ended. kind: "completed", "cancelled" (its client left), "failed" or "refused" (queue full).

    Seconds: queue_s until its turn, first_token_s from its coming to its first token; None for what did not happen.
    """

    kind: str
    model: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float | None = None
    first_token_s: float | None = None
    prompt_s: float = 0.0
    decode_s: float = 0.0


class Answer:
    """An answer in the queue or under way: `steps` as they come or the whole `text`, and a block that cancels it when
    left.

    Both raise ApiError for a request that cannot be answered. generation: there from the first step on; counts and
    times are its. asked_at, started_at: by time.monotonic(), None before.
    """

    def __init__(self, service, request: Request, path: Path | None):
        self.service, self.request, self.path = service, request, path
        self.generation: Generation | None = None
        self.asked_at, self.started_at = time.monotonic(), None
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        self._made, self._ended, self._error = deque(), False, None  # by the engine's thread, or who cuts it
        self._wake_s, self._wake_at = WAKE_S, 0.0
        self._early: tuple[Engine, Future] | None = None
        self._cancelled, self._ending, self._over = False, None, False

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(self, *exception):
        self.cancel()

    async def steps(self) -> list[Step]:
        """The steps made since the last call, one at least; an empty list at the end.

        The first step comes as soon as it is made, later ones together with those made within WAKE_S.
        """
        while not self._ended and not self._over:
            await self._woken.wait()
            self._woken.clear()
            if self._made:
                break
        made = [self._made.popleft() for _ in range(len(self._made))]
        if not made:
            self._over = True
            if self._error is not None:
                raise self._error
        return made

    async def text(self) -> str:
        """All of it, at the end."""
        self._wake_s, parts = math.inf, []
        while steps := await self.steps():
            parts += [step.text for step in steps]
        return "".join(parts)

    async def __aiter__(self) -> AsyncIterator[Step]:
        while steps := await self.steps():
            for step in steps:
                yield step

    def cancel(self):
        """End it; nothing happens where it has ended already."""
        if not self._over:
            self._over = True
            self.cut(None)

    def usage(self) -> dict[str, Any]:
        """Counts, as OpenAI and llama-server name them."""
        return usage(self.generation)

    def cut(self, error: ApiError | None):
        """End it from outside; who iterates sees the error."""
        self._ending, self._cancelled = error, True
        if self.service.leave(self):
            self._end(error, "cancelled")
        elif self.generation is not None:
            self.generation.cancel()

    def prepare_early(self):
        """Make the prompt while others are answered, if the model is there."""
        engine = self.service.engine
        if engine is not None and self.path in (None, self.service.names.resident):
            self._early = engine, self.service.prompts.submit(self._prepare, engine)
            self._early[1].add_done_callback(self._prepared)

    def _prepare(self, engine) -> Generation:
        asked = self.request
        generation = engine.generate(
            meaning.prompt(asked.prompt, engine.tokenizer),
            meaning.params(asked.sampling, engine),
            max_tokens=asked.max_tokens,
            stop=asked.stop,
            reuse=asked.reuse,
            template=asked.template,
        )
        if asked.n_ctx is not None:
            meaning.bound(generation, asked.n_ctx)
        return generation

    def _prepared(self, future):
        """On the prompts' thread: one that cannot be answered leaves the queue at once."""
        if not future.cancelled() and future.exception() and self.service.leave(self):
            self._end(api_error(future.exception()), "failed")

    def run(self):
        """On the engine's thread."""
        self.started_at = time.monotonic()
        error, kind = None, "failed"
        try:
            engine = self.service.hold(self.path)
            early = self._early is not None and self._early[0] is engine
            self.generation = generation = self._early[1].result() if early else self._prepare(engine)
            if self._cancelled:
                generation.cancel()
            with generation:
                for step in generation:
                    self._hand_over(step)
            cut = generation.finish_reason == "cancelled"
            error, kind = (self._ending, "cancelled") if cut else (None, "completed")
        except Exception as failure:
            error = api_error(failure)
        finally:
            self._end(error, kind)

    def _hand_over(self, step):
        """On the engine's thread: whoever waits is woken now, or with one of the next steps, or at the end."""
        self._made.append(step)
        now = time.monotonic()
        if now >= self._wake_at:
            self._wake_at = now + self._wake_s
            self._call(self._woken.set)

    def _end(self, error, kind):
        """The listeners first: who has the reply finds it counted."""
        try:
            self._call(self.service.tell, self._outcome(kind))
        finally:
            self._error, self._ended = error, True
            self._call(self._woken.set)

    def _outcome(self, kind) -> Outcome:
        done, asked_at = self.generation, self.asked_at
        outcome = Outcome(kind, queue_s=self.started_at - asked_at if self.started_at else None)
        if done is not None:
            first = done.first_token_at
            outcome = replace(
                outcome,
                model=done.engine.name,
                finish_reason=done.finish_reason,
                prompt_tokens=len(done.prompt),
                cached_tokens=done.cached or 0,
                completion_tokens=done.completion_tokens,
                first_token_s=first - asked_at if first else None,
                prompt_s=done.prompt_s,
                decode_s=done.decode_s,
            )
        return outcome

    def _call(self, function, *arguments):
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, *arguments)
