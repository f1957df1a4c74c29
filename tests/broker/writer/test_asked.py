"""What becomes of commands of other processes is in the log, until those have the answers."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.broker.writer import asked
from penstock.broker.writer.asked import Asked, through
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.limits import OUTCOMES_KEPT_SECONDS, SECOND_NS
from penstock.model.answers import Delivery, Done, Published, Pulled, Receipt, Receipts, Refused
from penstock.model.commands import CreateQueue, Draw, Fetch, Finish, NewMessage, Publish, Pull
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask, until


def in_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(asyncio.wait_for(story(), 60))

    test.__name__ = story.__name__
    return test


ORIGIN = b"process1"
DELIVERY = Delivery(1, 2, 300, 5, 0, 0, "text/plain", "ada", 0, 1, 7, 8)


class Link:
    """Asks a writer as the end of a link does."""

    is_over = False

    def __init__(self, loop: Loop, origin: bytes = ORIGIN) -> None:
        self.loop = loop
        self.answers: dict[int, Any] = {}
        self.sent = self.arrived = 0
        self._origin = origin

    def ask(self, number: int, command: Any, stage: Stage = Stage.SYNC) -> None:
        self.loop.submit(command, self.reply(number), stage)

    def reply(self, number: int) -> Asked:
        return Asked(self.loop.origin(self._origin), number, self)

    def ask_again(self, number: int) -> bool:
        self.answers.pop(number, None)
        return self.loop.answer_again(self.loop.origin(self._origin), number, self.reply(number), Stage.SYNC)

    def answer(self, number: int, answer: Any) -> None:
        self.sent += 1
        self.answers[number] = answer

    async def answered(self, number: int) -> Any:
        await until(lambda: number in self.answers)
        return self.answers[number]

    @property
    def records(self) -> list[bytes]:
        known = self.loop.engine.outcomes.by_origin.get(self._origin)
        return known.records if known else []


def hello(body: bytes = b"hello") -> Publish:
    return Publish("work", [NewMessage(body)])


def revived(log: MemoryLog) -> Loop:
    loop = a_loop(log)
    for event, position in log.recover().events:
        loop.engine.evolve(event, position)
    return loop


async def a_link() -> Link:
    loop = a_loop(MemoryLog())
    await ask(loop, CreateQueue("work", QueueSettings()))
    return Link(loop)


@in_loop
async def test_a_command_that_was_carried_out_is_answered_again_as_it_was() -> None:
    link = await a_link()
    for number in range(1, 4):
        link.ask(number, hello(b"%d" % number))
    answers = [await link.answered(number) for number in range(1, 4)]
    assert answers == [[Receipt(1, number, True)] for number in range(1, 4)]
    assert [link.ask_again(number) for number in range(1, 4)] == [True] * 3
    assert [await link.answered(number) for number in range(1, 4)] == answers
    assert not link.ask_again(4)
    assert len(link.records) == 1, "one for all that were decided together"


@in_loop
async def test_what_is_delivered_again_has_its_bytes() -> None:
    link = await a_link()
    link.ask(1, hello())
    await link.answered(1)
    link.ask(2, Fetch("work", confirm=False))
    (first,) = await link.answered(2)
    assert link.ask_again(2)
    assert await link.answered(2) == [first]
    assert first.body == b"hello"
    assert b"hello" not in b"".join(link.records)


@in_loop
async def test_what_is_decided_and_not_committed_is_found_too() -> None:
    link = await a_link()
    link.ask(1, hello())
    assert link.ask_again(1), "it was collected, and is decided before it is looked for"
    assert await link.answered(1) == [Receipt(1, 1, True)]


@in_loop
async def test_what_was_answered_before_it_was_on_the_disk_is_found_too() -> None:
    link = await a_link()
    link.ask(1, hello(), Stage.READY)
    await link.answered(1)
    await ask(link.loop, hello())
    assert link.ask_again(1)


@in_loop
async def test_what_was_refused_or_changed_nothing_is_carried_out_again() -> None:
    link = await a_link()
    link.ask(1, Publish("nothing", [NewMessage(b"")]))
    link.ask(2, Fetch("work"))
    assert (await link.answered(1)).reason is Reason.NO_QUEUE
    assert not await link.answered(2)
    assert not link.ask_again(1)
    assert not link.ask_again(2)
    assert link.records == []


@in_loop
async def test_records_are_forgotten_when_the_answers_have_arrived() -> None:
    link = await a_link()
    for number in range(1, 6):
        link.ask(number, hello())
        await link.answered(number)
    assert len(link.records) == 5
    link.arrived = 2
    link.ask(6, hello())
    await link.answered(6)
    assert len(link.records) == 4, "those before the first that has not arrived"
    assert link.ask_again(3)
    assert not link.ask_again(2)


@in_loop
async def test_the_record_of_an_answer_that_is_not_sent_yet_is_kept_though_later_ones_have_arrived() -> None:
    link = await a_link()
    last = link.reply(1)
    kept: list[Any] = []
    link.loop.submit(hello(), through(last, kept.append))
    for number in (2, 3):
        link.ask(number, hello())
        await link.answered(number)
    link.arrived = link.sent
    link.ask(4, hello())
    await link.answered(4)
    assert link.ask_again(1)
    last(kept[0])
    link.arrived = link.sent
    link.ask(5, hello())
    await link.answered(5)
    assert len(link.records) == 1, "all others have arrived"


@in_loop
async def test_what_an_earlier_process_has_left_is_forgotten_when_all_was_asked_again() -> None:
    link = await a_link()
    link.ask(1, hello())
    await link.answered(1)
    again = MemoryLog(link.loop.log.durable)  # type: ignore[attr-defined]
    link.loop = revived(again)  # In the next process.
    link.ask(2, hello())
    await link.answered(2)
    assert len(link.records) == 2
    assert link.ask_again(1)
    origin = link.loop.origin(ORIGIN)
    origin.ended_asking(link)
    link.ask(3, hello())
    await link.answered(3)
    assert len(link.records) == 3, "no answer has arrived"
    link.arrived = link.sent
    link.ask(4, hello())
    await link.answered(4)
    assert len(link.records) == 1, "all others are forgotten, the first too"
    assert not link.ask_again(1)


@in_loop
async def test_what_is_known_of_a_process_goes_with_what_the_log_forgets() -> None:
    passed = [0]
    loop = Loop(
        Engine(), MemoryLog(), lambda: time.time_ns() + passed[0], AsyncioScheduler(asyncio.get_running_loop())
    )
    await ask(loop, CreateQueue("work", QueueSettings()))
    gone, link = Link(loop, b"gone1234"), Link(loop)
    for each in (gone, link):
        each.ask(1, hello())
        await each.answered(1)
    known = weakref.ref(loop.origin(b"gone1234"))
    passed[0] = (OUTCOMES_KEPT_SECONDS + 1) * SECOND_NS
    assert known()
    link.ask(2, hello())
    await link.answered(2)
    gc.collect()
    assert not known()
    gone.ask(2, hello())
    await gone.answered(2)
    assert gone.ask_again(2), "it was there all the time, and asks once more"
    assert not gone.ask_again(1)


@in_loop
async def test_an_answer_is_logged_as_it_arrives_whoever_stands_between() -> None:
    link = await a_link()
    reply = link.reply(1)
    between = through(reply, lambda answer: reply(answer[0].sequence), lambda answer: Done())
    link.loop.submit(hello(), between)
    assert await link.answered(1) == 1
    assert link.ask_again(1)
    assert await link.answered(1) == Done()


@pytest.mark.parametrize(
    "answers",
    [
        [[Receipt(1, 5, True)], [Receipt(1, 6, True)], [Receipt(1, 7, True)]],
        [[Receipt(1, 5, False)], [Receipt(1, 6, True)], [Receipt(2, 7, True)]],
        [
            [Published(1, 5, "Q", ("a",), ("b",))],
            [Published(1, 6, "Q", ("a",), ("b",))],
            [Published(1, 7, "U", ("a",))],
        ],
        [Done(), Done(), Done()],
        [[Receipt(1, 5, True), Receipt(1, 6, True)], [Receipt(1, 7, True)], Receipts(1, 8, 100)],
        [[Done(), Refused(Reason.NO_MESSAGE), Done()], [Done()], Pulled([], [], {"a": 1})],
        [[[Receipt(1, 5, True)], Receipts(1, 6, 9), Refused(Reason.NO_QUEUE, "x")], [DELIVERY], [DELIVERY]],
    ],
)
def test_runs_of_answers_tell_the_same_as_the_answers(answers: list[Any]) -> None:
    numbered: list[Any] = [(type("Reply", (), {"number": 10 + at}), answer) for at, answer in enumerate(answers)]
    record = asked._encode(asked._runs(numbered))
    assert dict(asked._answers(record)) == {10 + at: answer for at, answer in enumerate(answers)}


def test_publishes_one_after_the_other_take_few_bytes_together() -> None:
    numbered: list[Any] = [(type("Reply", (), {"number": n}), [Receipt(1, n, True)]) for n in range(1, 1001)]
    assert len(asked._encode(asked._runs(numbered))) < 40


@in_loop
async def test_what_was_in_flight_when_the_log_failed_is_told_when_it_was_read_again() -> None:
    for is_there in (True, False):
        loop = a_loop(log := MemoryLog())
        await ask(loop, CreateQueue("work", QueueSettings()))

        def commit(now: int, _: Any, log: MemoryLog = log) -> None:
            MemoryLog.commit(log, now, lambda _: None)

        log.commit = commit  # type: ignore[method-assign, assignment]
        answers: list[Any] = []
        loop.submit(hello(), answers.append)
        await until(lambda log=log: len(log.durable) == 2)  # type: ignore[misc]
        loop.fail(OSError("no answer"))
        assert answers == []
        again = MemoryLog(log.durable if is_there else log.durable[:1])
        loop.revive(revived(again).engine, again)
        assert isinstance(answers[0], Refused) is not is_there
        if not is_there:
            assert answers[0].reason is Reason.UNAVAILABLE


@in_loop
async def test_what_was_in_flight_is_told_when_others_have_the_log_and_say_what_is_in_it() -> None:
    for is_done in (True, False):
        loop = a_loop(log := MemoryLog())
        await ask(loop, CreateQueue("work", QueueSettings()))
        log.commit = lambda *_: None  # type: ignore[method-assign]
        end = log.end.offset
        answers: list[Any] = []
        loop.submit(hello(), answers.append)
        await until(lambda loop=loop: loop.commit.in_flight)  # type: ignore[misc]
        loop.fail(OSError("no answer"))
        loop.settle_doubt(end + is_done)
        assert answers[0] == [Receipt(1, 1, True)] if is_done else answers[0].reason is Reason.UNAVAILABLE


@in_loop
async def test_a_pull_that_waits_is_not_refused_when_its_results_are_stored() -> None:
    loop = a_loop(MemoryLog())
    await ask(loop, CreateQueue("work", QueueSettings()))
    await ask(loop, hello())
    await ask(loop, Fetch("work", consumer="me"))
    answers: list[Any] = []
    loop.submit(Pull("me", (Draw("work"),), [("work", 1, b"done")], wait_ns=60 * SECOND_NS), answers.append)
    await until(lambda: loop.commit.is_idle)
    loop.fail(OSError("the disk is gone"))
    assert [answer.reason for answer in answers] == [Reason.OUTCOME_UNKNOWN]


@in_loop
async def test_a_finish_is_found_though_the_message_is_gone() -> None:
    link = await a_link()
    link.ask(1, hello())
    await link.answered(1)
    link.ask(2, Fetch("work"))
    await link.answered(2)
    link.ask(3, Finish(1, 1))
    assert isinstance(await link.answered(3), Done)
    assert link.ask_again(3)
    assert isinstance(await link.answered(3), Done)
