"""Four shards over two workers, used through one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.port import ClientPort
from penstock.cluster.links.link import Link
from penstock.cluster.links.remote_port import RemotePort
from penstock.cluster.routing.router import Router
from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.access import Access, scope_of
from penstock.model.answers import Done, Receipt, Refused
from penstock.model.commands import (
    Command,
    CreateQueue,
    DescribeQueue,
    Draw,
    Fetch,
    Finish,
    FinishMany,
    ListQueues,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishTopics,
    Pull,
    UpdateQueue,
)
from penstock.model.happening import Happening
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Stage
from penstock.storage.memory import MemoryLog
from tests.support.linked import linked_to, told_in
from tests.support.live_loop import shard_loop, until

SHARDS = 4
NAMES = ("a", "b", "c", "d")  # One in each shard. This worker has the shards of `a` and `c`.
LONG_NS = 3600 * SECOND_NS
DEFAULTS = QueueSettings()


class Store:
    def __init__(self, router: Router, link: Link, loops: list[Loop]) -> None:
        self.router, self.link, self.loops = router, link, loops
        self.answers: list[Any] = []

    async def ask(self, command: Command) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.router.submit(command, answered.set_result)
        return await answered

    async def publish(self, queue: str, body: bytes = b"x") -> Receipt:
        (receipt,) = await self.ask(Publish(queue, [NewMessage(body)]))
        assert isinstance(receipt, Receipt)
        return receipt

    def waiting(self) -> int:
        return sum(loop.waiters.count for loop in self.loops)


def sharded(story: Callable[[Store], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A decorator for tests of a store with a queue in each shard."""

    async def run(path: Path) -> None:
        loops = [shard_loop(shard, SHARDS) for shard in range(SHARDS)]
        far = Link(1, {shard: loops[shard] for shard in (1, 3)})
        async with linked_to(far, path) as near:
            ports: list[ClientPort] = [
                RemotePort(shard, near) if shard % 2 else loops[shard] for shard in range(SHARDS)
            ]
            store = Store(
                Router(
                    ShardMap(
                        SHARDS, {"new-a": 0, "none-in-shard-1": 1} | dict(zip(NAMES, range(SHARDS), strict=True))
                    ),
                    ports,
                ),
                near,
                loops,
            )
            for name in NAMES:
                await store.ask(CreateQueue(name, QueueSettings(keep="all")))
            await asyncio.wait_for(story(store), 60)

    return told_in(run, story)


@sharded
async def test_every_queue_is_served_wherever_it_is(store: Store) -> None:
    for name in NAMES:
        receipt = await store.publish(name, name.encode())
        (delivery,) = await store.ask(Fetch(name))
        assert (delivery.body, delivery.queue) == (name.encode(), receipt.queue)
        assert isinstance(await store.ask(Finish(receipt.queue, receipt.sequence)), Done)
        assert (await store.ask(DescribeQueue(name))).kept == 1


@sharded
async def test_each_message_has_a_place_of_its_own(store: Store) -> None:
    places = [await store.publish(name) for name in NAMES]
    assert [place.queue for place in places] == [1, 2, 3, 4]


@sharded
async def test_messages_of_several_shards_are_finished_together(store: Store) -> None:
    for name in NAMES:
        await store.publish(name)
        await store.ask(Fetch(name))
    gone = Refused(Reason.NO_MESSAGE)
    answers = await store.ask(FinishMany([Finish(4, 1), Finish(1, 1), Finish(2, 9), Finish(3, 1)]))
    assert answers == [Done(), Done(), gone, Done()]


@sharded
async def test_all_queues_are_listed(store: Store) -> None:
    listed = await store.ask(ListQueues(offset=1, limit=2))
    assert (listed.total, [queue.name for queue in listed.queues]) == (4, ["b", "c"])


