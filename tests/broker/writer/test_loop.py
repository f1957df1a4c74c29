"""The writer as a whole: it stops, its log fails, and another log takes its place."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.broker.writer.loop import Loop
from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.limits import BATCH_BYTES_MAX, SECOND_NS
from penstock.model.answers import Refused
from penstock.model.commands import (
    AwaitResult,
    Command,
    CreateQueue,
    Draw,
    Fetch,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishRun,
    Pull,
)
from penstock.model.settings import QueueSettings
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import ask, live_with, settled

KEEPS = QueueSettings(keep="all")
LONG_NS = 20 * SECOND_NS
HELLO = NewMessage(b"hello")
NO_DISK = Refused(Reason.UNAVAILABLE, "the log cannot be written: no disk")

live = live_with("q", KEEPS)


def submitted(loop: Loop, command: Command) -> list[Any]:
    """Submit a command; a list that its answers will be in."""
    answers: list[Any] = []
    loop.submit(command, answers.append)
    return answers


@live
async def test_publishes_in_turn_end_at_the_first_that_is_refused(loop: Loop) -> None:
    run = PublishRun("new", HELLO, [b"x"] * 20, KEEPS)
    answer = await ask(loop, PublishInTurn([Publish("q", [HELLO]), run, Publish("q", [HELLO])]))
    assert [len(each) for each in answer] == [1, 20, 1]
    unknown = Publish("none", [HELLO])
    never = Publish("never", [HELLO], KEEPS)
    stored, refused = await ask(loop, PublishInTurn([Publish("q", [HELLO]), unknown, never]))
    assert stored[0].sequence == 3
    assert refused == Refused(Reason.NO_QUEUE, "none")
    assert loop.engine.queue("never") is None


@live
async def test_a_stop_answers_everyone_who_waits(loop: Loop) -> None:
    await ask(loop, Publish("q", [HELLO]))
    pull = submitted(loop, Pull("r", [Draw("other"), Draw("more")], (), LONG_NS))
    result = submitted(loop, AwaitResult("q", 1, "", LONG_NS))
    loop.release_waiters()
    await settled(loop)
    assert pull[0].last == {"other": 0, "more": 0}
    assert not result[0]
    assert loop.waiters.count == 0


@live
async def test_a_failed_log_refuses_everyone_once(loop: Loop) -> None:
    pull = submitted(loop, Pull("r", [Draw("q"), Draw("other")], (), LONG_NS))
    collected = submitted(loop, Publish("q", [HELLO]))
    gone: list[Any] = []
    waiter = loop.submit(Fetch("q", wait_ns=LONG_NS), gone.append)
    assert waiter
    waiter.cancel()
    loop.fail(OSError("no disk"))
    later = submitted(loop, Publish("q", [HELLO]))
    assert [pull, collected, later, gone] == [[NO_DISK], [NO_DISK], [NO_DISK], []]
    assert loop.waiters.count == 0
    assert not loop.waiters.by_key


@live
async def test_an_answer_that_waits_for_a_log_that_fails_is_refused(loop: Loop) -> None:
    answers = submitted(loop, Publish("q", [HELLO]))
    loop.decide_collected()
    assert not answers
    loop.fail(OSError("no disk"))
    assert answers == [NO_DISK]
    await asyncio.sleep(0)
    assert loop.commit.count == 1  # That of the queue.


@live
async def test_a_new_log_wakes_whoever_watches_a_queue_where_messages_are_ready(loop: Loop) -> None:
    woken: list[None] = []
    loop.watch("q", lambda: woken.append(None))
    recovered = Loop(Engine(), MemoryLog(), loop.executor._clock, loop.commit._scheduler)
    await ask(recovered, CreateQueue("q", KEEPS))
    await ask(recovered, Publish("q", [HELLO]))
    loop.fail(OSError("no disk"))
    assert not woken
    loop.revive(recovered.engine, recovered.log)
    assert woken == [None]
    assert (await ask(loop, Publish("q", [HELLO])))[0].sequence == 2


class FullLog(MemoryLog):
    """A disk so slow that a whole batch waits behind the one that is written."""

    collecting = BATCH_BYTES_MAX + 1

    def commit(self, *_: Any) -> None:
        """It takes forever."""


@live
async def test_a_command_is_refused_while_the_disk_does_not_keep_up(loop: Loop) -> None:
    loop.commit.log = FullLog()
    submitted(loop, Publish("q", [HELLO]))
    await asyncio.sleep(0)
    (refused,) = submitted(loop, Publish("q", [HELLO]))
    assert refused.reason is Reason.UNAVAILABLE
