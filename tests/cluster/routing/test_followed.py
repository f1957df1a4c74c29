"""Messages in shards of other workers that clients of this one follow, over real sockets that are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.broker.services.courier_source import CourierSource
from penstock.broker.services.loans.borrower import Borrower
from penstock.broker.services.loans.lender import Lender
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.message_traces import MessageTraces
from penstock.broker.services.recalls import Recalls
from penstock.broker.writer.loop import Loop
from penstock.cluster.links.link import Link
from penstock.cluster.links.remote_port import RemotePort
from penstock.cluster.routing.followed import Followed, FollowedShard
from penstock.cluster.routing.ports import OwnPort
from penstock.model.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    Fetch,
    Finish,
    NewMessage,
    Publish,
    Redrive,
    Release,
    UpdateQueue,
)
from penstock.model.courier_commands import Recall
from penstock.model.happening import Happening
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Stage
from penstock.storage.memory import MemoryLog
from tests.support.linked import linked_to, told_in
from tests.support.live_loop import a_loop, ask, until

OWNED = 3  # The shard at the far end.


class Ends:
    """The shard at the far end, and the port to it at this end. Its links are made by the test."""

    def __init__(self, loop: Loop, path: Path) -> None:
        self.loop = loop
        self.port = RemotePort(OWNED, Link(0, {}))
        self._shard = FollowedShard(self.port)
        self._path = path
        reads = LogReads(loop)
        recalls = Recalls(loop, MessageTraces(loop, reads))
        self._own = OwnPort(loop, CourierSource(loop, reads), recalls, Borrower(loop), Lender(loop))

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[None]:
        async with linked_to(Link(1, {OWNED: self._own}), self._path) as self.port.link:
            yield
        (self._path / "link").unlink()

    async def publish(self) -> None:
        await ask(self.loop, Publish("work", [NewMessage(b"hello")]))

    async def give_back(self, sequence: int) -> None:
        await ask(self.loop, Fetch("work"))
        await ask(self.loop, Release(1, sequence))

    async def follow(self, sequence: int) -> tuple[Followed, list[Kind]]:
        """What is heard from when the far end knows of it."""
        followed, heard = self.begin_to_follow(sequence)
        await until(lambda: (1, sequence) in self.loop.executor.followers.by_place)
        return followed, heard

    async def follow_stored(self) -> list[Kind]:
        """What is heard of the first message, from when it is known here that it is stored."""
        _, heard = await self.follow(1)
        await self.stored()
        return heard

    async def stored(self) -> None:
        heard: list[Any] = []
        self.port.reach(Stage.SYNC, heard.append)
        await until(lambda: bool(heard))

    def begin_to_follow(self, sequence: int) -> tuple[Followed, list[Kind]]:
        heard: list[Kind] = []

        def report(what: Happening) -> None:
            heard.append(what.kind)

        return Followed([self._shard], 0, (1, sequence), report), heard


def told(story: Callable[[Ends], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    async def run(path: Path) -> None:
        loop = a_loop(MemoryLog())
        await ask(loop, CreateQueue("work", QueueSettings()))
        await asyncio.wait_for(story(Ends(loop, path)), 60)

    return told_in(run, story)


ONCE = [Kind.FETCHED, Kind.RETRIED]


@told
async def test_what_happened_while_there_was_no_link_is_reported_first(ends: Ends) -> None:
    await ends.publish()
    async with ends.linked():
        _, heard = await ends.follow(1)
        await ends.give_back(1)
        await until(lambda: heard == ONCE)
    await ends.give_back(1)
    async with ends.linked():
        await until(lambda: heard == ONCE * 2)
        await ask(ends.loop, Fetch("work"))
        await ask(ends.loop, Finish(1, 1))
        await until(lambda: heard == [*ONCE, *ONCE, Kind.FETCHED, Kind.SUCCEEDED])


@told
async def test_a_message_that_nobody_has_taken_meanwhile_is_followed_further(ends: Ends) -> None:
    await ends.publish()
    async with ends.linked():
        heard = await ends.follow_stored()
    async with ends.linked():
        await until(lambda: bool(ends.loop.executor.followers.by_place))
        await ends.give_back(1)
        await until(lambda: heard == ONCE)


@told
async def test_a_message_that_may_not_be_stored_is_not_followed_again_and_neither_is_one_of_no_interest(
    ends: Ends,
) -> None:
    """Another message could have its place."""
    for _ in range(3):
        await ends.publish()
    async with ends.linked():
        followed, heard_until_canceled = await ends.follow(1)
        _, heard = await ends.follow(2)
        await ends.give_back(1)
        await until(lambda: heard_until_canceled == ONCE)
        await ask(ends.loop, Fetch("work"))
        await ask(ends.loop, Finish(1, 1))
        await ends.give_back(2)
        await until(lambda: heard == ONCE)
        _, heard_of_third = ends.begin_to_follow(3)
    followed.cancel()
    async with ends.linked():
        await ends.give_back(2)
        await until(lambda: heard == ONCE * 2)
        assert list(ends.loop.executor.followers.by_place) == [(1, 2)]
        assert heard_of_third == []


@told
async def test_one_message_is_tried_for_all_while_their_shard_is_not_served(ends: Ends) -> None:
    heard: list[list[Kind]] = []
    async with ends.linked():
        for sequence in range(1, 51):
            await ends.publish()
            heard.append((await ends.follow(sequence))[1])
        await ends.stored()
    tried: list[Command] = []
    submit = ends.port.submit

    def noted(command: Command, reply: Any, stage: Stage = Stage.SYNC) -> Any:
        tried.append(command)
        return submit(command, reply, stage)

    ends.port.submit = noted  # type: ignore[method-assign]
    await until(lambda: len(tried) >= 2)
    assert len({command.sequence for command in tried if isinstance(command, Recall)}) == len(tried) == 2
    async with ends.linked():
        await until(lambda: len(ends.loop.executor.followers.by_place) == 50)
        await ends.give_back(1)
        await until(lambda: heard[0] == ONCE)
        assert len(tried) <= 53


@told
async def test_a_dead_letter_that_is_finished_in_the_end_is_reported_as_such(ends: Ends) -> None:
    await ask(ends.loop, CreateQueue("dead", QueueSettings()))
    await ask(ends.loop, UpdateQueue("work", QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))))
    await ends.publish()
    async with ends.linked():
        heard = await ends.follow_stored()
    await ask(ends.loop, Fetch("work"))
    async with ends.linked():
        await until(lambda: heard == [Kind.DEAD_LETTERED])
    await ask(ends.loop, Finish(1, 1))
    async with ends.linked():
        await until(lambda: heard == [Kind.DEAD_LETTERED, Kind.SUCCEEDED])


@told
async def test_a_message_that_was_moved_and_then_taken_is_reported_as_both(ends: Ends) -> None:
    await ask(ends.loop, CreateQueue("later", QueueSettings()))
    await ends.publish()
    async with ends.linked():
        heard = await ends.follow_stored()
    await ask(ends.loop, Redrive("work", [1], "later"))
    async with ends.linked():
        await until(lambda: heard == [Kind.MOVED])
    await ask(ends.loop, Fetch("later"))
    async with ends.linked():
        await until(lambda: heard == [Kind.MOVED, Kind.FETCHED])


@told
async def test_a_message_whose_queue_was_deleted_is_reported_as_deleted(ends: Ends) -> None:
    await ends.publish()
    async with ends.linked():
        heard = await ends.follow_stored()
    await ask(ends.loop, DeleteQueue("work"))
    async with ends.linked():
        await until(lambda: heard == [Kind.DELETED])
