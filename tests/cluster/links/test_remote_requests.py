"""Whole requests over a link, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.cluster.links.calls import Asking
from penstock.cluster.links.link import Link
from penstock.cluster.links.remote_requests import RespondTo
from penstock.dialects.wire.http import Request, Response, Stream
from penstock.errors import Reason
from penstock.limits import LINK_BYTES_MAX, LINK_PART_BYTES
from penstock.model.access import NOBODY
from penstock.model.answers import Refused
from penstock.model.client import Pending
from penstock.model.commands import CreateQueue, DescribeQueue
from penstock.model.settings import QueueSettings
from penstock.model.streams import Sink
from penstock.storage.memory import MemoryLog
from tests.support.linked import linked_to, told_in
from tests.support.live_loop import a_loop, ask, until

OWNED = 3  # The shard at the far end.
LONG = bytes(range(256)) * 4096 + b"end"
assert len(LONG) > 3 * LINK_PART_BYTES


class Numbers:
    """A stream of the numbers from 1 to `last`, one a piece; then it fails or ends."""

    def __init__(self, last: int, *, fails: bool = False) -> None:
        self.last, self.fails = last, fails
        self.pulled, self.is_closed, self.is_finished = 0, False, False

    def pull(self, sink: Sink) -> None:
        self.pulled += 1
        asyncio.get_running_loop().call_soon(self._give, sink)

    def _give(self, sink: Sink) -> None:
        if self.is_finished or self.pulled > self.last:
            sink.fail() if self.fails else sink.end()
        else:
            sink.give(b"%d " % self.pulled)

    def finish(self) -> None:
        self.is_finished = True

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


class Far:
    """The application of the shard: answers what the test has chosen, or when it chooses."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Response | Stream | None = Response(200, b"short")
        self.respond: RespondTo | None = None
        self.ended = list[str]()

    def ask(self, request: Request, respond: RespondTo) -> Pending | None:
        self.requests.append(request)
        if self.answer:
            respond(self.answer)
        self.respond = respond
        return self

    def cancel(self) -> None:
        self.ended.append("cancelled")

    def give_up(self) -> None:
        self.ended.append("given up")


class Taken:
    """What the client of a stream has taken."""

    def __init__(self) -> None:
        self.data, self.end_seen = b"", ""
        self.given = 0

    def give(self, data: bytes) -> None:
        self.data += data
        self.given += 1

    def end(self) -> None:
        self.end_seen = "ended"

    def cut_off(self) -> None:
        self.fail()

    def fail(self) -> None:
        self.end_seen = "failed"


class Ends:
    def __init__(self, near: Link, far: Link, application: Far, loop: Any) -> None:
        self.near, self.far, self.application, self.loop = near, far, application, loop
        self.answers: list[Any] = []

    def send(self, body: bytes = b"", **fields: Any) -> Pending | None:
        request = Request(b"POST", b"/v1/x?y=1", {b"accept": b"a", b"authorization": b"Bearer secret"}, body)
        for name, value in fields.items():
            setattr(request, name, value)
        return self.near.request(OWNED, request, self.answers.append)

    async def answered(self, count: int = 1) -> Any:
        await until(lambda: len(self.answers) >= count)
        return self.answers[-1]

    async def all_of(self, stream: Stream, taken: Taken) -> Taken:
        while not taken.end_seen:
            before = taken.given
            stream.source.pull(taken)
            await until(lambda: taken.given > before or bool(taken.end_seen))  # noqa: B023
        return taken