@sharded
async def test_messages_for_topics_in_several_shards_are_answered_in_order(store: Store) -> None:
    messages = [NewMessage(b"x", topics=(f"{name}.new",)) for name in ("d", "a", "d")]
    answer = await store.ask(PublishTopics(messages, DEFAULTS))
    assert [(each.queue, each.sequence) for each in answer] == [(4, 1), (1, 1), (4, 2)]


@sharded
async def test_what_is_half_done_is_asked_again_where_nothing_was_done(store: Store) -> None:
    failed = store.loops[3]
    failed.fail(OSError("the disk is full"))
    messages = [NewMessage(b"x", topics=(name,)) for name in ("a", "d")]
    asked = asyncio.ensure_future(store.ask(PublishTopics(messages, DEFAULTS)))
    await until(lambda: store.loops[0].engine.queues[1].ready == 1)
    failed.revive(failed.engine, MemoryLog(list(failed.log.durable)))  # type: ignore[attr-defined]
    assert [(each.queue, each.sequence) for each in await asked] == [(1, 1), (4, 1)]
    failed.fail(OSError("the disk is full"))
    store.router.ask_again_seconds = 0
    answer = await store.ask(PublishTopics(messages, DEFAULTS))
    assert answer.reason is Reason.OUTCOME_UNKNOWN


@sharded
async def test_publishing_in_turn_ends_with_the_first_refusal(store: Store) -> None:
    publishes = [Publish(name, [NewMessage(b"x")]) for name in ("a", "b", "none", "d")]
    first, second, refused = await store.ask(PublishInTurn(publishes))
    assert (first[0].queue, second[0].queue) == (1, 2)
    assert refused == Refused(Reason.NO_QUEUE, "none")
    assert (await store.ask(DescribeQueue("d"))).messages == 0


@sharded
async def test_a_pull_waits_in_all_shards_until_one_has_a_message(store: Store) -> None:
    for name in NAMES:
        pulled = asyncio.ensure_future(store.ask(Pull("me", [Draw(each) for each in NAMES], wait_ns=LONG_NS)))
        await until(lambda: store.waiting() == 4)
        await store.publish(name, name.encode())
        (drawn,) = (await pulled).drawn
        assert (drawn.queue, drawn.bodies) == (name, [name.encode()])
        await until(lambda: store.waiting() == 0)


@sharded
async def test_a_pull_gets_what_there_is_in_all_shards(store: Store) -> None:
    for name in NAMES:
        await store.publish(name)
    pulled = await store.ask(Pull("me", [Draw(each) for each in NAMES], wait_ns=LONG_NS))
    assert sorted(drawn.queue for drawn in pulled.drawn) == list(NAMES)


@sharded
async def test_a_pull_can_be_given_up_or_cancelled(store: Store) -> None:
    pull, answers = Pull("me", [Draw(each) for each in NAMES], wait_ns=LONG_NS), list[Any]()
    for end in ("give_up", "cancel"):
        pending = store.router.submit(pull, answers.append)
        assert pending
        await until(lambda: store.waiting() == 4)
        assert pending.is_waiting
        getattr(pending, end)()
        await until(lambda: store.waiting() == 0)
    assert [bool(answer) for answer in answers] == [False]


@sharded
async def test_a_message_elsewhere_is_followed(store: Store) -> None:
    receipt, seen = await store.publish("b"), list[Happening]()
    store.router.follow(receipt.queue, receipt.sequence, seen.append)
    await store.ask(Fetch("b"))
    await store.ask(Finish(receipt.queue, receipt.sequence))
    await until(lambda: len(seen) == 2)
    assert [what.kind for what in seen] == [Kind.FETCHED, Kind.SUCCEEDED]
    assert not store.link.calls, "the last event ends it"


@sharded
async def test_a_queue_elsewhere_is_watched(store: Store) -> None:
    woken = list[int]()
    store.router.watch("b", lambda: woken.append(1))
    cancelled = store.router.watch("b", lambda: woken.append(2))
    cancelled.cancel()
    await store.publish("b")
    await until(lambda: bool(woken))
    store.router.watch("b", lambda: woken.append(3))
    await until(lambda: len(woken) == 2)
    assert woken == [1, 3]


