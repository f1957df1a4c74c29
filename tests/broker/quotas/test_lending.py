"""One worker owns a quota and the others borrow from it. Time is a number that the test sets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.broker.quotas.lending import LentSeats, Loan, OwnSeats, Pool, slice_of

RATE = 80  # A second.
SLICE = slice_of(RATE, 2)


class Pair:
    """The owner of a quota and one borrower, with a link that takes some time."""

    def __init__(self, delay_seconds: float = 0.0) -> None:
        self.now = 0.0
        self.pool = Pool(RATE, 1.0, self.now)
        self.loan = Loan(SLICE, self.now, self._asked)
        self._delay = delay_seconds
        self._under_way: list[tuple[float, tuple[float, float, float]]] = []
        self.questions = 0

    def _asked(self, *question: float) -> None:
        used, returned, wanted = question
        self.questions += 1
        self._under_way.append((self.now + self._delay, (used, returned, wanted)))

    def deliver(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.now:
            _, (used, returned, wanted) = self._under_way.pop(0)
            amount, seconds = self.pool.lend(1, used, returned, wanted, self.now)
            if wanted:
                self.loan.get(amount, seconds, self.now)

    def use(self, bucket: Pool | Loan, amount: float = 1) -> int:
        """Use some if it is granted; how much was used."""
        if bucket.wait(self.now):
            return 0
        bucket.take(amount, self.now)
        return int(amount)

    def run(self, seconds: float, use: Callable[[], int], step: float = 0.001) -> int:
        used, end = 0, self.now + seconds
        while self.now < end:
            self.deliver()
            used += use()
            self.now += step
        return used


def test_a_borrower_may_use_a_slice_before_it_is_answered_and_no_more() -> None:
    pair = Pair(delay_seconds=1.0)
    assert sum(pair.use(pair.loan) for _ in range(RATE)) == SLICE


def test_one_borrower_gets_nearly_all_of_the_quota() -> None:
    pair = Pair(delay_seconds=0.001)
    assert pair.run(10, lambda: pair.use(pair.loan)) == pytest.approx(RATE * 11, rel=0.05)
    assert pair.questions < 11 * (RATE / SLICE) * 2


def test_both_together_get_no_more_than_the_quota_and_a_slice() -> None:
    pair = Pair(delay_seconds=0.001)
    both = pair.run(10, lambda: pair.use(pair.loan) + pair.use(pair.pool))
    assert RATE * 10 <= both <= RATE * 11 + SLICE


def test_neither_starves_the_other() -> None:
    pair = Pair(delay_seconds=0.001)
    borrowed = own = 0
    while pair.now < 10:
        pair.deliver()
        own += pair.use(pair.pool)
        borrowed += pair.use(pair.loan)
        pair.now += 0.001
    assert min(own, borrowed) > RATE * 10 / 4


def test_a_debt_of_the_borrower_is_one_of_the_owner() -> None:
    pair = Pair()
    pair.loan.take(RATE * 3, pair.now)
    pair.deliver()
    assert pair.pool.wait(pair.now) == pytest.approx(2, rel=0.1)
    assert pair.loan.wait(pair.now) == pytest.approx(2, rel=0.1)
    pair.now += 2.2
    assert pair.loan.wait(pair.now) == 0


def test_what_is_lent_is_not_there_twice() -> None:
    pair = Pair()
    pair.use(pair.loan)
    pair.deliver()
    pair.now += 10
    bursts = sum(pair.use(pair.loan) + pair.use(pair.pool) for _ in range(2 * RATE))
    assert bursts <= RATE + SLICE


def test_what_is_not_needed_is_returned() -> None:
    pair = Pair()
    pair.use(pair.loan)
    pair.deliver()
    assert not pair.loan.is_full(pair.now)
    pair.loan.tidy()
    pair.deliver()
    pair.now += 1
    assert pair.loan.is_full(pair.now)
    assert pair.pool.is_full(pair.now)
    assert sum(pair.use(pair.pool) for _ in range(2 * RATE)) == RATE


def test_what_a_lost_worker_had_borrowed_is_there_again() -> None:
    pair = Pair()
    pair.use(pair.loan)
    pair.deliver()
    pair.pool.forget(1)
    pair.now += 1
    assert sum(pair.use(pair.pool) for _ in range(2 * RATE)) == RATE


# ── At once ───────────────────────────────────────────────────────────────────────────────────────────────────


class Seats:
    def __init__(self, limit: int) -> None:
        self.own = OwnSeats(limit, lambda _, amount: self.lent.get(amount))
        self.lent = LentSeats(slice_of(limit, 2), lambda returned, wanted: self.own.lend(1, returned, wanted))

    @staticmethod
    def fill(seats: OwnSeats | LentSeats) -> int:
        before = seats.used
        while seats.used < seats.most:
            seats.used += 1
        return seats.used - before


@pytest.mark.parametrize("limit", [1, 2, 10, 1000])
def test_seats_of_a_borrower_are_those_of_the_quota(limit: int) -> None:
    seats = Seats(limit)
    assert limit <= seats.fill(seats.lent) <= limit + max(1, limit // 8)
    assert seats.fill(seats.own) <= 1


@pytest.mark.parametrize("limit", [1, 2, 10, 1000])
def test_both_together_have_no_more_than_the_quota_and_a_slice(limit: int) -> None:
    seats = Seats(limit)
    seats.lent.used = 1
    assert limit - 1 <= seats.fill(seats.own) + seats.fill(seats.lent) <= limit + max(1, limit // 8)


def test_seats_that_are_left_are_returned() -> None:
    seats = Seats(100)
    seats.fill(seats.lent)
    assert seats.own.most == seats.own.used == 0 or seats.own.most <= 100 // 8
    seats.lent.used = 0
    assert seats.fill(seats.own) >= 100 - 2 * 100 // 8
    assert seats.lent.most <= 2 * (100 // 8)


def test_who_could_not_have_a_seat_gets_one_as_soon_as_it_is_left() -> None:
    seats = Seats(10)
    seats.fill(seats.own)
    seats.fill(seats.lent)
    full = seats.lent.most
    seats.own.used -= 3
    assert seats.lent.most > full


def test_the_seats_of_a_lost_worker_are_there_again() -> None:
    seats = Seats(10)
    seats.fill(seats.lent)
    seats.own.forget(1)
    assert seats.fill(seats.own) == 10