def linked(story: Callable[[Ends], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A decorator for tests of two workers with a link."""

    async def run(path: Path) -> None:
        loop, application = a_loop(MemoryLog()), Far()
        await ask(loop, CreateQueue("work", QueueSettings()))
        asking = Asking()
        asking.room = loop.room
        far = Link(1, {OWNED: loop}, requests={OWNED: application}, asking=asking)
        async with linked_to(far, path) as near:
            await asyncio.wait_for(story(Ends(near, far, application, loop)), 60)

    return told_in(run, story)


@linked
async def test_a_request_arrives_as_it_was_sent_without_its_secrets(ends: Ends) -> None:
    ends.send(b"body", access=NOBODY, certificate="ada", cut=True)
    assert await ends.answered() == Response(200, b"short")
    (request,) = ends.application.requests
    assert (request.method, request.target, request.headers) == (b"POST", b"/v1/x?y=1", {b"accept": b"a"})
    assert (request.body, request.cut, request.certificate) == (b"body", True, "ada")
    assert request.access is NOBODY
    assert request.is_identified
    assert ends.near.unanswered_bytes == 0


@linked
async def test_long_bodies_cross_in_parts(ends: Ends) -> None:
    ends.application.answer = Response(201, LONG, b"A: b\r\n")
    ends.send(LONG)
    stream = await ends.answered()
    assert (stream.status, stream.headers, stream.length, stream.endless) == (201, b"A: b\r\n", len(LONG), False)
    taken = await ends.all_of(stream, Taken())
    assert (taken.data, taken.end_seen) == (LONG, "ended")
    assert taken.given == -(-len(LONG) // LINK_PART_BYTES)
    assert ends.application.requests[0].body == LONG
    assert not ends.near.calls


@linked
async def test_a_long_body_takes_room_until_it_is_taken_or_others_need_the_room(ends: Ends) -> None:
    room = ends.loop.room
    ends.application.answer = Response(200, LONG)
    ends.send()
    stream = await ends.answered()
    assert room.bytes == len(LONG)
    await ends.all_of(stream, Taken())
    await until(lambda: room.bytes == 0)
    ends.send()
    stream = await ends.answered(2)
    while room.bytes:
        room._close_greediest(0)
    taken = Taken()
    stream.source.pull(taken)
    await until(lambda: bool(taken.end_seen))
    assert taken.end_seen == "failed"


@linked
async def test_a_command_does_not_wait_for_a_long_body(ends: Ends) -> None:
    ends.send(bytes(LINK_BYTES_MAX // 2))
    answers = list[Any]()
    ends.near.submit(OWNED, None, DescribeQueue("work"), answers.append)
    await until(lambda: bool(answers))
    assert not ends.answers
    await ends.answered()


@linked
async def test_more_than_a_link_can_carry_is_refused(ends: Ends) -> None:
    ends.application.answer = None
    ends.send(bytes(LINK_BYTES_MAX))
    ends.send(b"x")
    assert ends.answers == [Refused(Reason.UNAVAILABLE, "the process that has this queue does not keep up")]
    await until(lambda: ends.application.respond is not None)
    assert ends.application.respond is not None
    ends.application.respond(Response(200))
    await ends.answered(2)
    assert ends.near.unanswered_bytes == 0


@linked
async def test_a_stream_goes_no_faster_than_its_client_reads(ends: Ends) -> None:
    numbers = Numbers(3)
    ends.application.answer = Stream(200, b"", numbers, endless=True)
    ends.send()
    stream, taken = await ends.answered(), Taken()
    assert stream.endless
    stream.source.pull(taken)
    await until(lambda: taken.given == 1)
    assert numbers.pulled == 1
    await ends.all_of(stream, taken)
    assert (taken.data, taken.end_seen) == (b"1 2 3 ", "ended")
    await until(lambda: numbers.is_closed)


@linked
async def test_a_stream_that_fails_fails_at_the_client(ends: Ends) -> None:
    ends.application.answer = Stream(200, b"", Numbers(1, fails=True))
    ends.send()
    taken = await ends.all_of(await ends.answered(), Taken())
    assert (taken.data, taken.end_seen) == (b"1 ", "failed")


@linked
async def test_a_stream_ends_early_if_it_is_asked_to(ends: Ends) -> None:
    ends.application.answer = Stream(200, b"", Numbers(1000), endless=True)
    ends.send()
    stream = await ends.answered()
    stream.source.finish()
    assert (await ends.all_of(stream, Taken())).data == b""


@linked
async def test_a_stream_is_closed_when_its_client_goes(ends: Ends) -> None:
    numbers = Numbers(1000)
    ends.application.answer = Stream(200, b"", numbers)
    ends.send()
    (await ends.answered()).source.close()
    await until(lambda: numbers.is_closed)
    assert not ends.near.calls


@linked
async def test_a_request_that_waits_is_cancelled_or_hurried(ends: Ends) -> None:
    ends.application.answer = None
    pending = ends.send(b"body")
    assert pending
    pending.give_up()
    pending.cancel()
    await until(lambda: ends.application.ended == ["given up", "cancelled"])
    assert ends.near.unanswered_bytes == 0


@linked
async def test_a_stream_that_comes_too_late_is_closed(ends: Ends) -> None:
    ends.application.answer = None
    pending = ends.send()
    assert pending
    await until(lambda: ends.application.respond is not None)
    pending.cancel()
    await until(lambda: bool(ends.application.ended))
    numbers = Numbers(1)
    assert ends.application.respond
    ends.application.respond(Stream(200, b"", numbers))
    assert numbers.is_closed


@linked
async def test_a_lost_link_answers_requests_and_breaks_streams(ends: Ends) -> None:
    ends.application.answer = Stream(200, b"", Numbers(1000), endless=True)
    ends.send()
    stream, taken = await ends.answered(), Taken()
    ends.application.answer = None
    ends.send(method=b"GET")
    ends.far.close()
    lost = await ends.answered(2)
    assert lost.reason is Reason.UNAVAILABLE
    assert (await ends.all_of(stream, taken)).end_seen == "failed"
    ends.send()
    assert ends.answers[2] == lost, "it was not sent"


@linked
async def test_a_lost_link_does_not_refuse_what_may_have_been_done(ends: Ends) -> None:
    ends.application.answer = None
    ends.send(method=b"POST")
    ends.send(method=b"GET", target=b"/v1/channels/wall/messages?max=2")
    ends.send(method=b"GET", target=b"/v1/channels/wall")
    ends.far.close()
    await ends.answered(3)
    unknown, unavailable = Reason.OUTCOME_UNKNOWN, Reason.UNAVAILABLE
    assert [answer.reason for answer in ends.answers] == [unknown, unknown, unavailable]


@linked
async def test_a_shard_that_is_elsewhere_is_unavailable(ends: Ends) -> None:
    ends.near.request(OWNED + 1, Request(b"GET", b"/", {}), ends.answers.append)
    assert (await ends.answered()).reason is Reason.UNAVAILABLE
