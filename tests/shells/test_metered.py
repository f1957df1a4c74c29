"""What quotas do to a connection: it rests when its client is over one, also in the middle of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.broker.quotas.quotas import Quotas
from penstock.broker.room import Room
from penstock.config.config import HttpConfig
from penstock.config.quotas import QuotaConfig, QuotaLimits
from penstock.limits import FAULTS_PER_SECOND_MAX, QUOTA_REST_SECONDS_MIN
from penstock.shells.connection import Server
from tests.shells.test_connection import SLOW_SECONDS, Plain, pass_time
from tests.support.live_loop import until
from tests.support.shells import Wire

RATE = 1000


class Limited:
    """A server whose clients may send so many bytes a second, and one connection. Its clock stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        quotas = Quotas(QuotaConfig(address=QuotaLimits(bytes_per_second=RATE)), lambda _: True, lambda: self.now)
        config = HttpConfig(slow_client_seconds=SLOW_SECONDS)
        self.server = Server(config, None, Room(1000), quotas)
        self.connection, self.wire = self.connect()

    def connect(self) -> tuple[Plain, Wire]:
        connection, wire = Plain(self.server), Wire()
        connection.connection_made(wire)
        return connection, wire

    def is_read(self) -> bool:
        return self.wire.reading

    def read(self, size: int) -> None:
        """As a shell does after each read."""
        assert self.connection.meter is not None
        self.connection._count_read(self.connection.meter, size)
        self.connection._pace()


def told(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


def test_a_request_that_uses_up_the_bytes_waits_in_its_middle_and_then_goes_on() -> None:
    async def story() -> None:
        limited = Limited()
        limited.connection.begun_at = 1
        limited.read(RATE // 2)
        assert limited.is_read()
        limited.read(RATE)
        assert not limited.is_read()
        await until(lambda: "go on" in limited.connection.happened)

    told(story())


def test_a_request_that_is_complete_is_not_delayed() -> None:
    async def story() -> None:
        limited = Limited()
        limited.read(3 * RATE)
        assert limited.is_read()
        limited.read(1)
        assert limited.connection._over is not None, "the next one is refused"

    told(story())


def test_the_time_of_a_rest_is_not_held_against_the_client() -> None:
    async def story() -> None:
        limited = Limited()
        connection = limited.connection
        connection.begun_at = limited.server.sweeps
        limited.read(3 * RATE)
        pass_time(connection, 2 * SLOW_SECONDS)
        assert connection.happened == []
        await until(lambda: "go on" in connection.happened)
        pass_time(connection, SLOW_SECONDS - 1)
        assert connection.happened == ["go on"]
        pass_time(connection, 2)
        assert connection.happened[1] == f"incomplete after {SLOW_SECONDS}"

    told(story())


def test_a_client_that_does_not_read_is_cut_off_also_while_it_rests() -> None:
    async def story() -> None:
        limited = Limited()
        limited.connection._rest(1.0)
        limited.wire.unsent = 100
        pass_time(limited.connection, SLOW_SECONDS + 1)
        assert limited.wire.aborted

    told(story())


@pytest.mark.parametrize("faults", [FAULTS_PER_SECOND_MAX - 1, 3 * FAULTS_PER_SECOND_MAX])
def test_new_connections_of_a_client_with_many_faults_are_read_from_later(faults: int) -> None:
    async def story() -> None:
        limited = Limited()
        for _ in range(faults):
            limited.connection._count_fault()
        new, wire = limited.connect()
        await asyncio.sleep(0)
        assert wire.reading == (faults < FAULTS_PER_SECOND_MAX)
        if not wire.reading:
            await until(lambda: "go on" in new.happened)

    told(story())


def test_a_client_whose_command_was_over_a_quota_rests_once() -> None:
    async def story() -> None:
        limited = Limited()
        connection = limited.connection
        assert connection.meter is not None
        connection._rest_if_refused()
        assert limited.is_read()
        connection.meter.take("bytes_per_second", 2 * RATE)
        assert connection.meter.overdrawn("bytes_per_second")
        connection._rest_if_refused()
        assert not limited.is_read()
        await until(lambda: "go on" in connection.happened)
        connection._rest_if_refused()
        assert not connection._resting

    told(story())


def test_a_rest_is_not_shorter_than_it_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        limited = Limited()
        delays: list[float] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda delay, _: delays.append(delay))
        limited.connection._rest(0.0001)
        assert delays == [QUOTA_REST_SECONDS_MIN]

    told(story())
