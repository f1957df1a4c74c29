"""Commands by id reach a message that has left the shard in its id."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import product
from typing import Any

from penstock.cluster.links.codec import Introduce
from penstock.cluster.routing.router import Router
from penstock.errors import Reason
from penstock.model.access import Access, scope_of
from penstock.model.answers import Delivery, Discarded, Done, LeasedUntil, Refused
from penstock.model.client import Client
from penstock.model.commands import (
    Command,
    Delete,
    Extend,
    Fetch,
    Finish,
    FinishMany,
    NewMessage,
    Publish,
    Redrive,
    Settle,
    SettleMany,
)
from penstock.model.courier_commands import Locate
from penstock.model.settings import RedrivePolicy
from penstock.model.values import Stage
from tests.support.live_loop import until
from tests.support.live_shards import LiveShards

HOMES = {"a": 0, "dead": 1, "far": 2}


class Store:
    def __init__(self, shards: LiveShards) -> None:
        self.shards = shards

    async def ask(self, command: Command, client: Client | None = None, before_look: Step | None = None) -> Any:
        """`before_look`: what happens before each time that a shard is asked where a message is."""
        ports: list[Any] = [shard.port for shard in self.shards.shards]
        if before_look:
            ports = [_Asked(port, before_look) for port in ports]
        router = Router(self.shards.map, ports)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if client:
            router.submit_as(client, command, answered.set_result)
        else:
            router.submit(command, answered.set_result)
        return await answered

    async def dead_letters(self, count: int) -> list[Delivery]:
        """Messages of `a` that have arrived in `dead`, as they were delivered in `a`."""
        await self.ask(Publish("a", [NewMessage(b"%d" % each) for each in range(count)]))
        delivered: list[Delivery] = list(await self.ask(Fetch("a", count)))
        for each in delivered:
            assert await self.ask(Settle(each.queue, each.sequence, "retry")) == Done()
        await until(lambda: self.shards.bodies("dead").total() == count)
        return delivered

    async def move(self, source: str, target: str) -> None:
        """Move the one message of a queue to another one."""
        queue = self.shards.of(source).loop.engine.queue(source)
        assert queue is not None
        there = [each for each in range(1, queue.last_sequence + 1) if queue.rows.get(each)]
        await self.ask(Redrive(source, there, to=target))
        await until(lambda: self.shards.bodies(target).total() == 1)


Step = Callable[[], Awaitable[None]]


class _Asked:
    """A port of a shard in a world that does not stand still."""

    def __init__(self, port: Any, before_look: Step) -> None:
        self._port = port
        self._before_look = before_look
        self._looks: set[asyncio.Task[None]] = set()

    def submit(self, command: Command, reply: Any, stage: Stage = Stage.SYNC) -> Any:
        if not isinstance(command, Locate):
            return self._port.submit(command, reply, stage)
        look = asyncio.create_task(self._look(command, reply, stage))
        self._looks.add(look)
        return None

    async def _look(self, command: Command, reply: Any, stage: Stage) -> None:
        await self._before_look()
        self._port.submit(command, reply, stage)


def live(story: Callable[[Store], Awaitable[None]]) -> Callable[[], None]:
    async def run() -> None:
        shards = LiveShards(3, HOMES)
        await shards.create("dead")
        await shards.create("far")
        await shards.create("a", redrive_policy=RedrivePolicy(1, "dead"))
        try:
            async with asyncio.timeout(100):
                await story(Store(shards))
        finally:
            await shards.end()

    def test() -> None:
        asyncio.run(run())

    test.__name__ = getattr(story, "__name__", "test")
    return test


@live
async def test_a_dead_letter_is_finished_by_its_id(store: Store) -> None:
    [message] = await store.dead_letters(1)
    [dead] = await store.ask(Fetch("dead"))
    assert (dead.queue, dead.sequence) == (message.queue, message.sequence)
    assert isinstance(await store.ask(Extend(dead.queue, dead.sequence, 10**9)), LeasedUntil)
    assert await store.ask(Finish(dead.queue, dead.sequence)) == Done()
    assert not store.shards.bodies("dead")
    refused = await store.ask(Finish(dead.queue, dead.sequence))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.NO_MESSAGE


@live
async def test_of_several_outcomes_of_one_message_the_first_counts(store: Store) -> None:
    await store.ask(Publish("a", [NewMessage(b"1")]))
    (message,) = await store.ask(Fetch("a"))
    place = (message.queue, message.sequence)
    outcomes = [Settle(*place, "retry"), Settle(*place, "success")]
    assert await store.ask(SettleMany(outcomes)) == [Done(), Discarded()]
    await until(lambda: store.shards.bodies("dead").total() == 1)


@live
async def test_of_several_outcomes_of_one_message_elsewhere_the_first_that_is_not_refused_counts(
    store: Store,
) -> None:
    message, other = await store.dead_letters(2)
    place, other_place = (message.queue, message.sequence), (other.queue, other.sequence)
    outcomes = [Settle(*place, "retry", delivery=9), Settle(*other_place), Settle(*place), Settle(*place, "invalid")]
    answers = await store.ask(SettleMany(outcomes))
    assert [type(each) for each in answers] == [Refused, Done, Done, Discarded]
    assert answers[0].reason is Reason.LEASE_GONE
    assert not store.shards.bodies("dead")


@live
async def test_some_of_several_messages_are_elsewhere(store: Store) -> None:
    first, second = await store.dead_letters(2)
    await store.ask(Publish("a", [NewMessage(b"here")]))
    [here] = await store.ask(Fetch("a"))
    places = [(each.queue, each.sequence) for each in (first, here, second)]
    answers = await store.ask(FinishMany([Finish(*place) for place in [*places, (1, 99)]]))
    assert [isinstance(each, Done) for each in answers] == [True, True, True, False]
    assert not store.shards.bodies("dead") + store.shards.bodies("a")
    settled = await store.ask(SettleMany([Settle(*place) for place in places]))
    assert settled == [Discarded()] * 3


@live
async def test_a_message_is_found_after_two_moves(store: Store) -> None:
    [message] = await store.dead_letters(1)
    await store.ask(Redrive("dead", [1], to="far"))
    await until(lambda: store.shards.bodies("far").total() == 1)
    assert await store.ask(Delete(message.queue, message.sequence)) == Done()
    assert not store.shards.bodies("far")


def moves() -> Iterator[tuple[str, ...]]:
    """All ways of a message that begins as a dead letter and moves up to three times, each time to another shard."""
    for count in range(1, 4):
        for way in product(HOMES, repeat=count):
            if all(here != there for here, there in zip(("dead", *way), way, strict=False)):
                yield way


@live
async def test_a_message_that_moves_while_it_is_looked_for_is_found_or_the_client_tries_again(store: Store) -> None:
    outcomes: Counter[bool] = Counter()
    for way in moves():
        [message] = await store.dead_letters(1)
        left, at = deque(way), "dead"

        async def move_on(left: deque[str] = left) -> None:
            nonlocal at
            if left:
                source, at = at, left.popleft()
                await store.move(source, at)

        settle = Settle(message.queue, message.sequence)
        answer = await store.ask(settle, before_look=move_on)
        outcomes[answer == Done()] += 1
        if answer != Done():
            assert isinstance(answer, Refused), (way, answer)
            assert answer.reason is Reason.UNAVAILABLE
            assert await store.ask(settle) == Done()
        assert not store.shards.bodies(at), way
        assert await store.ask(settle) == Discarded()
    assert outcomes[True] > len([*moves()]) / 2


@live
async def test_a_message_on_its_way_is_not_answered_for(store: Store) -> None:
    courier = store.shards.of("dead").courier
    await courier.close()
    await store.ask(Publish("a", [NewMessage(b"1")]))
    [message] = await store.ask(Fetch("a"))
    await store.ask(Settle(message.queue, message.sequence, "retry"))
    refused = await store.ask(Delete(message.queue, message.sequence))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.UNAVAILABLE
    courier.start()
    await until(lambda: store.shards.bodies("dead").total() == 1)
    assert await store.ask(Delete(message.queue, message.sequence)) == Done()


@live
async def test_who_may_not_use_the_queue_in_the_id_may_not_use_the_message_elsewhere(store: Store) -> None:
    [message] = await store.dead_letters(1)
    for scope, reason in (("consume:other", Reason.NO_MESSAGE), ("read:a", Reason.FORBIDDEN)):
        stranger = Introduce(1, Access("stranger", [scope_of(scope)]), "", "")
        refused = await store.ask(Finish(message.queue, message.sequence), stranger)
        assert isinstance(refused, Refused)
        assert refused.reason is reason
    assert store.shards.bodies("dead").total() == 1
