"""Failed logins are counted by address, and their refusals wait the longer the more there were."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.broker.quotas.logins import Logins
from penstock.limits import (
    LOGIN_ADDRESSES_MAX,
    LOGIN_FAILURES_PER_DOUBLING,
    LOGIN_FORGET_SECONDS,
    LOGIN_SECONDS_MAX,
    LOGINS_HELD_MAX,
    OFFENDERS_LOG_SECONDS,
    REFUSED_LOGIN_SECONDS,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_delay_grows_up_to_a_bound_and_others_are_not_delayed_more() -> None:
    logins = Logins(Clock())
    delays = [logins.failed("192.0.2.7") for _ in range(100)]
    assert delays[0] == REFUSED_LOGIN_SECONDS
    assert delays[LOGIN_FAILURES_PER_DOUBLING] == 2 * REFUSED_LOGIN_SECONDS
    assert delays == sorted(delays)
    assert delays[-1] == LOGIN_SECONDS_MAX
    assert logins.failed("192.0.2.8") == REFUSED_LOGIN_SECONDS


def test_failures_are_forgotten_after_a_while() -> None:
    clock = Clock()
    logins = Logins(clock)
    for _ in range(100):
        logins.failed("192.0.2.7")
    clock.now = LOGIN_FORGET_SECONDS
    assert logins.failed("192.0.2.7") == LOGIN_SECONDS_MAX
    clock.now = 2 * LOGIN_FORGET_SECONDS + 1
    assert logins.failed("192.0.2.7") == REFUSED_LOGIN_SECONDS


def test_the_table_of_addresses_is_bounded_and_keeps_those_that_fail_now() -> None:
    logins = Logins(Clock())
    for number in range(2 * LOGIN_ADDRESSES_MAX):
        logins.failed(f"address {number}")
        logins.failed("the one that goes on")
    assert logins.failed_total == 4 * LOGIN_ADDRESSES_MAX
    assert logins.failed("the one that goes on") == LOGIN_SECONDS_MAX
    assert logins.failed("address 0") == REFUSED_LOGIN_SECONDS
    assert len(logins._failures) == LOGIN_ADDRESSES_MAX


def test_the_log_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logins = Logins(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            logins.failed("192.0.2.7")
        clock.now = OFFENDERS_LOG_SECONDS
        logins.failed("192.0.2.7")
    assert [record.failures for record in caplog.records] == [1, 11]  # type: ignore[attr-defined]


def test_only_so_many_refusals_wait_at_once() -> None:
    async def story() -> None:
        logins, refused = Logins(), list[int]()
        held = [logins.hold(0, lambda: refused.append(1)) for _ in range(LOGINS_HELD_MAX + 5)]
        assert held.count(True) == LOGINS_HELD_MAX
        while logins.held:  # noqa: ASYNC110 - A turn, not a time.
            await asyncio.sleep(0)
        assert len(refused) == LOGINS_HELD_MAX
        assert logins.hold(0, lambda: None)

    asyncio.run(story())
