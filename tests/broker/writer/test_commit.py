"""Answers wait for the stage that the client asked for."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.broker.writer.loop import Loop
from penstock.model.answers import QueueDescription
from penstock.model.commands import DescribeQueue, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from tests.support.live_loop import HeldLog, a_loop, live, settled, turn

HELLO = NewMessage(b"hello")


@live
async def test_stages_are_reached_in_order(loop: Loop) -> None:
    reached: list[str] = []
    loop.submit(Publish("work", [HELLO]), lambda _: reached.append("sync"), Stage.SYNC)
    loop.submit(Publish("work", [HELLO]), lambda _: reached.append("write"), Stage.WRITE)
    loop.submit(Publish("work", [HELLO]), lambda _: reached.append("ready"), Stage.READY)
    loop.decide_collected()
    assert reached == ["ready"]
    loop.when(Stage.SYNC, lambda: reached.append("all"))
    await settled(loop)
    assert reached == ["ready", "write", "sync", "all"]
    loop.when(Stage.SYNC, lambda: reached.append("at once"))
    assert reached[-1] == "at once"


@live
async def test_an_answer_at_ready_does_not_wait_for_a_commit_that_is_under_way(loop: Loop) -> None:
    order: list[str] = []
    loop.submit(Publish("work", [HELLO]), lambda _: order.append("first, at sync"))
    await asyncio.sleep(0)
    loop.submit(Publish("work", [HELLO]), lambda _: order.append("ready"), Stage.READY)
    loop.submit(Publish("work", [HELLO]), lambda _: order.append("second, at sync"))
    await settled(loop)
    assert order.index("ready") < order.index("second, at sync")


@live
async def test_an_answer_that_logs_nothing_waits_for_what_it_saw(loop: Loop) -> None:
    answers: list[Any] = []
    loop.submit(Publish("work", [HELLO]), answers.append)
    loop.submit(DescribeQueue("work"), answers.append)
    loop.decide_collected()
    assert answers == []
    await settled(loop)
    assert (len(answers), answers[1].ready) == (2, 1)


def test_an_answer_that_logs_nothing_waits_for_a_commit_that_is_under_way() -> None:
    async def story() -> None:
        log, answers = HeldLog(), list[Any]()
        loop = a_loop(log)
        loop.submit(Publish("work", [HELLO], QueueSettings()), answers.append)
        await turn()
        assert log.progress, "it is being written"
        for stage in (Stage.SYNC, Stage.WRITE):
            loop.submit(DescribeQueue("work"), answers.append, stage)
        await turn()
        assert answers == []
        log.end_commit()
        await turn()
        assert [type(each) for each in answers] == [QueueDescription, list, QueueDescription]

    asyncio.run(story())
