"""Streams of the Event Log: a piece each time the client has taken the last, signs of life, and all kinds of ends."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from penstock.broker.services.event_streams import EventStreams
from penstock.broker.services.log_reads import LogReads
from penstock.broker.writer.loop import Loop
from penstock.config.config import EventsConfig
from penstock.dialects.native.event_text import EventStreamText, EventWriter
from penstock.dialects.wire.flows import Rendered
from penstock.dialects.wire.http import Request
from penstock.errors import Fault, RequestError
from penstock.model.commands import CreateQueue, NewMessage, Publish
from penstock.model.event_log import DescribeLog, From, LogRange, ReadEvents, ReadLog
from penstock.model.settings import QueueSettings
from penstock.model.streams import Source
from penstock.storage.directory import new_identity
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask

CLIENT = Request(b"GET", b"/", {})


class Waiting(set[asyncio.Event]):
    """The followers at the end of the log; says when there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.has_some = asyncio.Event()

    def add(self, follower: asyncio.Event) -> None:
        super().add(follower)
        self.has_some.set()


class Client:
    """Takes the pieces of a stream, each when it asks for it."""

    def __init__(self, source: Source) -> None:
        self.taken: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._source = source

    def give(self, data: bytes) -> None:
        if data:
            self.taken.put_nowait(data)
        else:
            self._source.pull(self)

    def end(self) -> None:
        self.taken.put_nowait(None)
        self._source.close()

    def cut_off(self) -> None:
        self.fail()

    def fail(self) -> None:
        self.taken.put_nowait(b"failed")

    async def next(self) -> bytes | None:
        self._source.pull(self)
        return await asyncio.wait_for(self.taken.get(), 60)


class Rig:
    def __init__(self, **settings: Any) -> None:
        self.loop: Loop = a_loop(MemoryLog())
        self.reads = LogReads(self.loop)
        identity = new_identity()
        event_writer = partial(EventWriter, identity.message_ids())
        self.streams = EventStreams(self.loop, self.reads, event_writer, EventsConfig(**settings), identity)
        self.streams.waiting = self.waiting = Waiting()
        self.streams.start()

    async def publish(self, body: bytes) -> None:
        await ask(self.loop, Publish("work", [NewMessage(body)], QueueSettings()))

    async def client(self, *, sent_events: bool = False, **query: Any) -> tuple[Client, Source]:
        flow = await self.streams.events(CLIENT, ReadEvents(**query))
        source = Rendered(flow.source, EventStreamText(sent_events=sent_events, shards=1))
        return Client(source), source

    async def close(self) -> None:
        await self.streams.close()
        await self.reads.close()


def states(piece: bytes | None) -> str:
    assert piece is not None
    return "".join(json.loads(line)["state"] for line in piece.splitlines())


def test_a_stream_ends_with_what_was_there_when_it_began() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.publish(b"a")
        client, _ = await rig.client()
        await rig.publish(b"b")
        assert states(await client.next()) == "LQ"
        assert await client.next() is None
        assert rig.streams.open == 0
        await rig.close()

    asyncio.run(story())


def test_a_follower_is_woken_by_a_commit_and_ends_when_it_is_asked_to() -> None:
    async def story() -> None:
        rig = Rig()
        await ask(rig.loop, CreateQueue("work", QueueSettings()))
        client, source = await rig.client(follow=True, start="latest")
        piece = asyncio.create_task(client.next())
        await rig.waiting.has_some.wait()
        await rig.publish(b"a")
        assert states(await piece) == "LQ"
        source.finish()
        assert await client.next() is None
        await rig.close()

    asyncio.run(story())


def test_a_follower_without_events_gets_a_sign_of_life() -> None:
    async def story() -> None:
        rig = Rig(heartbeat_seconds=0.01)
        await rig.publish(b"a")
        client, source = await rig.client(follow=True, start="latest")
        assert [await client.next(), await client.next()] == [b"\n", b"\n"]
        source.close()
        assert rig.streams.open == 0
        await rig.close()

    asyncio.run(story())


def test_a_reader_that_finds_nothing_learns_how_far_it_has_come() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.publish(b"hay")
        client, _ = await rig.client(text=b"needle", sent_events=True)
        assert await client.next() == b"id: 0\n\n"
        assert await client.next() == b"id: %d\n\n" % rig.reads.view().end.offset
        assert await client.next() is None
        await rig.close()

    asyncio.run(story())


def test_a_reader_that_is_closed_while_it_waits_is_forgotten() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.publish(b"a")
        client, source = await rig.client(follow=True, start="latest")
        source.pull(client)
        await rig.waiting.has_some.wait()
        source.close()
        await asyncio.sleep(0)
        assert not rig.streams.waiting
        await rig.close()

    asyncio.run(story())


def test_the_limit_ends_a_follower() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.publish(b"a")
        client, _ = await rig.client(follow=True, limit=1)
        assert states(await client.next()) == "L"
        assert await client.next() is None
        await rig.close()

    asyncio.run(story())


def test_a_reader_past_the_end_or_past_the_limit_is_refused_and_not_counted() -> None:
    async def story() -> None:
        rig = Rig(readers_max=1)
        await rig.publish(b"a")
        with pytest.raises(RequestError) as refused:
            await rig.client(start=From(1000))
        assert refused.value.error is Fault.PAST_END
        assert refused.value.facts == {"end": rig.loop.log.end.offset}
        _, source = await rig.client()
        with pytest.raises(RequestError) as refused:
            await rig.client()
        assert refused.value.error is Fault.READER_LIMIT
        source.close()
        assert rig.streams.open == 0
        await rig.close()

    asyncio.run(story())


def test_a_range_is_the_bytes_of_whole_batches() -> None:
    async def story() -> None:
        rig = Rig()
        for body in (b"a", b"b"):
            await rig.publish(body)
        flow = await rig.streams.batches(CLIENT, ReadLog(0))
        client, read, found = Client(flow.source), b"", flow.head
        assert isinstance(found, LogRange)
        while piece := await client.next():
            read += piece
        assert len(read) == found.bytes
        assert (found.first, found.next) == (0, found.end) == (0, rig.loop.log.end.offset)
        assert dict(rig.streams.state())["penstock_event_bytes_total"] == [((), len(read))]
        await rig.close()

    asyncio.run(story())


def test_the_description_has_the_names_of_everything() -> None:
    async def story() -> None:
        rig = Rig()
        await ask(rig.loop, Publish("work", [NewMessage(b"x", content_type="text/plain")], QueueSettings()))
        log = await rig.streams.describe(CLIENT, DescribeLog())
        assert log.queues == {1: "work"}
        assert list(log.texts.values()) == ["text/plain"]
        assert (log.earliest, log.end) == (0, rig.loop.log.end.offset)
        await rig.close()

    asyncio.run(story())
