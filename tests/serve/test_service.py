"""The queue in front of an engine, without HTTP: how steps are handed over, and what listeners are told."""

import asyncio
import time

import pytest

from bankml.api import Model
from bankml.serve import answer as answer_module
from bankml.serve.answer import Request
from bankml.serve.errors import ApiError
from bankml.serve.names import Names
from bankml.serve.service import Service
from tests import conversations

LONG = Request("a long story", {"temperature": 0.0, "ignore_eos": True}, max_tokens=400, reuse="off")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return conversations.write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def served(path):
    """served(use, ...): what the coroutine use(service) returns, a token taking token_s more; `served.outcomes`."""
    outcomes = []

    def serve(use, most_waiting=4, token_s=0.0):
        async def serving():
            engine = Model.open(path, n_ctx=512, gpu=False)
            if token_s:
                engine.slot.decode = lambda token, decode=engine.slot.decode: (time.sleep(token_s), decode(token))[1]
            service = Service(None, Names(path), engine, most_waiting)
            service.listeners.append(outcomes.append)
            try:
                return await use(service)
            finally:
                await asyncio.to_thread(service.close)
                await asyncio.sleep(0)  # what the engine's thread told last

        return asyncio.run(serving())

    serve.outcomes = outcomes
    return serve


async def text_of(service, request) -> str:
    async with service.answer(request) as answer:
        return await answer.text()


def test_steps_come_together_and_none_is_lost(served, monkeypatch):
    """The first at once, then those of a while; here one without end."""
    monkeypatch.setattr(answer_module, "WAKE_S", 1000.0)

    async def use(service):
        lists = []
        async with service.answer(LONG) as answer:
            while steps := await answer.steps():
                lists.append(steps)
            one_by_one = [step async for step in service.answer(LONG)]
            return lists, one_by_one, answer.generation, await text_of(service, LONG)

    lists, one_by_one, generation, text = served(use)
    steps = [step for each in lists for step in each]
    assert [step.token for step in steps] == generation.tokens and len(steps) == 400
    assert "".join(step.text for step in steps) == generation.text == text
    assert one_by_one == steps
    assert len(lists) <= 2


def test_a_whole_answer_wakes_the_loop_at_its_end_only(served):
    async def use(service):
        loop, calls = asyncio.get_running_loop(), []
        call = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda function, *arguments: (calls.append(function), call(function, *arguments))
        await text_of(service, LONG)
        return len(calls)

    assert served(use) <= 4


def test_outcomes_tell_how_requests_ended(served):
    """H4: what was cancelled shows as such, and what was queued then never started."""

    async def use(service):
        async with service.answer(LONG) as running:
            await running.steps()
            queued = asyncio.create_task(text_of(service, LONG))
            await asyncio.sleep(0.01)
            assert service.waiting == 1 and service.busy
            queued.cancel()
            await asyncio.wait([queued])
            assert service.waiting == 0
        await text_of(service, Request("short", max_tokens=2))
        with pytest.raises(ApiError):
            await text_of(service, Request(""))

    served(use, token_s=0.01)
    queued, running, done, failed = served.outcomes
    assert (queued.kind, queued.queue_s, queued.completion_tokens) == ("cancelled", None, 0)
    assert (running.kind, running.finish_reason) == ("cancelled", "cancelled") and 0 < running.completion_tokens < 400
    assert (done.kind, done.finish_reason, done.completion_tokens) == ("completed", "length", 2)
    assert failed.kind == "failed"


def test_one_too_many_is_refused(served):
    async def use(service):
        waiting = []
        for waits in (0, 1):  # the second has its place in the queue once the first is under way
            waiting.append(asyncio.create_task(text_of(service, LONG)))
            while not service.busy or service.waiting != waits:
                await asyncio.sleep(0.001)
        with pytest.raises(ApiError, match="1 requests wait already") as caught:
            service.answer(LONG)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        return caught.value

    refused = served(use, most_waiting=1, token_s=0.01)
    assert refused.status == 503 and int(refused.headers["Retry-After"]) > 0
    assert [outcome.kind for outcome in served.outcomes] == ["refused", "cancelled", "cancelled"]


def test_a_cancelled_answer_gives_the_engine_back_within_a_token(served):
    async def use(service):
        answer = service.answer(LONG)
        await answer.steps()
        answer.cancel()
        made = answer.generation.completion_tokens
        await text_of(service, Request("next", max_tokens=1))
        return answer.generation.completion_tokens - made

    assert served(use) <= 1
