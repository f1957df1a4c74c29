"""A bucket grants what its rate allows, and a burst of one period."""

from __future__ import annotations

import pytest

from penstock.broker.quotas.account import Bucket


def granted(bucket: Bucket, amount: float, now: float) -> bool:
    if bucket.wait(now):
        return False
    bucket.take(amount, now)
    return True


def test_a_burst_of_one_period_is_granted_and_no_more() -> None:
    bucket = Bucket(5, 1, now=100)
    assert [granted(bucket, 1, 100) for _ in range(7)] == [True] * 5 + [False] * 2


def test_over_a_long_time_it_grants_its_rate() -> None:
    bucket = Bucket(10, 1, now=0)
    count = sum(granted(bucket, 1, tick / 1000) for tick in range(20_000))
    assert 200 <= count <= 211


def test_more_than_the_capacity_is_granted_once_and_paid_back() -> None:
    bucket = Bucket(10, 1, now=0)
    assert granted(bucket, 50, 0)
    assert bucket.wait(1) == pytest.approx(3.1)
    assert not granted(bucket, 1, 4)
    assert granted(bucket, 1, 4.2)


def test_a_bucket_that_was_not_used_holds_one_period_however_long_that_was() -> None:
    bucket = Bucket(10, 1, now=0)
    bucket.take(5, 1)
    assert not bucket.is_full(1.4)
    assert bucket.is_full(1.5)
    assert [granted(bucket, 1, 1000) for _ in range(11)].count(True) == 10


def test_a_quota_for_a_minute_fills_in_a_minute() -> None:
    bucket = Bucket(6, 60, now=0)
    bucket.take(6, 0)
    assert bucket.wait(0) == 10
    bucket.take(2, 0)
    assert bucket.wait(0) == 30


def test_time_may_be_used_in_any_part_of_a_second() -> None:
    bucket = Bucket(0.5, 60, now=0, least=0)
    assert [granted(bucket, 0.2, 0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait(0) == pytest.approx(12)
