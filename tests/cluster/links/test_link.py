"""Links between workers, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.broker.writer.loop import Loop
from penstock.broker.writer.port import Answering
from penstock.cluster.links.calls import LOST
from penstock.cluster.links.codec import FORM, Ask, Frames, Greet, encode, frame
from penstock.cluster.links.flows import Pieces
from penstock.cluster.links.link import Link
from penstock.dialects.wire.http import Request
from penstock.errors import Reason, RequestError
from penstock.limits import LINK_BYTES_MAX, LINK_PART_BYTES, SECOND_NS
from penstock.model.access import Access, scope_of
from penstock.model.answers import Receipt, Refused
from penstock.model.commands import (
    Command,
    CreateQueue,
    DescribeQueue,
    Fetch,
    Finish,
    NewMessage,
    Publish,
    Pull,
)
from penstock.model.event_log import LogRange, ReadLog
from penstock.model.figures import WatchFigures
from penstock.model.jobs import FindJob, JobState, StartPurge
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings
from penstock.model.streams import Flow, Sink
from penstock.model.values import Stage
from penstock.storage.memory import MemoryLog
from tests.support.linked import linked_to, told_in
from tests.support.live_loop import a_loop, ask, until

OWNED = 3  # The shard at the far end.
LONG_NS = 3600 * SECOND_NS
CLIENT = Request(b"GET", b"/", {})


class Ends:
    """Two workers with a link. The far one has a shard with the queue `work`."""

    def __init__(self, near: Link, far: Link, loop: Loop) -> None:
        self.near, self.far, self.loop = near, far, loop
        self.answers: list[Any] = []

    def send(self, command: Command, client: Any = None, shard: int = OWNED) -> Any:
        return self.near.submit(shard, client, command, self.answers.append)

    async def answered(self, count: int) -> list[Any]:
        await until(lambda: len(self.answers) >= count)
        return self.answers

    async def ask(self, command: Command, client: Any = None, shard: int = OWNED) -> Any:
        self.answers.clear()
        self.send(command, client, shard)
        return (await self.answered(1))[0]


Story = Callable[[Ends], Coroutine[Any, Any, None]]


def linked(story: Story) -> Callable[[Path], None]:
    """A decorator for tests of two workers with a link."""

    async def run(path: Path) -> None:
        loop = a_loop(MemoryLog())
        await ask(loop, CreateQueue("work", QueueSettings()))
        far = Link(1, {OWNED: loop})
        async with linked_to(far, path) as near:
            await asyncio.wait_for(story(Ends(near, far, loop)), 60)

    return told_in(run, story)


def hello(text: str = "hello") -> Publish:
    return Publish("work", [NewMessage(text.encode())])


@linked
async def test_a_command_is_carried_out_at_the_other_end(ends: Ends) -> None:
    assert await ends.ask(hello()) == [Receipt(1, 1, True)]
    (delivery,) = await ends.ask(Fetch("work"))
    assert delivery.body == b"hello"
    await ends.ask(Finish(1, 1))
    assert (await ends.ask(DescribeQueue("work"))).messages == 0
    assert ends.near.unanswered_bytes == 0


@linked
async def test_both_ends_may_ask(ends: Ends) -> None:
    answers: list[Any] = []
    ends.far.submit(0, None, hello(), answers.append)
    await until(lambda: bool(answers))
    assert answers == [Refused(Reason.UNAVAILABLE, "the queue is not in this process")]


@linked
async def test_commands_keep_their_order(ends: Ends) -> None:
    for number in range(1000):
        ends.send(hello(str(number)))
        if number % 100 == 0:
            await asyncio.sleep(0)
    receipts = await ends.answered(1000)
    assert [receipt.sequence for (receipt,) in receipts] == list(range(1, 1001))
    deliveries = await ends.ask(Fetch("work", 1000))
    assert [int(delivery.body) for delivery in deliveries] == list(range(1000))


@linked
async def test_a_fetch_is_not_decided_together_with_a_later_publish(ends: Ends) -> None:
    ends.send(Fetch("work"))
    ends.near.decide_collected(OWNED)
    ends.send(hello())
    assert [] in await ends.answered(2)


@linked
async def test_a_large_answer_arrives(ends: Ends) -> None:
    bodies = [bytes([number]) * (1 << 20) for number in range(3)]
    await ends.ask(Publish("work", [NewMessage(body) for body in bodies]))
    assert [delivery.body for delivery in await ends.ask(Fetch("work", 3))] == bodies


@linked
async def test_a_fetch_waits_for_a_message(ends: Ends) -> None:
    waiting = ends.send(Fetch("work", wait_ns=LONG_NS))
    await until(lambda: ends.loop.waiting("work") == 1)
    assert waiting.is_waiting
    await ask(ends.loop, hello())
    ((delivery,),) = await ends.answered(1)
    assert delivery.body == b"hello"
    assert not waiting.is_waiting


@linked
async def test_a_client_that_has_gone_away_gets_no_message(ends: Ends) -> None:
    gone = ends.send(Fetch("work", wait_ns=LONG_NS))
    await until(lambda: ends.loop.waiting("work") == 1)
    gone.cancel()
    await until(lambda: ends.loop.waiting("work") == 0)
    await ask(ends.loop, hello())
    assert (await ends.ask(Fetch("work")))[0].receives == 1


@linked
async def test_a_client_that_gives_up_is_answered(ends: Ends) -> None:
    waiting = ends.send(Pull("me", wait_ns=LONG_NS))
    fetch = ends.send(Fetch("work", wait_ns=LONG_NS))
    await until(lambda: ends.loop.waiting("work") == 1)
    waiting.give_up()
    fetch.give_up()
    assert not any(await ends.answered(2))


@linked
async def test_a_link_refuses_more_than_it_can_carry_until_it_is_answered(ends: Ends) -> None:
    body = bytes(LINK_BYTES_MAX // 8)
    for _ in range(9):
        ends.send(Publish("work", [NewMessage(body)]))
    assert [answer.reason for answer in ends.answers] == [Reason.UNAVAILABLE] * 2
    waiting = ends.send(Fetch("none", wait_ns=LONG_NS))
    assert waiting, "what waits does not count"
    answers = await ends.answered(10)
    assert sum(not isinstance(answer, Refused) for answer in answers) == 7
    assert ends.near.unanswered_bytes == 0
    assert await ends.ask(hello()) == [Receipt(1, 8, True)]


@linked
async def test_a_lost_link_answers_everything_that_was_under_way(ends: Ends) -> None:
    ends.send(Fetch("work", wait_ns=LONG_NS))
    await until(lambda: ends.loop.waiting("work") == 1)
    ends.far.close()
    (answer,) = await ends.answered(1)
    assert answer.reason is Reason.UNAVAILABLE
    await until(lambda: ends.loop.waiting("work") == 0)
    ends.send(hello())
    assert ends.answers[1].reason is Reason.UNAVAILABLE


class Ada:
    access = Access("ada", [scope_of("consume:work")])
    address = "::1"
    dialect = "mqs"


@linked
async def test_the_other_end_asks_what_a_client_may_do(ends: Ends) -> None:
    refused = await ends.ask(hello(), Ada())
    assert refused == Refused(Reason.FORBIDDEN, "publish on work")
    assert await ends.ask(Fetch("work"), Ada()) == []


@linked
async def test_a_link_forgets_clients_that_it_has_known_longest(ends: Ends) -> None:
    for number in range(5000):
        client = Ada()
        client.address = str(number)
        ends.send(Fetch("work"), client)
    assert await ends.answered(5000) == [[]] * 5000
    assert len(ends.far._served.clients) == 4096


@linked
async def test_an_answer_comes_as_soon_as_its_stage_is_reached(ends: Ends) -> None:
    ends.near.submit(OWNED, None, hello(), ends.answers.append, Stage.READY)
    assert await ends.answered(1) == [[Receipt(1, 1, True)]]


@linked
async def test_a_sender_can_follow_its_message_from_the_beginning(ends: Ends) -> None:
    """A consumer waits for the message, and has it before the sender has its answer."""
    seen = list[Kind]()

    def stored(answer: Any) -> None:
        place = answer[0].queue, answer[0].sequence
        ends.near.follow(OWNED, place, lambda what: seen.append(what.kind))

    ends.loop.submit(Fetch("work", wait_ns=LONG_NS), ends.answers.append)
    ends.near.submit(OWNED, None, hello(), stored, Stage.READY)
    await ends.answered(1)
    await ask(ends.loop, Finish(1, 1))
    await until(lambda: seen == [Kind.FETCHED, Kind.SUCCEEDED])
    assert not ends.near.calls


@linked
async def test_a_message_that_its_sender_does_not_follow_is_not_followed(ends: Ends) -> None:
    for _ in range(3):
        ends.near.submit(OWNED, None, hello(), ends.answers.append, Stage.READY)
    ends.near.submit(OWNED, None, Publish("none", [NewMessage(b"x")]), ends.answers.append, Stage.READY)
    await ends.answered(4)
    await until(lambda: not ends.loop.executor.followers.by_place)


@linked
async def test_a_client_that_fails_does_not_take_the_link_with_it(ends: Ends) -> None:
    def fail(_: Any) -> None:
        raise ValueError("a client's own fault")

    ends.near.submit(OWNED, None, Fetch("work"), fail)
    assert await ends.ask(Fetch("work")) == []


async def sent_by_a_stranger(path: Path, *entries: Any) -> bytes:
    """What a worker answers before it closes the link."""
    link = Link(1, {OWNED: a_loop(MemoryLog())})
    server = await asyncio.get_running_loop().create_unix_server(lambda: link, path)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(frame([encode(entry) for entry in entries]))
    read = await reader.read()
    writer.close()
    server.close()
    return read


@pytest.mark.parametrize(
    "entries",
    [(Greet("0.0.1", 0, b"process1", {}),), (Greet(FORM, 0, b"origin", {}), Ask(1, OWNED, 7, Stage.SYNC, hello()))],
    ids=["another release", "a client that was not introduced"],
)
def test_what_no_worker_of_this_release_sends_closes_the_link(tmp_path: Path, entries: tuple[Any, ...]) -> None:
    read = uvloop.run(sent_by_a_stranger(tmp_path / "link", *entries))
    greeted = Frames().receive(read)
    assert [(each.form, each.worker, each.shards) for each in greeted if isinstance(each, Greet)] in (
        [],
        [(FORM, 1, {OWNED: 0})],
    )


# ── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────


@linked
async def test_a_question_is_answered_at_the_other_end(ends: Ends) -> None:
    ends.loop.ask = lambda client, query, reply: reply(JobState(query.job, client.address, {}))  # type: ignore[attr-defined]
    asked: list[Any] = []
    ends.near.ask(OWNED, CLIENT, FindJob("purges", "1"), asked.append)
    await until(lambda: bool(asked))
    assert asked == [JobState("1", CLIENT.address, {})]
    assert not ends.near.calls


@linked
async def test_commands_pass_between_the_parts_of_a_long_answer(ends: Ends) -> None:
    whole = JobState("1", "done", {"text": "x" * (LINK_PART_BYTES * 5)})
    ends.loop.ask = lambda _, __, reply: reply(whole)
    ends.near.ask(OWNED, CLIENT, FindJob("purges", "1"), ends.answers.append)
    ends.send(DescribeQueue("work"))
    described, answer = await ends.answered(2)
    assert (described.name, answer) == ("work", whole)
    assert not ends.near.calls


@linked
async def test_a_question_that_nobody_waits_for_ends_at_the_other_end(ends: Ends) -> None:
    asked: list[Answering] = []

    def never(*_: Any) -> Answering:
        asked.append(Answering(asyncio.ensure_future(asyncio.Event().wait())))  # type: ignore[arg-type]
        return asked[0]

    ends.loop.ask = never
    pending = ends.near.ask(OWNED, CLIENT, FindJob("purges", "1"), ends.answers.append)
    await until(lambda: bool(asked))
    assert pending
    pending.cancel()
    await until(lambda: not asked[0].is_waiting)
    assert not ends.answers


@linked
async def test_a_question_whose_link_is_lost_has_no_answer(ends: Ends) -> None:
    ends.loop.ask = lambda *_: None
    ends.near.ask(OWNED, CLIENT, FindJob("purges", "1"), ends.answers.append)
    ends.far.close()
    assert await ends.answered(1) == [LOST]


@linked
async def test_of_a_job_whose_link_is_lost_nobody_says_that_it_was_not_begun(ends: Ends) -> None:
    ends.loop.ask = lambda *_: None
    ends.near.ask(OWNED, CLIENT, StartPurge("work"), ends.answers.append)
    ends.near.close()
    ends.near.ask(OWNED, CLIENT, StartPurge("work"), ends.answers.append)
    begun, unsent = await ends.answered(2)
    assert (begun.reason, unsent) == (Reason.OUTCOME_UNKNOWN, LOST)


@linked
async def test_a_question_for_a_shard_that_is_elsewhere_is_refused(ends: Ends) -> None:
    ends.near.ask(OWNED + 1, CLIENT, FindJob("purges", "1"), ends.answers.append)
    assert await ends.answered(1) == [Refused(Reason.UNAVAILABLE, "the queue is not in this process")]


def counted(number: int) -> JobState:
    return JobState(str(number), "running", {})


class Counting:
    """Counts as long as it is asked."""

    def __init__(self, last: int = 1 << 62, piece_of: Callable[[int], Any] = counted) -> None:
        self.given, self.last = 0, last
        self.piece_of = piece_of
        self.is_closed = False

    def pull(self, sink: Sink) -> None:
        asyncio.get_running_loop().call_soon(self._give, sink)

    def _give(self, sink: Sink) -> None:
        self.given += 1
        if self.given > self.last:
            sink.end()
        else:
            sink.give(self.piece_of(self.given))

    def finish(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


async def flow_of(ends: Ends, counting: Counting) -> Pieces:
    ends.loop.ask = lambda _, __, reply: reply(Flow(counting))
    ends.near.ask(OWNED, CLIENT, WatchFigures(), ends.answers.append)
    (flow,) = await ends.answered(1)
    return Pieces(flow.source)


@linked
async def test_a_flow_goes_no_faster_than_it_is_taken(ends: Ends) -> None:
    counting = Counting(last=3)
    pieces = await flow_of(ends, counting)
    assert (await anext(pieces)).job == "1"
    assert counting.given == 1
    assert [each.job async for each in pieces] == ["2", "3"]
    await until(lambda: counting.is_closed and not ends.near.calls)


@linked
async def test_a_flow_that_nobody_takes_is_closed_at_the_other_end(ends: Ends) -> None:
    counting = Counting()
    pieces = await flow_of(ends, counting)
    await anext(pieces)
    pieces.close()
    await until(lambda: counting.is_closed)


@linked
async def test_a_flow_whose_link_is_lost_breaks_off(ends: Ends) -> None:
    counting = Counting()
    pieces = await flow_of(ends, counting)
    await anext(pieces)
    ends.far.close()
    with pytest.raises(RequestError):
        await until_the_end(pieces)
    assert counting.is_closed


@linked
async def test_bytes_of_a_flow_arrive_as_they_are_after_its_head(ends: Ends) -> None:
    pieces = [b"", bytes(3 * LINK_PART_BYTES), b"the end"]
    source = Counting(last=len(pieces), piece_of=lambda number: pieces[number - 1])
    ends.loop.ask = lambda _, __, reply: reply(Flow(source, LogRange(1, 2, 3, 4)))
    ends.near.ask(OWNED, CLIENT, ReadLog(0), ends.answers.append)
    (flow,) = await ends.answered(1)
    assert flow.head == LogRange(1, 2, 3, 4)
    assert [each async for each in Pieces(flow.source)] == pieces


@linked
async def test_a_flow_with_a_piece_that_cannot_cross_breaks_off(ends: Ends) -> None:
    pieces = await flow_of(
        ends, counting := Counting(piece_of=lambda number: counted(1) if number == 1 else object())
    )
    assert (await anext(pieces)).job == "1"
    with pytest.raises(RequestError):
        await until_the_end(pieces)
    pieces.close()
    await until(lambda: counting.is_closed)


async def until_the_end(pieces: Pieces) -> None:
    async for _ in pieces:
        pass
