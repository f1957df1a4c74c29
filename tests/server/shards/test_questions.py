"""Questions to the shards of other processes: which they are, how long answers cross, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.dialects.wire.http import Request
from penstock.model.answer_bytes import QUERIES
from penstock.model.client import Client
from penstock.model.connections import ConnectionList, ListConnections, WaitingClient
from penstock.model.health import GREEN, RED, YELLOW, Health, ReadHealth
from penstock.model.jobs import FindJob, JobState, NoJob
from penstock.model.queries import Query
from penstock.server.shards.calls import LOST
from penstock.server.shards.fellow import Fellow
from penstock.server.shards.questions import QUESTIONS, Questions
from penstock.server.shards.shard_map import ShardMap
from penstock.server.writer.port import Answering
from tests.support.live_loop import until

CLIENT = Request(b"GET", b"/", {})


def given(answer: Any, _: Query) -> Any:
    return answer


class Port:
    """A shard that answers at once, later, or never."""

    def __init__(self, answer: Callable[[Any], Any] | None) -> None:
        self.answer = answer
        self.asked: list[tuple[Client, Query]] = []
        self.pending: list[Answering] = []

    def ask(self, client: Client, query: Query, reply: Callable[[Any], None]) -> Answering | None:
        self.asked.append((client, query))
        if self.answer:
            reply(self.answer(query))
            return None
        pending = Answering(asyncio.create_task(asyncio.sleep(3600)))
        self.pending.append(pending)
        return pending


def asking(ports: Sequence[Any], **more: Any) -> Questions:
    return Questions(ShardMap(len(ports)), ports, **more)


async def answer_to(questions: Questions, query: Query) -> Any:
    answered = asyncio.get_running_loop().create_future()
    questions.ask(CLIENT, query, answered.set_result)
    return await answered


def test_every_question_has_a_row() -> None:
    assert QUESTIONS.keys() == set(QUERIES)


def a_page_of(total: int) -> Callable[[ListConnections], ConnectionList]:
    waiting = [WaitingClient("worker", f"queue-{each}", None) for each in range(total)]

    def page(query: ListConnections) -> ConnectionList:
        assert query.limit <= 1000
        return ConnectionList(0, [], total, waiting[query.offset : query.offset + query.limit])

    return page


def test_rows_are_asked_for_page_by_page_as_far_as_they_are_wanted() -> None:
    async def story() -> None:
        ports = [Port(a_page_of(total)) for total in (2500, 0, 700)]
        found = await answer_to(asking(ports), ListConnections(1990, 20))
        assert (found.total_waiting, [each.queue for each in found.waiting][:2]) == (
            3200,
            ["queue-1990", "queue-1991"],
        )
        assert len(found.waiting) == 20
        assert [len(port.asked) for port in ports] == [3, 1, 1]

    asyncio.run(story())


def test_a_shard_that_does_not_answer_may_have_the_job() -> None:
    async def story(*answers: Any) -> Any:
        ports = [Port(partial(given, answer)) for answer in answers]
        return await answer_to(asking(ports), FindJob("purges", "1"))

    job = JobState("1", "running", {})
    assert asyncio.run(story(NoJob(), LOST, job)) == job
    assert asyncio.run(story(NoJob(), LOST, NoJob())) == LOST
    assert asyncio.run(story(NoJob(), NoJob(), NoJob())) == NoJob()


def test_nobody_waits_for_the_health_of_a_process_that_hangs() -> None:
    async def story(silence: float, *, is_linked: bool) -> Health:
        ports = [Port(lambda _: Health(GREEN)), Port(None), Port(lambda _: Health(GREEN))]
        fellows = [Fellow("worker 0", 0, 0, True, is_this=True), Fellow("worker 1", 1, silence, is_linked)]
        questions = asking(ports, fellow=lambda shard: fellows[shard % 2])
        found: Health = await answer_to(questions, ReadHealth())
        assert len(ports[1].asked) == (silence == 0.0 and is_linked)
        await until(lambda: not any(pending.is_waiting for pending in ports[1].pending))
        return found

    late = asyncio.run(story(0.0, is_linked=True))
    assert late == Health(YELLOW, "nothing is known of shard 1 now: worker 1 answers slowly")
    assert asyncio.run(story(1000.0, is_linked=True)).level == RED
    assert asyncio.run(story(0.0, is_linked=False)) == Health(
        RED, "shard 1 cannot be reached: worker 1 is not linked"
    )


def test_a_question_has_an_end() -> None:
    class Slow(ReadHealth, frozen=True):
        seconds_max = 0.01

    async def story() -> None:
        port = Port(None)
        answer = await answer_to(asking([port]), Slow())
        assert isinstance(answer, Health)
        assert answer.level == RED
        await until(lambda: not port.pending[0].is_waiting)

    QUESTIONS[Slow] = QUESTIONS[ReadHealth]
    try:
        asyncio.run(story())
    finally:
        del QUESTIONS[Slow]


def test_a_question_that_nobody_waits_for_ends_everywhere() -> None:
    async def story() -> None:
        ports = [Port(None) for _ in range(3)]
        pending = asking(ports).ask(CLIENT, ListConnections(), print)
        await until(lambda: all(port.pending for port in ports))
        assert pending
        pending.cancel()
        await until(lambda: not any(port.pending[0].is_waiting for port in ports))

    asyncio.run(story())
