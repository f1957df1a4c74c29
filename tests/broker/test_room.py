"""Answers that clients have not taken are bounded, for all connections together, whatever they speak."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest

from penstock.broker.room import Room, Taken
from penstock.limits import (
    FETCH_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    ROOM_EACH_BYTES,
    ROOM_LONG_AT_ONCE,
    ROOM_WAIT_SECONDS_MAX,
    TURN_DEBT_SECONDS_MAX,
)
from tests.support.broker import Broker, StartBroker
from tests.support.line_client import LineClient
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until
from tests.support.ws_client import RawWs, client_frame

LIMIT = 16 << 20
MEBIBYTE = 1 << 20
CLIENTS = 24


class Client:
    client: Hashable = None

    def __init__(self) -> None:
        self.closed = False

    def abort(self) -> None:
        self.closed = True


class Asked:
    """A command that waits for room, and then takes some."""

    def __init__(
        self, room: Room, name: str, served: list[str], size: int = MEBIBYTE, *, is_long: bool = False
    ) -> None:
        self.room, self.name, self.served, self.takes, self.is_long = room, name, served, size, is_long
        self.size = 0
        self.canceled = False

    def has_room(self) -> None:
        self.served.append(self.name)
        self.room.promise(self.takes)

    def cancel(self) -> None:
        self.canceled = True


class Work:
    """Work beside the writer that waits for so much room."""

    def __init__(self, room: Room) -> None:
        self.taken = Taken(room)
        self.ends = 0

    async def take(self, size: int) -> None:
        await self.taken.take(size)
        self.ends += 1


class Turns:
    """Calls later what is to be called soon, and knows the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[Callable[[], None]] = []

    def soon(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def pass_all(self) -> None:
        while self._due:
            self._due.pop(0)()


def a_room(bytes_max: int = LIMIT) -> tuple[Room, Turns]:
    turns = Turns()
    return Room(bytes_max, turns.soon, lambda: turns.now), turns


# ── What is held ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_connection_with_the_most_is_closed_when_all_together_hold_too_much() -> None:
    room, _ = a_room(100)
    modest, greedy, late = Client(), Client(), Client()
    room.note(modest, 10)
    room.note(greedy, 80)
    room.note(late, 10)
    assert (room.bytes, room.closed) == (100, 0)
    room.note(late, 11)
    assert [modest.closed, greedy.closed, late.closed] == [False, True, False]
    assert (room.bytes, room.closed) == (21, 1)


def test_what_was_read_counts_no_more() -> None:
    room, _ = a_room(100)
    first, second = Client(), Client()
    room.note(first, 90)
    room.note(first, 20)
    room.note(first, 0)
    room.note(second, 100)
    assert not second.closed


def test_an_answer_is_as_large_as_there_is_room_and_a_message_always_fits() -> None:
    room, _ = a_room()
    reader = Client()
    assert room.free(reader) == FETCH_BYTES_MAX
    room.note(Client(), LIMIT - 2 * MEBIBYTE)
    assert room.free(reader) == 2 * MEBIBYTE
    room.note(Client(), 2 * MEBIBYTE - MESSAGE_BYTES_MAX + 1)
    assert room.free(reader) == 0


def test_not_much_is_promised_at_once_so_that_others_have_their_turn() -> None:
    room, _ = a_room()
    room.promise(LIMIT // 4)
    assert room.free(Client()) == 0
    room.redeem(LIMIT // 4)
    assert room.free(Client()) == FETCH_BYTES_MAX


def test_a_client_that_holds_much_gets_no_more_and_others_do() -> None:
    room, _ = a_room()
    reader = Client()
    room.note(reader, ROOM_EACH_BYTES)
    assert (room.free(reader), room.free(Client())) == (0, FETCH_BYTES_MAX)


# ── Who waits ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_holds_nothing_is_served_first_and_then_each_one_command_in_turn() -> None:
    room, turns = a_room()
    served: list[str] = []
    full, holder, poor, other = Client(), Client(), Client(), Client()
    room.note(full, LIMIT - 1)
    room.note(holder, 1)
    for client, names in ((holder, "a"), (poor, "bc"), (other, "d")):
        for name in names:
            room.wait(client, Asked(room, name, served, size=0))
    turns.pass_all()
    assert served == []
    assert room.has_waiting(poor)
    room.note(full, 0)
    turns.pass_all()
    assert served == ["b", "d", "c", "a"]
    assert not room.has_waiting(poor)


def test_nobody_overtakes_those_who_wait() -> None:
    room, turns = a_room()
    full, first = Client(), Client()
    served: list[str] = []
    room.note(full, LIMIT)
    room.wait(first, Asked(room, "first", served))
    room.note(full, 0)
    assert room.free(Client()) == 0, "there is room, but it is for another"
    turns.pass_all()
    assert served == ["first"]
    assert room.free(Client()) == LIMIT // 4 - MEBIBYTE


def test_room_is_given_only_as_long_as_there_is_some() -> None:
    room, turns = a_room()
    full, served = Client(), list[str]()
    room.note(full, LIMIT)
    for name in "abcd":
        room.wait(Client(), Asked(room, name, served, size=2 * MEBIBYTE))
    room.note(full, 0)
    turns.pass_all()
    assert served == ["a", "b"]
    room.redeem(4 * MEBIBYTE)
    turns.pass_all()
    assert served == ["a", "b", "c", "d"]


def test_a_client_that_holds_much_waits_until_it_has_read_and_keeps_nobody_out() -> None:
    room, turns = a_room()
    served: list[str] = []
    reader = Client()
    room.note(reader, ROOM_EACH_BYTES)
    room.wait(reader, Asked(room, "mine", served))
    turns.pass_all()
    assert (served, room.free(Client())) == ([], FETCH_BYTES_MAX)
    room.note(reader, 10)
    turns.pass_all()
    assert served == ["mine"]


def test_who_is_gone_waits_for_nothing() -> None:
    room, turns = a_room()
    served: list[str] = []
    full, gone = Client(), Client()
    asked = Asked(room, "gone", served)
    room.note(full, LIMIT)
    room.wait(gone, asked)
    room.leave(gone)
    room.note(full, 0)
    turns.pass_all()
    assert (served, asked.canceled, room.is_empty) == ([], True, True)


def test_for_one_that_holds_nothing_the_one_with_the_most_is_closed_after_a_while() -> None:
    room, turns = a_room()
    served: list[str] = []
    greedy, other = Client(), Client()
    room.note(greedy, LIMIT - 10)
    room.note(other, 10)
    room.wait(other, Asked(room, "other", served))
    turns.now = 10 * ROOM_WAIT_SECONDS_MAX
    room.relieve()
    assert not greedy.closed, "who waits holds something itself"
    room.wait(Client(), Asked(room, "poor", served))
    room.relieve()
    assert not greedy.closed, "it has not waited long"
    turns.now += ROOM_WAIT_SECONDS_MAX
    room.relieve()
    turns.pass_all()
    assert (greedy.closed, room.closed, served) == (True, 1, ["poor", "other"])


def test_work_beside_the_writer_waits_until_there_is_room_for_all_that_it_needs() -> None:
    async def story() -> None:
        room, turns = a_room()
        full, work = Client(), Work(room)
        room.note(full, LIMIT - 4 * MEBIBYTE)
        task = asyncio.create_task(work.take(8 * MEBIBYTE))
        await asyncio.sleep(0)
        turns.pass_all()
        assert (work.ends, room.bytes, full.closed) == (0, LIMIT - 4 * MEBIBYTE, False)
        room.relieve()
        turns.now = ROOM_WAIT_SECONDS_MAX
        room.relieve()
        assert full.closed, "it has waited, and holds nothing"
        turns.pass_all()
        await task
        assert (work.ends, room.bytes) == (1, 8 * MEBIBYTE)
        work.taken.end()
        await work.take(100 * LIMIT)
        assert room.bytes == 100 * LIMIT, "one alone has what it needs"

    asyncio.run(story())


# ── Long answers ──────────────────────────────────────────────────────────────────────────────────────────────


class Rotation:
    """Has one taker, whose turns the test gives."""

    def __init__(self) -> None:
        self.taker: Room | None = None
        self.heavy = 0
        self.spent: list[float] = []

    def join(self, taker: Room) -> None:
        self.taker = taker

    def spend(self, seconds: float) -> None:
        self.spent.append(seconds)

    def note_heavy(self) -> None:
        self.heavy += 1


def test_long_answers_are_made_one_a_turn_for_each_client_in_turn_and_keep_no_short_ones_waiting() -> None:
    room, turns = a_room()
    room.turns = rotation = Rotation()
    served: list[str] = []
    for name in "aaab":
        client = Client()
        client.client = name
        room.wait(client, Asked(room, name, served, size=0, is_long=True))
    turns.pass_all()
    assert (served, rotation.heavy, rotation.taker) == ([], 4, room)
    assert (room.free(Client()), room.free(Client(), long=100)) == (FETCH_BYTES_MAX, 0)
    assert [room.take_turn(crowded=True) for _ in range(4)] == [True, True, True, False]
    assert "".join(served) == "abaa"


def test_a_few_long_answers_are_made_at_once_in_each_turn_while_none_waits() -> None:
    room, turns = a_room()
    room.turns = Rotation()
    for _ in range(2):
        many = [room.free(Client(), long=ROOM_LONG_AT_ONCE // 4) > 0 for _ in range(6)]
        assert many == [True] * 4 + [False] * 2
        turns.pass_all()
    room.wait(Client(), Asked(room, "waits", [], size=0, is_long=True))
    assert room.free(Client(), long=100) == 0, "others were here before"


def test_a_long_answer_also_waits_for_room() -> None:
    room, turns = a_room()
    room.turns = rotation = Rotation()
    full, served = Client(), list[str]()
    room.note(full, LIMIT)
    room.wait(Client(), Asked(room, "long", served, is_long=True))
    turns.pass_all()
    assert not room.take_turn(crowded=False)
    room.turns = later = Rotation()
    room.note(full, 0)
    turns.pass_all()
    assert (served, rotation.taker, later.taker) == ([], room, room)
    assert not room.take_turn(crowded=False)
    assert served == ["long"]


def test_a_long_answer_is_paid_for_until_it_is_given() -> None:
    room, turns = a_room()
    room.turns = rotation = Rotation()
    decided_at = room.now()
    turns.now += 0.01
    room.pay(decided_at)
    turns.now += 60
    room.pay(decided_at)
    assert rotation.spent == [0.01, TURN_DEBT_SECONDS_MAX], "not for a log that fails"


# ── A broker ──────────────────────────────────────────────────────────────────────────────────────────────────


def own_bytes(broker: Broker) -> int:
    """Memory that is no file."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return next(int(row.split()[1]) << 10 for row in status.splitlines() if row.startswith("RssAnon"))


def unread_bytes(broker: Broker) -> float:
    metrics = broker.request("GET", "/metrics").body.decode()
    return float(next(row.split()[1] for row in metrics.splitlines() if row.startswith("penstock_unread_bytes")))


HTTP = b"GET /messages/large HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-MESSAGES: 4\r\n\r\n"
FETCH = client_frame(json.dumps({"type": "fetch", "queue": "large", "work_timeout": 0}).encode())
LINE = b'{"cmd":"FET","qname":"large"}\n'


def over_http(broker: Broker) -> RawClient:
    client = RawClient(broker.http, receive_bytes=4096)
    client.send(HTTP * 16)
    return client


def over_websocket(broker: Broker) -> RawWs:
    client = RawWs(broker.http)
    client.send(FETCH * 100)
    return client


def over_lines(broker: Broker) -> LineClient:
    client = LineClient(broker.lines, receive_bytes=4096)
    client.send(LINE * 100)
    return client


def followed(broker: Broker) -> RawClient:
    client = RawClient(broker.http, receive_bytes=4096)
    client.send(b"GET /v1/events?follow=true&bodies=true&from=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


def searched(broker: Broker) -> RawClient:
    client = RawClient(broker.http, receive_bytes=4096)
    client.send(b"GET /v1/search?queue=large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4)
    return client


@pytest.mark.parametrize("ask", [over_http, over_websocket, over_lines, followed, searched])
def test_answers_that_nobody_reads_cost_what_is_allowed_and_honest_clients_are_served(
    start_broker: StartBroker, ask: Callable[[Broker], RawClient | RawWs | LineClient]
) -> None:
    broker = start_broker(f"unread_bytes_max={LIMIT}")
    for name in ("large", "honest"):
        broker.create_queue(name, visibility_timeout=0)
        for _ in range(8):
            broker.request("POST", f"/messages/{name}", body=b"x" * MEBIBYTE)
    before = own_bytes(broker)
    clients = [ask(broker) for _ in range(CLIENTS)]
    wait_until(lambda: unread_bytes(broker) > LIMIT - FETCH_BYTES_MAX, "there is hardly any room left")
    assert unread_bytes(broker) <= 1.5 * LIMIT, "with one page, or one part of the log"
    assert broker.request("GET", "/messages/honest").body == b"x" * MEBIBYTE
    assert unread_bytes(broker) <= 1.5 * LIMIT
    assert own_bytes(broker) - before < 2 * LIMIT, "with what is being made, and what the allocator keeps"
    for client in clients:
        client.close()
    wait_until(lambda: unread_bytes(broker) == 0, "all of it is free again")
