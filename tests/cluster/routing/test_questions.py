"""Questions to the shards of other processes: which they are, how long answers cross, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import Answering
from penstock.cluster.links.calls import LOST
from penstock.cluster.links.fellow import Fellow
from penstock.cluster.routing.questions import QUESTIONS, Questions
from penstock.dialects.wire.http import Request
from penstock.errors import Fault
from penstock.model.answer_bytes import QUERIES
from penstock.model.backups import BackupState, BackupStates, ReadBackup, Still
from penstock.model.client import Client
from penstock.model.connections import ConnectionList, ListConnections, WaitingClient
from penstock.model.figures import WatchFigures
from penstock.model.health import GREEN, RED, YELLOW, Health, ReadHealth
from penstock.model.jobs import FindJob, JobState, NoJob
from penstock.model.queries import Query
from penstock.model.streams import Flow, Sink
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


class Steps:
    """A flow of some pieces."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = list(pieces)
        self.is_closed = False

    def pull(self, sink: Sink) -> None:
        give = partial(sink.give, self.pieces.pop(0)) if self.pieces else sink.end
        asyncio.get_running_loop().call_soon(give)

    def finish(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


STATES = [BackupState({"shard": shard}) for shard in range(3)]


def test_the_states_of_all_shards_are_noted_while_all_stand_still() -> None:
    async def story() -> None:
        flows = [Steps(Still(), state) for state in STATES]
        ports = [Port(partial(given, Flow(flow))) for flow in flows]
        assert await answer_to(asking(ports), ReadBackup()) == BackupStates(3, {}, STATES)
        assert all(flow.is_closed for flow in flows)

    asyncio.run(story())


@pytest.mark.parametrize("pieces", [[], [Still()]])
def test_without_a_state_of_one_shard_there_is_no_moment(pieces: list[Any]) -> None:
    async def story() -> None:
        flows = [Steps(Still(), STATES[0]), Steps(*pieces), Steps(Still(), STATES[2])]
        answer = await answer_to(asking([Port(partial(given, Flow(flow))) for flow in flows]), ReadBackup())
        assert answer.code == Fault.NO_MOMENT.code
        assert all(flow.is_closed for flow in flows)

    asyncio.run(story())


def test_the_flows_of_the_others_are_closed_if_one_shard_does_not_answer() -> None:
    async def story() -> None:
        for query in (ReadBackup(), WatchFigures()):
            flow = Steps()
            ports = [Port(partial(given, Flow(flow))), Port(partial(given, LOST))]
            assert await answer_to(asking(ports), query) == LOST
            assert flow.is_closed

    asyncio.run(story())


def test_flows_are_closed_if_nobody_waits_for_the_whole_any_more() -> None:
    async def story() -> None:
        flow = Steps()
        ports = [Port(lambda _: Flow(flow)), Port(None)]
        pending = asking(ports).ask(CLIENT, WatchFigures(), print)
        await until(lambda: bool(ports[1].pending))
        assert pending
        pending.cancel()
        await until(lambda: flow.is_closed)

    asyncio.run(story())


def test_a_question_that_nobody_waits_for_ends_everywhere() -> None:
    async def story() -> None:
        ports = [Port(None) for _ in range(3)]
        pending = asking(ports).ask(CLIENT, ListConnections(), print)
        await until(lambda: all(port.pending for port in ports))
        assert pending
        pending.cancel()
        await until(lambda: not any(port.pending[0].is_waiting for port in ports))

    asyncio.run(story())
