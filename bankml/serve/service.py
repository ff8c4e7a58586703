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
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from bankml.engine import Engine
from bankml.serve.answer import Answer, Outcome, Request
from bankml.serve.errors import ApiError, api_error, stopping
from bankml.serve.names import Names
from bankml.snapshot import IDLE, LOADING, Snapshot

MOST_WAITING = 64


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
        self.prompts = ThreadPoolExecutor(1, "prompts")
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    # -- for endpoints -------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Answer:
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
            self.leave(job)
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
        return await asyncio.get_running_loop().run_in_executor(self.prompts, function, *arguments)

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
        self.prompts.shutdown(cancel_futures=True)
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

    def leave(self, job) -> bool:
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
        if self.service.leave(self):
            self.future.set_exception(error)
