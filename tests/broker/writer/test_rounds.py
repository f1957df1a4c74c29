"""Shards of one process commit in rounds. Each answer waits for its own log, and a log that fails fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.broker.writer.loop import Loop
from penstock.broker.writer.rounds import Rounds
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.model.answers import Refused
from penstock.model.commands import CreateQueue, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from tests.support.live_loop import HeldLog, turn

HELLO = NewMessage(b"hello")
FULL = OSError("the disk is full")


class Pair:
    """Two shards of one process, each with a queue of its own."""

    def __init__(self) -> None:
        scheduler = AsyncioScheduler(asyncio.get_running_loop())
        self.rounds, self.logs = Rounds(scheduler), [HeldLog(), HeldLog()]
        self.loops = [
            Loop(Engine(shard=number, shards=2), log, lambda: 1, scheduler, self.rounds)
            for number, log in enumerate(self.logs)
        ]

    async def open(self) -> None:
        for loop in self.loops:
            loop.submit(CreateQueue("work", QueueSettings()), lambda _: None)
        await turn()
        for log in self.logs:
            log.end_commit()
        await turn()

    def publish(self, shard: int, stage: Stage = Stage.SYNC) -> list[Any]:
        answers: list[Any] = []
        self.loops[shard].submit(Publish("work", [HELLO]), answers.append, stage)
        return answers

    @property
    def being_written(self) -> list[bool]:
        return [log.progress is not None for log in self.logs]


def paired(story: Callable[[Pair], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def run() -> None:
        pair = Pair()
        await pair.open()
        await story(pair)

    def test() -> None:
        asyncio.run(run())

    test.__name__ = story.__name__
    return test


@paired
async def test_all_shards_collect_while_one_of_their_logs_is_written(pair: Pair) -> None:
    first = pair.publish(0)
    await turn()
    assert pair.being_written == [True, False]
    second, third = pair.publish(1), pair.publish(0)
    await turn()
    assert pair.being_written == [True, False]
    pair.logs[0].end_commit()
    await turn()
    assert (len(first), len(second), len(third)) == (1, 0, 0)
    assert pair.being_written == [True, True]


@paired
async def test_an_answer_waits_for_its_own_log_alone(pair: Pair) -> None:
    first, second = pair.publish(0), pair.publish(1)
    await turn()
    pair.logs[1].end_commit()
    await turn()
    assert (len(first), len(second)) == (0, 1)
    pair.publish(1)
    await turn()
    assert pair.being_written == [True, False]
    pair.logs[0].end_commit()
    await turn()
    assert len(first) == 1
    assert pair.being_written == [False, True]


@paired
async def test_a_log_that_fails_does_not_fail_the_others_of_its_round(pair: Pair) -> None:
    first, second = pair.publish(0), pair.publish(1)
    await turn()
    pair.logs[0].end_commit(FULL)
    await turn()
    assert first == second == []
    pair.loops[0].end_doubt()
    assert first == [Refused(Reason.OUTCOME_UNKNOWN, f"the log cannot be written: {FULL}")]
    pair.logs[1].end_commit()
    await turn()
    assert not isinstance(second[0], Refused)
    third = pair.publish(1)
    await turn()
    pair.logs[1].end_commit()
    await turn()
    assert len(third) == 1


@paired
async def test_a_round_does_not_wait_for_a_log_that_was_given_up(pair: Pair) -> None:
    pair.publish(0)
    await turn()
    answers = pair.publish(1)
    pair.loops[0].fail(FULL)  # The log that is being written reports nothing any more.
    await turn()
    assert pair.being_written[1]
    pair.logs[1].end_commit()
    await turn()
    assert len(answers) == 1


@paired
async def test_a_log_that_was_given_up_joins_the_rounds_again_when_it_is_revived(pair: Pair) -> None:
    pair.publish(0)
    await turn()
    pair.logs[0].end_commit(FULL)
    await turn()
    log, engine = HeldLog(pair.logs[0].durable), Engine(shard=0, shards=2)
    for event, position in log.recover().events:
        engine.evolve(event, position)
    pair.loops[0].revive(engine, log)
    pair.logs[0] = log
    first, second = pair.publish(0), pair.publish(1)
    await turn()
    assert pair.being_written == [True, True]
    for each in pair.logs:
        each.end_commit()
    await turn()
    assert (len(first), len(second)) == (1, 1)


@paired
async def test_what_is_answered_when_it_is_ready_does_not_wait_for_a_round(pair: Pair) -> None:
    pair.publish(0)
    await turn()
    ready, durable = pair.publish(1, Stage.READY), pair.publish(1)
    await turn()
    assert (len(ready), len(durable)) == (1, 0)
    assert pair.being_written == [True, False]
