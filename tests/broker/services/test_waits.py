"""Waits on a live loop: their number is limited, and a failure of the log leaves nobody behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from penstock.broker.services import waits as module
from penstock.broker.services.courier_source import CourierSource
from penstock.broker.services.message_traces import MessageTraces
from penstock.broker.services.waits import Reached, Waits
from penstock.broker.writer.loop import Loop
from penstock.errors import Fault, RequestError
from penstock.model.commands import CreateQueue, Finish, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.model.values import Place
from tests.support.live_loop import ask, live, settled

NO_SOURCE = cast("CourierSource", None)  # There is one shard.
NO_TRACES = cast("MessageTraces", None)  # The log is not read in these tests.


async def places(loop: Loop, count: int) -> list[Place]:
    return [(each.queue, each.sequence) for each in await ask(loop, Publish("work", [NewMessage(b"m")] * count))]


class Answers:
    def __init__(self) -> None:
        self.given: list[Mapping[Place, Reached]] = []

    def __call__(self, reached: Mapping[Place, Reached]) -> None:
        self.given.append(dict(reached))


@live
async def test_the_number_of_messages_that_are_waited_for_is_limited(loop: Loop) -> None:
    waits, answers = Waits(loop, NO_TRACES, NO_SOURCE, lambda _: None), Answers()
    messages = await places(loop, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WAITED_MAX", 4)
        wait = waits.begin(messages, "done", 60, answers)
        with pytest.raises(RequestError) as refused:
            waits.begin(messages, "done", 60, answers)
        assert refused.value.error is Fault.WAIT_LIMIT
        wait.cancel()
        waits.begin(messages, "done", 60, answers).cancel()
    assert answers.given == []
    assert not loop.executor.followers.by_place
    assert not waits.open


@live
async def test_everyone_is_answered_when_the_log_was_replaced_and_when_the_broker_stops(loop: Loop) -> None:
    waits, answers = Waits(loop, NO_TRACES, NO_SOURCE, lambda _: None), Answers()
    messages = await places(loop, 2)
    waits.begin(messages, "done", 60, answers)
    waits.start()
    assert answers.given == [{}]
    waits.begin(messages, "done", 60, answers)
    await waits.stop()
    assert answers.given == [{}, {}]
    await waits.close()


@live
async def test_an_end_that_is_not_durable_is_not_reported(loop: Loop) -> None:
    waits, answers = Waits(loop, NO_TRACES, NO_SOURCE, lambda _: None), Answers()
    loop.recent.ask(loop.now())
    (place,) = await places(loop, 1)
    loop.submit(Finish(*place), lambda _: None)
    loop.decide_collected()
    waits.begin([place], "done", 60, answers)
    loop.fail(OSError("no space"))
    await asyncio.sleep(0)
    assert answers.given == [{}]


@live
async def test_an_end_is_reported_with_the_commit_that_makes_it_durable(loop: Loop) -> None:
    waits, answers = Waits(loop, NO_TRACES, NO_SOURCE, lambda _: None), Answers()
    await ask(loop, CreateQueue("other", QueueSettings()))
    first, second = await places(loop, 2)
    waits.begin([first, second], "done", 60, answers)
    loop.submit(Finish(*first), lambda _: None)
    loop.submit(Finish(*second), lambda _: None)
    await settled(loop)
    await asyncio.sleep(0.001)
    assert [cast("Any", each).outcome for each in answers.given[0].values()] == ["success", "success"]
    assert len(answers.given) == 1
