"""What every connection does, whatever is spoken on it: time-outs, back-pressure, and the budget of a turn."""

from __future__ import annotations

import pytest

from penstock.broker.room import Room
from penstock.config.config import HttpConfig
from penstock.limits import PART_BODY_BYTES
from penstock.model.answers import Refused
from penstock.shells.connection import SWEEPS_PER_SECOND, Connection, Server
from tests.support.shells import Wire

SLOW_SECONDS, IDLE_SECONDS = 3, 10


class Plain(Connection):
    """Speaks nothing, and notes what happens to it."""

    PART_BYTES = 100
    PART_BYTES_CROWDED = 10

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.happened: list[str] = []
        self.busy = False
        self.missing = 0

    def _refuse_connection(self, refused: Refused | None) -> None:
        self.happened.append("refused")

    def _leave(self) -> None:
        self.happened.append("left")

    def _go_on(self) -> None:
        self.happened.append("go on")

    def _is_busy(self) -> bool:
        return self.busy

    def _missing_bytes(self) -> int:
        return self.missing

    def _end_incomplete(self, seconds: float) -> None:
        self.happened.append(f"incomplete after {seconds:g}")

    def drop_kept(self) -> None:
        self.happened.append("dropped")
        self.keep(0)


def connected(server: Server) -> tuple[Plain, Wire]:
    connection, wire = Plain(server), Wire()
    connection.connection_made(wire)
    return connection, wire


@pytest.fixture
def server() -> Server:
    config = HttpConfig(
        slow_client_seconds=SLOW_SECONDS, idle_seconds=IDLE_SECONDS, connections_max=3, buffered_bytes_max=1000
    )
    return Server(config, None, Room(1000), None)


def pass_time(connection: Connection, seconds: float) -> None:
    server = connection._server
    for _ in range(int(seconds * SWEEPS_PER_SECOND)):
        server.sweeps += 1
        connection.check_time()


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_silent_client_is_disconnected_when_its_time_is_over_and_not_before(server: Server) -> None:
    connection, wire = connected(server)
    pass_time(connection, IDLE_SECONDS)
    assert not wire.closed
    pass_time(connection, 1)
    assert wire.closed


def test_a_client_that_waits_for_the_broker_has_all_the_time(server: Server) -> None:
    connection, wire = connected(server)
    connection.busy = True
    pass_time(connection, 10 * IDLE_SECONDS)
    assert not wire.is_closing()


def test_a_request_must_be_complete_in_time(server: Server) -> None:
    connection, _ = connected(server)
    connection.begun_at = server.sweeps
    pass_time(connection, SLOW_SECONDS)
    assert connection.happened == []
    pass_time(connection, 0.5)
    assert connection.happened == ["incomplete after 3"]


def test_a_client_that_reads_nothing_is_cut_off_and_one_that_reads_slowly_is_not(server: Server) -> None:
    connection, wire = connected(server)
    for wire.unsent in range(100, 1, -1):
        pass_time(connection, SLOW_SECONDS / 2)
    assert not wire.aborted
    pass_time(connection, SLOW_SECONDS + 1)
    assert wire.aborted


def test_as_much_unread_as_long_ago_is_no_reason_to_cut_a_client_off(server: Server) -> None:
    connection, wire = connected(server)
    connection.busy = True
    for wire.unsent in (700, 0, 700):
        pass_time(connection, SLOW_SECONDS - 1)
    assert not wire.aborted


# ── Back-pressure ─────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_read_from_a_client_that_does_not_read(server: Server) -> None:
    connection, wire = connected(server)
    wire.unsent = 500
    connection.pause_writing()
    assert (wire.reading, server.room.bytes) == (False, 500)
    wire.unsent = 0
    connection.resume_writing()
    assert (connection.happened, server.room.bytes) == (["go on"], 0)


def test_a_client_that_leaves_too_much_unread_is_cut_off(server: Server) -> None:
    connection, wire = connected(server)
    wire.unsent = 1001
    connection.pause_writing()
    assert wire.aborted


def test_when_too_much_is_kept_the_connection_that_keeps_the_most_loses_it(server: Server) -> None:
    modest, greedy = connected(server)[0], connected(server)[0]
    assert greedy.keep(600)
    assert modest.keep(401)
    assert (greedy.happened, modest.happened, server.buffered_bytes) == (["dropped"], [], 401)
    assert not modest.keep(1001), "now it is the greediest itself"


def test_what_a_lost_connection_kept_counts_no_more(server: Server) -> None:
    connection, _ = connected(server)
    connection.keep(600)
    connection._park(b"x")
    connection.connection_lost(None)
    assert (server.buffered_bytes, server.connections, connection._parked) == (0, set(), b"")
    assert connection.happened == ["left"]


def test_one_connection_over_the_limit_is_refused(server: Server) -> None:
    connections = [connected(server)[0] for _ in range(4)]
    assert [connection.happened for connection in connections] == [[], [], [], ["refused"]]


# ── Turns ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_read_is_handed_out_in_parts_smaller_ones_while_others_wait(server: Server) -> None:
    connection, _ = connected(server)
    whole = bytes(range(250))
    connection._park(whole[:200])
    first = connection._next_part(True)
    connection._park(whole[200:])
    second = connection._next_part(False)
    rest = connection._next_part(False), connection._next_part(False)
    assert [len(part) for part in (first, second, *rest)] == [10, 100, 100, 40]
    assert first + second + b"".join(rest) == whole
    assert connection._parked == b""


def test_the_rest_of_one_body_is_handed_out_at_once(server: Server) -> None:
    connection, _ = connected(server)
    connection._park(bytes(2 * PART_BODY_BYTES))
    connection.missing = 5000
    assert len(connection._next_part(False)) == 5000
    connection.missing = 2 * PART_BODY_BYTES
    assert len(connection._next_part(False)) == PART_BODY_BYTES
