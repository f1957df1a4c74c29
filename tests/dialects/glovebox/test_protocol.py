"""Glovebox sessions on a live loop with a log in memory: what goes in as frames, and what comes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialects.glovebox import session as glovebox_session
from penstock.dialects.glovebox.protocol import Glovebox
from penstock.dialects.wire.conversation import Cancelable, Conversation
from penstock.errors import Reason
from penstock.limits import BODY_BYTES_MAX, FETCH_BYTES_MAX, GATHERED_MAX, SECOND_NS
from penstock.model.answers import Answer
from penstock.model.commands import (
    Command,
    CreateQueue,
    DescribeQueue,
    Fetch,
    FinishMany,
    NewMessage,
    Publish,
    Release,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Stage
from penstock.server.config import GloveboxConfig
from penstock.server.shells.peer import LoopPeer
from penstock.server.writer.loop import Loop
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask


class Client(LoopPeer):
    """One connection to a glovebox, from both its ends: what the client says and hears, and the shell between."""

    def __init__(self, house: House, **headers: str) -> None:
        self.choked = False
        self.commands: list[Command] = []
        self.closed_because = ""
        self.acknowledged = 0
        super().__init__(house.loop)
        self._heard: asyncio.Queue[dict[str, Any] | bytes] = asyncio.Queue()
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.talk: Conversation = house.glovebox.connect(self, named)
        self.talk.opened()

    # The client

    def say(self, *requests: dict[str, Any]) -> None:
        """Frames that come in one read."""
        for request in requests:
            self.talk.received(json.dumps(request).encode())
        self.settle()

    def settle(self) -> None:
        self.talk.settle()  # type: ignore[attr-defined]

    async def hear(self) -> Any:
        return await asyncio.wait_for(self._heard.get(), 10)

    async def hear_all(self, count: int) -> list[Any]:
        return [await self.hear() for _ in range(count)]

    @property
    def unheard(self) -> int:
        return self._heard.qsize()

    def lose(self) -> None:
        self.talk.closed()

    # The shell

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        self._heard.put_nowait(frame if binary else json.loads(frame))

    def send_all(self, frames: list[bytes], *, binary: bool = False) -> None:
        for frame in frames:
            self.send(frame, binary=binary)

    def acknowledge(self) -> None:
        self.acknowledged += 1

    def close(self, reason: str) -> None:
        self.closed_because = reason

    def submit(
        self, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None:
        self.commands.append(command)
        return super().submit(command, reply, stage)


class House:
    """A loop with a queue named work, and a glovebox in front of it."""

    def __init__(self, loop: Loop, **bounds: Any) -> None:
        self.loop = loop
        self._ids = 1000
        self.glovebox = Glovebox(GloveboxConfig(**bounds), loop.waiting, self._next_id)

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    async def client(self, **headers: str) -> Client:
        """A connection whose hello has been heard."""
        client = Client(self, **headers)
        assert (await client.hear())["type"] == "hello"
        return client

    async def fill(self, *bodies: str | bytes, queue: str = "work") -> None:
        messages = [NewMessage(body.encode() if isinstance(body, str) else body) for body in bodies]
        await ask(self.loop, Publish(queue, messages))

    async def settled(self) -> None:
        await until(lambda: self.loop.idle)
        await asyncio.sleep(0)

    async def leased(self, queue: str = "work") -> int:
        answer = await ask(self.loop, DescribeQueue(queue))
        leased: int = answer.leased
        return leased


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - A turn, not a time.
        await asyncio.sleep(0)


Story = Callable[[House], Coroutine[Any, Any, None]]


def bounded(**bounds: Any) -> Callable[[Story], Callable[[], None]]:
    """A story told in a house with these bounds."""
    return partial(live, bounds=bounds)


def live(story: Story, bounds: dict[str, Any] | None = None) -> Callable[[], None]:
    def run() -> None:
        async def tell() -> None:
            house = House(a_loop(MemoryLog()), **(bounds or {}))
            await ask(house.loop, CreateQueue("work", QueueSettings()))
            await asyncio.wait_for(story(house), 20)

        asyncio.run(tell())

    run.__name__ = story.__name__
    run.__doc__ = story.__doc__
    return run


def post(message: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"type": "post", "queue": "work", "message": message, "notify": ["sync"], "label": 0} | more


def fetch(**more: Any) -> dict[str, Any]:
    return {"type": "fetch", "queue": "work"} | more


def finish(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    place = {"sequence": message["sequence"], "shard": message["shard"]}
    return {"type": "finish", "queue": "work"} | place | more


def notice(label: int, stage: str) -> dict[str, Any]:
    return {"type": "notice", "label": label, "notice": stage}


# ── What comes together goes on together ──────────────────────────────────────────────────────────────────────


@live
async def test_posts_that_come_together_are_one_command_with_a_notice_each(house: House) -> None:
    client = await house.client()
    client.say(*[post(f"body {label}", label=label) for label in range(5)], post(notify=[]))
    assert [type(command) for command in client.commands] == [Publish]
    assert await client.hear_all(5) == [notice(label, "sync") for label in range(5)]
    await house.settled()
    assert client.unheard == 0


@live
async def test_posts_to_different_queues_and_very_many_are_several_commands(house: House) -> None:
    client = await house.client()
    client.say(post(), post(queue="none", label=7), post(), *[post() for _ in range(GATHERED_MAX)])
    assert [len(command.messages) for command in client.commands if type(command) is Publish] == [
        GATHERED_MAX,
        1,
        2,
    ]
    replies = await client.hear_all(GATHERED_MAX + 3)
    assert replies.count({"type": "error", "label": 7, "code": "NoObject", "key": "none"}) == 1
    assert replies.count(notice(0, "sync")) == GATHERED_MAX + 2


@live
async def test_a_post_without_notices_is_still_told_that_the_queue_is_not_there(house: House) -> None:
    client = await house.client()
    client.say(post(queue="none", notify=[], label=3))
    assert await client.hear() == {"type": "error", "label": 3, "code": "NoObject", "key": "none"}


@live
async def test_fetches_that_come_together_get_a_message_each_in_their_order(house: House) -> None:
    await house.fill("a", "b", "c")
    client = await house.client()
    client.say(*[fetch(label=label) for label in range(5)])
    assert [command.count for command in client.commands if type(command) is Fetch] == [5]
    replies = await client.hear_all(5)
    assert [(reply["label"], reply["body"]) for reply in replies[:3]] == [(0, "a"), (1, "b"), (2, "c")]
    assert replies[3:] == [{"type": "nomessage", "label": 3}, {"type": "nomessage", "label": 4}]


@live
async def test_those_of_them_that_wait_get_what_comes_later(house: House) -> None:
    await house.fill("a")
    client = await house.client()
    client.say(*[fetch(label=label, block_timeout=10) for label in range(3)])
    assert (await client.hear())["body"] == "a"
    await until(lambda: house.loop.waiting("work") == 2)
    await house.fill("b", "c")
    assert [reply["body"] for reply in await client.hear_all(2)] == ["b", "c"]


@live
async def test_fetches_of_large_messages_are_all_answered(house: House) -> None:
    large = b"x" * BODY_BYTES_MAX
    count = 2 * FETCH_BYTES_MAX // BODY_BYTES_MAX + 1
    await house.fill(*[large] * count)
    client = await house.client()
    client.say(*[fetch(label=label) for label in range(count)])
    assert [reply["label"] for reply in await client.hear_all(count)] == list(range(count))


@live
async def test_a_client_that_does_not_read_gets_no_more_of_them_until_it_does(house: House) -> None:
    each = FETCH_BYTES_MAX // BODY_BYTES_MAX
    await house.fill(*[b"x" * BODY_BYTES_MAX] * (2 * each))
    client = await house.client()
    client.choked = True
    client.say(*[fetch(label=label) for label in range(2 * each)])
    await client.hear_all(each)
    await house.settled()
    assert client.unheard == 0
    client.choked = False
    client.settle()
    assert [reply["label"] for reply in await client.hear_all(each)] == list(range(each, 2 * each))


@live
async def test_finishes_that_come_together_are_one_command(house: House) -> None:
    await house.fill("a", "b", "c")
    client = await house.client()
    client.say(*[fetch() for _ in range(3)])
    messages = await client.hear_all(3)
    client.commands.clear()
    client.say(*[finish(message, label=number) for number, message in enumerate(messages)])
    assert [type(command) for command in client.commands] == [FinishMany]
    assert await client.hear_all(3) == [notice(label, "finish") for label in range(3)]


@live
async def test_requests_that_nothing_answers_soon_are_acknowledged(house: House) -> None:
    """Else a client whose TCP waits for that sends its next request 40 ms later."""
    await house.fill("a", "b")
    client = await house.client()
    client.say(fetch(), fetch())
    first, second = await client.hear_all(2)
    client.say(finish(first, label=1))
    assert await client.hear() == notice(1, "finish")
    assert client.acknowledged == 0
    client.say(finish(second))
    assert client.acknowledged == 1
    client.say(fetch(block_timeout=30))
    assert client.acknowledged == 1
    client.say(fetch(block_timeout=30))
    assert client.acknowledged == 2


@live
async def test_a_finish_that_wants_its_answer_at_another_stage_takes_no_other_with_it(house: House) -> None:
    await house.fill("a", "b", "c")
    client = await house.client()
    client.say(*[fetch() for _ in range(3)])
    messages = await client.hear_all(3)
    client.say(finish(messages[0], label=1), finish(messages[1], label=2, response="ready"), finish(messages[2]))
    assert await client.hear_all(2) == [notice(2, "finish"), notice(1, "finish")]
    await house.settled()
    assert (await house.leased(), client.unheard) == (0, 0)


# ── Who holds what ────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_only_the_session_that_fetched_a_message_can_finish_it_and_only_once(house: House) -> None:
    await house.fill("a")
    holder, other = await house.client(), await house.client()
    holder.say(fetch())
    message = await holder.hear()
    other.say(finish(message, label=1))
    refused = {"type": "error", "label": 1, "code": "NoObject", "key": "1"}
    assert await other.hear() == refused
    holder.say(finish(message, queue="other", label=1), finish(message, shard=1, label=1))
    assert await holder.hear_all(2) == [refused, refused]
    holder.say(finish(message), finish(message))
    assert await holder.hear() == refused | {"label": 0}


@live
async def test_a_lease_that_ran_out_cannot_be_finished(house: House) -> None:
    await house.fill("a")
    first, second = await house.client(), await house.client()
    first.say(fetch(work_timeout=0.01))
    message = await first.hear()
    second.say(fetch(block_timeout=5))
    assert (await second.hear())["sequence"] == message["sequence"]
    first.say(finish(message, label=9))
    assert await first.hear() == {"type": "error", "label": 9, "code": "NoObject", "key": "1"}
    second.say(finish(message, label=9))
    assert await second.hear() == notice(9, "finish")


@live
async def test_a_message_that_comes_again_to_the_same_session_is_finished_by_its_newest_lease(house: House) -> None:
    await house.fill("a")
    client = await house.client()
    client.say(fetch(work_timeout=0.01))
    first = await client.hear()
    client.say(fetch(block_timeout=5))
    assert await client.hear() == first
    client.say(finish(first, label=1))
    assert await client.hear() == notice(1, "finish")


@live
async def test_dead_letters_of_the_same_sequence_are_told_apart_by_their_shard(house: House) -> None:
    await ask(house.loop, CreateQueue("dead", QueueSettings()))
    policy = QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))
    for name in ("one", "two"):
        await ask(house.loop, CreateQueue(name, policy))
        await house.fill(name, queue=name)
        await ask(house.loop, Fetch(name, lease_ns=1))
    client = await house.client()
    client.say(*[fetch(queue="dead", block_timeout=5) for _ in range(2)])
    letters = await client.hear_all(2)
    assert sorted((letter["sequence"], letter["shard"]) for letter in letters) == [(1, 0), (1, 1)]
    second = next(letter for letter in letters if letter["shard"])
    client.say(finish(second, queue="dead", label=1))
    assert await client.hear() == notice(1, "finish")
    other = await house.client()
    client.say(finish(letters[1 - letters.index(second)], queue="dead", label=2))
    assert await client.hear() == notice(2, "finish")
    other.say(fetch(queue="dead", label=3))
    assert await other.hear() == {"type": "nomessage", "label": 3}


@live
async def test_the_last_delivery_before_a_dead_letter_queue_can_still_be_finished(house: House) -> None:
    await ask(house.loop, CreateQueue("dead", QueueSettings()))
    await ask(house.loop, CreateQueue("risky", QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))))
    await house.fill("a", "b", queue="risky")
    client = await house.client()
    client.say(*[fetch(queue="risky", work_timeout=60) for _ in range(2)])
    messages = await client.hear_all(2)
    assert (await ask(house.loop, DescribeQueue("dead"))).messages == 2
    client.say(*[finish(message, queue="risky", label=1) for message in messages])
    assert await client.hear_all(2) == [notice(1, "finish")] * 2
    assert (await ask(house.loop, DescribeQueue("dead"))).messages == 0


def test_for_one_lease_too_many_the_oldest_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glovebox_session, "HELD_LEASES_MAX", 2)

    @live
    async def story(house: House) -> None:
        await house.fill("a", "b", "c")
        client = await house.client()
        client.say(*[fetch() for _ in range(3)])
        oldest, *_ = await client.hear_all(3)
        await house.settled()
        assert await house.leased() == 2
        client.say(finish(oldest, label=1), fetch(label=2))
        replies = await client.hear_all(2)
        assert replies[0] == {"type": "error", "label": 1, "code": "NoObject", "key": "1"}
        assert replies[1]["body"] == "a"

    story()


# ── What a sender is told ─────────────────────────────────────────────────────────────────────────────────────


@bounded(followed_max=2)
async def test_so_many_messages_are_followed_and_no_more(house: House) -> None:
    client = await house.client()
    client.say(*[post(notify=["ready", "finish"], label=label) for label in range(3)])
    replies = await client.hear_all(3)
    assert {"type": "error", "label": 2, "code": "PermissionDenied"}.items() <= replies[0].items()
    assert "follows 2 messages already" in replies[0]["key"]
    assert replies[1:] == [notice(0, "ready"), notice(1, "ready")]
    client.say({"type": "pop", "queue": "work", "label": 9})
    assert [await client.hear(), (await client.hear())["label"]] in (
        [notice(0, "finish"), 9],
        [9, notice(0, "finish")],
    )
    client.say(post(notify=["finish", "ready"], label=3), post(notify=["ready"], label=4))
    assert await client.hear_all(2) == [notice(3, "ready"), notice(4, "ready")]


@live
async def test_a_post_to_nowhere_is_not_followed(house: House) -> None:
    client = await house.client()
    for _ in range(3):
        client.say(post(queue="none", notify=["finish"], label=1))
        assert (await client.hear())["code"] == "NoObject"
    assert client.talk._session._followed_soon == 0  # type: ignore[attr-defined]


@live
async def test_the_fate_of_a_message_that_moves_to_a_dead_letter_queue_is_told_as_drop(house: House) -> None:
    await ask(house.loop, CreateQueue("dead", QueueSettings()))
    await ask(house.loop, CreateQueue("risky", QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))))
    client = await house.client()
    client.say(post(queue="risky", notify=["assign", "retry", "drop", "finish"], label=1))
    await ask(house.loop, Fetch("risky", wait_ns=5 * SECOND_NS))
    assert await client.hear() == notice(1, "drop")


@live
async def test_a_message_is_told_to_have_failed_to_be_stored(house: House) -> None:
    client = await house.client()
    client.say(post(notify=["ready", "write", "sync"], label=1), post(label=2))
    house.loop.fail(OSError("no space left"))
    told = {"type": "error", "code": "Unavailable", "key": "the log cannot be written: no space left"}
    replies = await client.hear_all(2)
    assert sorted(reply["label"] for reply in replies) == [1, 2]
    assert all(told.items() <= reply.items() for reply in replies)


@bounded(errors="origin")
async def test_a_client_of_the_origin_reads_a_failure_of_the_log_as_permission_denied(house: House) -> None:
    client = await house.client()
    house.loop.commit.failure = "no space left"
    client.say(post(label=1))
    failed = {"code": "PermissionDenied", "key": "the log cannot be written: no space left"}
    assert await client.hear() == {"type": "error", "label": 1, **failed}


@live
async def test_what_could_not_be_finished_for_want_of_a_log_is_still_held(house: House) -> None:
    await house.fill("a", "b")
    client = await house.client()
    client.say(fetch(), fetch())
    messages = await client.hear_all(2)
    house.loop.commit.failure = "no space left"
    client.say(*[finish(message, label=1) for message in messages])
    assert [reply["code"] for reply in await client.hear_all(2)] == ["Unavailable", "Unavailable"]
    house.loop.commit.failure = None
    client.say(*[finish(message, label=1) for message in messages])
    assert await client.hear_all(2) == [notice(1, "finish"), notice(1, "finish")]


# ── Pops ──────────────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_a_post_goes_straight_to_a_pop_that_waits_and_ready_is_answered_by_finish(house: House) -> None:
    consumer, producer = await house.client(), await house.client()
    for number, notify in enumerate((["ready"], ["finish"], ["ready", "finish", "assign"], ["drop"], [])):
        consumer.say({"type": "pop", "queue": "work", "timeout": 10, "label": number})
        await until(lambda: house.loop.waiting("work") > 0)
        producer.say(post(f"{number}", notify=notify, label=number))
        told = {"type": "message", "label": number, "shard": 0, "sequence": 0, "body": f"{number}", "finished": True}
        assert await consumer.hear() == told
        if "ready" in notify or "finish" in notify:
            assert await producer.hear() == notice(number, "finish")
    await house.settled()
    assert producer.unheard == 0
    assert (await ask(house.loop, DescribeQueue("work"))).last_sequence == 0, "nothing was stored"


@live
async def test_a_sender_that_asks_for_sync_has_its_message_stored_also_if_a_pop_waits(house: House) -> None:
    consumer, producer = await house.client(), await house.client()
    for number, notify in enumerate((["sync"], ["write"], ["ready", "sync", "finish"]), start=1):
        consumer.say({"type": "pop", "queue": "work", "timeout": 10})
        await until(lambda: house.loop.waiting("work") > 0)
        producer.say(post(notify=notify, label=number))
        assert (await consumer.hear())["sequence"] == number
        assert {reply["notice"] for reply in await producer.hear_all(len(notify))} == set(notify)


@live
async def test_what_a_client_asked_for_before_it_posts_goes_on_before_the_post(house: House) -> None:
    client = await house.client()
    for notify in ([], ["sync"], ["ready"]):
        client.commands.clear()
        client.say(fetch(), post(notify=notify), fetch())
        assert [type(command) for command in client.commands] == [Fetch, Publish, Fetch]


# ── Durable sessions ──────────────────────────────────────────────────────────────────────────────────────────

DURABLE = {"durable_session": "true"}


@live
async def test_what_came_while_a_durable_session_was_lost_is_told_when_it_is_back(house: House) -> None:
    await house.fill("mine", "next")
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(fetch(label=1), post(notify=["finish"], label=2))
    mine = await first.hear()
    first.say(fetch(label=3))
    first.lose()
    other = await house.client()
    await house.settled()
    other.say({"type": "pop", "queue": "work"})
    assert (await other.hear())["body"] == "hello"
    await house.settled()
    second = Client(house, reconnect_as=str(number), **DURABLE)
    hello, *kept = await second.hear_all(3)
    assert hello == {"type": "hello", "id": number}
    assert [reply.get("body", reply.get("notice")) for reply in kept] == ["next", "finish"]
    second.say(finish(mine, label=4), finish(kept[0], label=5))
    assert await second.hear_all(2) == [notice(4, "finish"), notice(5, "finish")]
    assert house.glovebox._sessions.kept_bytes == 0


@live
async def test_what_waits_is_written_as_the_new_connection_wants_it(house: House) -> None:
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(post(label=7))
    first.lose()
    await house.settled()
    second = Client(house, reconnect_as=str(number), binary="true")
    hello, told = await second.hear_all(2)
    assert hello == bytes.fromhex("0000000002000000") + number.to_bytes(8, "little")
    assert told.hex() == "0000000001000000" + "0700000000000000" + "02000000"


@live
async def test_a_session_that_is_not_durable_or_not_known_begins_anew(house: House) -> None:
    plain = Client(house)
    number = (await plain.hear())["id"]
    plain.lose()
    for unknown in (str(number), "77", "", "-1", "x", "9" * 400, "²"):
        again = Client(house, reconnect_as=unknown)
        assert (await again.hear())["id"] > number


@live
async def test_a_second_connection_takes_a_session_over(house: House) -> None:
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(fetch(label=1, block_timeout=10))
    second = Client(house, reconnect_as=str(number))
    assert (await second.hear())["id"] == number
    assert "took this session over" in first.closed_because
    first.lose()
    second.say(post(label=2))
    assert await second.hear() == notice(2, "sync")
    assert first.unheard == 0
    assert house.loop.waiting("work") == 0


@live
async def test_waiting_fetches_of_a_lost_connection_are_called_off(house: House) -> None:
    for headers in ({}, DURABLE):
        client = await house.client(**headers)
        client.say(fetch(block_timeout=10), {"type": "pop", "queue": "work", "timeout": 10})
        client.lose()
    await house.fill("a")
    assert house.loop.waiting("work") == 0
    assert await house.leased() == 0


@live
async def test_the_leases_of_a_plain_session_are_left_to_run_out(house: House) -> None:
    await house.fill("a")
    client = await house.client()
    client.say(fetch(work_timeout=60))
    await client.hear()
    client.lose()
    await house.settled()
    assert await house.leased() == 1


@bounded(session_replies_max=2)
async def test_of_too_much_that_waits_the_oldest_goes_and_its_lease_is_given_back(house: House) -> None:
    await house.fill("a", "b", "c")
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(fetch(label=1), fetch(label=2), fetch(label=3))
    first.lose()
    await house.settled()
    assert [command.sequence for command in first.commands if type(command) is Release] == [1]
    assert await house.leased() == 2
    second = Client(house, reconnect_as=str(number))
    assert [reply.get("body") for reply in await second.hear_all(3)] == [None, "b", "c"]


@bounded(session_bytes_max=1 << 16)
async def test_what_waits_is_bounded_in_bytes_too(house: House) -> None:
    await house.fill(*["x" * 30_000] * 4)
    first = Client(house, **DURABLE)
    first.say(*[fetch() for _ in range(4)])
    first.lose()
    await house.settled()
    assert await house.leased() == 2
    assert house.glovebox._sessions.kept_bytes < 1 << 16


@bounded(session_seconds=0.01)
async def test_a_session_whose_client_stays_away_ends_and_gives_back_what_never_went_out(house: House) -> None:
    await house.fill("sent", "kept")
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(fetch())
    await first.hear()
    first.say(fetch(), post(notify=["finish"], label=1))
    first.lose()
    other = await house.client()
    other.say(fetch(block_timeout=10))
    assert (await other.hear())["body"] in ("kept", "hello")
    await until(lambda: house.glovebox._sessions.find(number) is None)
    await house.settled()
    assert house.glovebox._sessions.kept_bytes == 0
    assert not house.loop.executor.followers.by_place


@bounded(sessions_max=1)
async def test_the_session_that_was_lost_first_makes_room_for_another(house: House) -> None:
    numbers = []
    for _ in range(3):
        client = Client(house, **DURABLE)
        numbers.append((await client.hear())["id"])
        client.lose()
    assert [bool(house.glovebox._sessions.find(number)) for number in numbers] == [False, False, True]


def test_all_that_is_kept_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glovebox_session, "LOST_SESSIONS_BYTES_MAX", 1500)

    @live
    async def story(house: House) -> None:
        numbers = []
        for _ in range(3):
            client = Client(house, **DURABLE)
            numbers.append((await client.hear())["id"])
            client.say(*[post() for _ in range(5)])
            client.lose()
        await house.settled()
        kept = [bool(house.glovebox._sessions.find(number)) for number in numbers]
        assert kept == [False, False, True]
        assert house.glovebox._sessions.kept_bytes <= 1500

    story()


# ── Queues ────────────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_a_queue_is_made_with_its_settings(house: House) -> None:
    client = await house.client()
    wanted = {"retries": 3, "visibility_timeout": 0.5, "retention_timeout": 60, "message_delay": 1}
    client.say({"type": "create", "queue": "new", "label": 1, "message_deduplication": True} | wanted)
    assert await client.hear() == notice(1, "ready")
    made = (await ask(house.loop, DescribeQueue("new"))).settings
    assert (made.retries, made.visibility_ns, made.retention_ns) == (3, SECOND_NS // 2, 60 * SECOND_NS)
    assert (made.delay_ns, made.deduplication) == (SECOND_NS, True)
    client.say({"type": "create", "queue": "new", "label": 2})
    assert await client.hear() == {"type": "error", "label": 2, "code": "ObjectAlreadyExists", "key": "new"}


@bounded(create_queues=False)
async def test_no_queue_is_made_where_that_is_not_allowed(house: House) -> None:
    client = await house.client()
    client.say({"type": "create", "queue": "new", "label": 2})
    assert await client.hear() == {"type": "error", "label": 2, "code": "PermissionDenied", "key": "new"}


def test_every_refusal_has_a_code() -> None:
    assert set(glovebox_session.CODES) == set(Reason)


# ── Frames that are wrong ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("frame", "label", "key"),
    [
        ("", 0, "truncated"),
        ("{", 0, "truncated"),
        ("nonsense", 0, "malformed"),
        ("[]", 0, "Expected `object`"),
        ('{"label":7}', 7, "missing required field `type`"),
        ('{"type":"pust","label":7}', 7, "Invalid value 'pust' - at `$.type`"),
        ('{"type":"post","queue":"work","label":7}', 7, "missing required field `message`"),
        ('{"type":"post","queue":"work","message":7,"label":7}', 7, "$.message"),
        ('{"type":"post","queue":"work","message":[256],"label":7}', 7, "$.message"),
        ('{"type":"post","queue":"work","message":"","priority":-32769,"label":7}', 7, "$.priority"),
        ('{"type":"post","queue":"work","message":"","priority":4294967296}', 0, "$.priority"),
        ('{"type":"post","queue":"work","message":"","notify":["soon"],"label":7}', 7, "$.notify"),
        ('{"type":"post","queue":"work","message":"","label":18446744073709551616}', 0, "$.label"),
        ('{"type":"post","queue":"work","message":"","label":-1}', 0, "$.label"),
        ('{"type":"post","queue":"work","message":"","label":"x"}', 0, "$.label"),
        ('{"type":"post","queue":"work","message":"\\ud800","label":7}', 0, "surrogate"),
        ('{"type":"fetch","queue":"work","block_timeout":-1,"label":7}', 7, "$.block_timeout"),
        ('{"type":"fetch","queue":"work","block_timeout":86401,"label":7}', 7, "$.block_timeout"),
        ('{"type":"fetch","queue":"work","work_timeout":"long","label":7}', 7, "$.work_timeout"),
        ('{"type":"fetch","queue":"work","sync":"finish","label":7}', 7, "$.sync"),
        ('{"type":"finish","queue":"work","label":7}', 7, "missing required field `sequence`"),
        ('{"type":"create","queue":"new","retry":3,"label":7}', 7, "unknown field `retry`"),
        ('{"type":"create","queue":"","label":7}', 7, "1 to 250 bytes"),
        ('{"type":"create","queue":"a\\u0000b","label":7}', 7, "no control characters"),
        ('{"type":"create","queue":"%2F","label":7}', 7, None),
    ],
)
def test_a_frame_that_cannot_be_meant_is_answered_and_the_session_goes_on(
    frame: str, label: int, key: str | None
) -> None:
    @live
    async def story(house: House) -> None:
        client = await house.client()
        client.talk.received(frame.encode())
        client.settle()
        reply = await client.hear()
        if key is None:
            assert reply == notice(label, "ready")
        else:
            assert (reply["type"], reply["code"], reply["label"]) == ("error", "BadRequest", label)
            assert key in reply["key"]
        client.say(post(label=1))
        assert await client.hear() == notice(1, "sync")

    story()


@live
async def test_a_message_that_is_too_long_is_refused(house: House) -> None:
    client = await house.client()
    client.say(post("x" * BODY_BYTES_MAX, label=1), post("x" * (BODY_BYTES_MAX + 1), label=2))
    refused = {
        "type": "error",
        "label": 2,
        "code": "BadRequest",
        "key": f"the message is over {BODY_BYTES_MAX} bytes",
    }
    assert await client.hear_all(2) == [refused, notice(1, "sync")]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=20))
def test_whatever_comes_is_answered_and_raises_nothing(frames: list[tuple[bytes, bool]]) -> None:
    @live
    async def story(house: House) -> None:
        client = await house.client()
        for frame, binary in frames:
            client.talk.received(frame, binary=binary)
            client.settle()
        assert client.unheard >= len(frames) - sum(binary for _, binary in frames)
        client.lose()

    story()
