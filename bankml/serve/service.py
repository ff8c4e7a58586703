"""The engine behind a queue: what every endpoint asks for an answer.

    async with service.answer(Request(prompt="Once", max_tokens=8)) as answer:   # in the queue from here on
        while steps := await answer.steps():                                    # generation.Step: text, token, probs
            ...
        answer.generation.finish_reason, answer.usage()

Leaving the block early, as a cancelled task does, gives the engine back within a token or a layer of a micro-batch. The
task that serves a request is cancelled when its client goes away (`limits.py`), so an endpoint need not look.

One thread, `engine`, does all that the engine does, one job after the other in the order they came; another one makes
prompts of messages meanwhile, so that a bad request is told so without waiting for its turn.
"""

import asyncio
import gc
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bankml.completions import usage
from bankml.engine import Engine
from bankml.generation import Generation, Step
from bankml.prompts import Prompt
from bankml.serve import meaning
from bankml.serve.errors import ApiError, api_error, stopping
from bankml.serve.names import Names
from bankml.snapshot import IDLE, LOADING, Snapshot

MOST_WAITING = 64
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


class Service:
    """One engine, one slot, a bounded queue. Its methods are for the event loop's thread.

    open_engine: path -> Engine. names: which models may be asked for. listeners: each is called with every `Outcome`.
    engine: the resident one, None while there is none. started_at: by time.time(). slot_folder: where slots may be
    stored.
    """

    def __init__(self, open_engine: Callable[[Path], Engine], names: Names, engine=None, most_waiting=MOST_WAITING):
        self.open_engine, self.names, self.engine, self.most_waiting = open_engine, names, engine, most_waiting
        self.loaded_at = time.time() if engine else None
        self.started_at, self.stopping = time.time(), False
        self.slot_folder: Path | None = None
        self.listeners: list[Callable[[Outcome], None]] = []
        self._jobs, self._current, self._changed, self._ended = deque(), None, threading.Condition(), False
        self._prompts = ThreadPoolExecutor(1, "prompts")
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    # -- for endpoints -------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> "Answer":
        """Queue a request. Raises ApiError: 404 for a model that is not at hand, 503 where the queue is full."""
        answer = Answer(self, request, self.names.find(request.model) if request.model else None)
        self._enter(answer)
        answer.prepare_early()
        return answer

    async def call(self, function: Callable[[Engine], Any], model: str | None = None) -> Any:
        """The value of function(engine), in its turn; the engine's thread runs it. Raises as `answer` and it do."""
        job = _Call(self, function, self.names.find(model) if model else None)
        self._enter(job)
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self._leave(job)
            raise

    async def load(self, model: str | None = None) -> Engine:
        """Make a model the resident one, None the one there is, or was."""
        return await self.call(lambda engine: engine, model)

    async def unload(self, path: Path | None = None):
        """Let the resident model go, in its turn, if it is this one; the next request loads one again."""
        job = _Call(self, None, path)
        self._enter(job)
        await asyncio.wrap_future(job.future)

    async def aside(self, function: Callable[..., Any], *arguments) -> Any:
        """The value of a function that takes long but not the engine, such as one that tokenizes."""
        return await asyncio.get_running_loop().run_in_executor(self._prompts, function, *arguments)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._jobs)

    @property
    def busy(self) -> bool:
        """Whether the engine is at work."""
        return self._current is not None

    def snapshot(self) -> Snapshot:
        """What is measured now; for any thread."""
        engine = self.engine
        measured = Snapshot(state=LOADING if self.busy else IDLE) if engine is None else engine.snapshot()
        if engine is not None and measured.state == LOADING and not self.busy:
            measured = replace(measured, state=IDLE)  # loaded, and nothing asked yet
        return replace(measured, queue=self.waiting)

    # -- for the one who started it ------------------------------------------------------------------------------------

    def stop(self):
        """Take no more requests, and send those away that wait; the one under way goes on."""
        self.stopping = True
        with self._changed:
            waiting = list(self._jobs)
        for job in waiting:
            job.cut(stopping())

    def cut(self):
        """After `stop`: break the answer under way off."""
        if current := self._current:
            current.cut(stopping())

    def close(self):
        """Break off what is under way, end the threads and let the model go."""
        self.stop()
        self.cut()
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()
        self._prompts.shutdown(cancel_futures=True)
        if self.engine:
            self.engine.close()

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _enter(self, job):
        with self._changed:
            full = len(self._jobs) >= self.most_waiting
            if not full and not self.stopping:
                self._jobs.append(job)
                self._changed.notify()
                return
        self.tell(Outcome("refused"))
        if self.stopping:
            raise stopping()
        raise ApiError(503, f"{self.most_waiting} requests wait already; try again later", retry_after=5)

    def _leave(self, job) -> bool:
        """Take a job out of the queue; False where its turn has come already."""
        with self._changed:
            try:
                self._jobs.remove(job)
            except ValueError:
                return False
            return True

    def tell(self, outcome: Outcome):
        """Tell the listeners; on the event loop's thread."""
        for listener in self.listeners:
            listener(outcome)

    def _work(self):
        while True:
            with self._changed:
                while not self._jobs and not self._ended:
                    self._changed.wait()
                if self._ended:
                    return
                job = self._current = self._jobs.popleft()
            try:
                job.run()
            finally:
                self._current = job = None

    def hold(self, path: Path | None) -> Engine:
        """The engine of a model, opened if it is not the resident one; for the engine's thread."""
        engine = self.engine
        if engine is not None and path in (None, self.names.resident):
            return engine
        path = path or self.names.resident
        self.release()
        self.engine = engine = self.open_engine(path)
        self.names.resident, self.loaded_at = path, time.time()
        return engine

    def release(self):
        """Let the resident model go; for the engine's thread."""
        if self.engine is not None:
            engine, self.engine, self.loaded_at = self.engine, None, None
            engine.close()
            del engine
            gc.collect()  # answers that it gave, and their engine, refer to each other


class _Call:
    """A job that is a function of the engine; None lets the model go, if the path is None or the resident's."""

    def __init__(self, service, function, path):
        self.service, self.function, self.path, self.future = service, function, path, Future()

    def run(self):
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            if self.function is None:
                if self.path in (None, self.service.names.resident):
                    self.service.release()
                self.future.set_result(None)
            else:
                self.future.set_result(self.function(self.service.hold(self.path)))
        except Exception as error:
            self.future.set_exception(api_error(error))

    def cut(self, error):
        if self.service._leave(self):
            self.future.set_exception(error)


class Answer:
    """An answer in the queue or under way: `steps` as they come or the whole `text`, and a block that cancels it when
    left.

    Both raise ApiError for a request that cannot be answered. generation: there from the first step on; counts and
    times are its. asked_at, started_at: by time.monotonic(), None before.
    """

    def __init__(self, service: Service, request: Request, path: Path | None):
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
        if self.service._leave(self):
            self._end(error, "cancelled")
        elif self.generation is not None:
            self.generation.cancel()

    def prepare_early(self):
        """Make the prompt while others are answered, if the model is there."""
        engine = self.service.engine
        if engine is not None and self.path in (None, self.service.names.resident):
            self._early = engine, self.service._prompts.submit(self._prepare, engine)
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
        if not future.cancelled() and future.exception() and self.service._leave(self):
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