@sharded
async def test_a_stage_is_reached_when_all_shards_have(store: Store) -> None:
    store.router.reach(Stage.SYNC, store.answers.append)
    store.router.when(Stage.SYNC, lambda: store.answers.append("when"))
    await until(lambda: len(store.answers) == 2)
    assert store.answers == [Done(), "when"]


@sharded
async def test_without_the_other_worker_its_queues_are_unavailable_and_the_others_are_served(store: Store) -> None:
    woken = list[int]()
    store.router.watch("b", lambda: woken.append(1))
    fetched = asyncio.ensure_future(store.ask(Fetch("b", wait_ns=LONG_NS)))
    await until(lambda: store.waiting() == 1)
    store.link.close()
    assert (await fetched).reason is Reason.UNAVAILABLE
    assert (await store.ask(Publish("d", [NewMessage(b"x")]))).reason is Reason.UNAVAILABLE
    store.router.reach(Stage.SYNC, store.answers.append)
    await until(lambda: bool(store.answers))
    assert store.answers[0].reason is Reason.UNAVAILABLE
    assert await store.publish("c") == Receipt(3, 1, True)
    assert woken == [1], "who watches looks again, and sees that it is unavailable"


class Ada:
    access = Access("ada", [scope_of("consume,publish:a,b,a.*")])
    address = "::1"
    dialect = "nq"


@sharded
async def test_what_a_client_may_do_is_asked_in_each_shard(store: Store) -> None:
    for names in (("a", "b"), ("a", "d")):
        store.router.submit_as(Ada(), Pull("me", [Draw(name) for name in names]), store.answers.append)
    await until(lambda: len(store.answers) == 2)
    assert Refused(Reason.FORBIDDEN, "consume on d") in store.answers
    assert store.router.refusal(Ada(), Fetch("d")) == Refused(Reason.FORBIDDEN, "consume on d")
    assert store.router.refusal(Ada(), Fetch("b")) is None


@sharded
async def test_of_what_a_client_may_not_do_as_a_whole_no_shard_does_a_part(store: Store) -> None:
    publishes = [Publish(name, [NewMessage(b"x")]) for name in ("a", "b", "d")]
    about = [NewMessage(b"x", topics=(f"{name}.new",)) for name in ("a", "d")]
    for command in (PublishInTurn(publishes), PublishTopics(about, DEFAULTS)):
        store.router.submit_as(Ada(), command, store.answers.append)
    await until(lambda: len(store.answers) == 2)
    refused = [answer for answer in store.answers if isinstance(answer, Refused)]
    assert [each.detail for each in refused] == ["publish on d", "publish on d.new"]
    for name in NAMES:
        assert (await store.ask(DescribeQueue(name))).messages == 0


@sharded
async def test_what_a_client_may_not_do_is_forbidden_also_while_a_shard_is_away(store: Store) -> None:
    store.link.close()
    for names in (("d", "a"), ("a", "d")):
        store.router.submit_as(Ada(), Pull("me", [Draw(name) for name in names]), store.answers.append)
    await until(lambda: len(store.answers) == 2)
    assert store.answers == 2 * [Refused(Reason.FORBIDDEN, "consume on d")]


@sharded
async def test_a_queue_that_exists_is_said_before_its_dead_letter_queue_is_missing(store: Store) -> None:
    dead = QueueSettings(redrive_policy=RedrivePolicy(1, "none-in-shard-1"))
    for name, reason in (("a", Reason.QUEUE_EXISTS), ("new-a", Reason.NO_DEAD_LETTER_QUEUE)):
        assert (await store.ask(CreateQueue(name, dead))).reason is reason
    assert (await store.ask(UpdateQueue("none", dead))).reason is Reason.NO_QUEUE
