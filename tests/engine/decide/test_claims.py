"""Messages that a consumer comes back to: read again, finished late, or with somebody else by now."""

from __future__ import annotations

import pytest

from penstock.limits import BODY_BYTES_MAX, SECOND_NS
from penstock.model.answers import Claimed
from penstock.model.commands import FinishClaimed, NewMessage, ReadClaimed
from penstock.model.settings import RedrivePolicy
from tests.support.engine_rig import Rig, state_of

LEASE_NS = 10 * SECOND_NS


class Reader(Rig):
    def claim(self, count: int = 100, consumer: str = "spark") -> list[tuple[int, int, int]]:
        found = self.fetch("work", count, lease_ns=LEASE_NS, consumer=consumer)
        return [(each.queue, each.sequence, each.sequence) for each in found]

    def read(self, *claimed: tuple[int, int, int]) -> Claimed:
        answer = self.do(ReadClaimed(claimed, "spark", LEASE_NS))
        assert isinstance(answer, Claimed)
        for each in answer.deliveries:
            self._load(each)
        return answer

    def confirm(self, *claimed: tuple[int, int, int]) -> int:
        answer = self.do(FinishClaimed(claimed, "spark"))
        assert isinstance(answer, Claimed)
        return answer.missing


@pytest.fixture
def rig() -> Reader:
    rig = Reader()
    rig.create("work")
    return rig


def test_what_is_leased_is_read_as_often_as_one_likes(rig: Reader) -> None:
    rig.publish("work", b"1", b"2", NewMessage(b"3", key=b"k", headers=b"h"))
    claimed = rig.claim()
    for _ in range(3):
        answer = rig.read((1, 1, 3))
        assert [(each.body, each.key, each.headers, each.receives) for each in answer.deliveries] == [
            (b"1", b"", b"", 1),
            (b"2", b"", b"", 1),
            (b"3", b"k", b"h", 1),
        ]
        assert not answer.missing
    assert rig.confirm(*claimed) == 0
    assert rig.counts("work") == (0, 0, 0)
    assert rig.confirm(*claimed) == 3  # Done with, and not there any more.
    assert rig.read(*claimed) == Claimed([], 3)


@pytest.mark.parametrize("count", [3, 40])
def test_what_is_claimed_twice_is_there_once(rig: Reader, count: int) -> None:
    rig.publish("work", *[b"x"] * count)
    rig.claim()
    rig.wait(20)  # Nobody has it any more: reading it leases it again.
    twice = [(1, 1, count), (1, 2, count), (1, 1, 1)]
    answer = rig.read(*twice)
    assert ([each.sequence for each in answer.deliveries], answer.missing) == (list(range(1, count + 1)), count)
    assert rig.confirm(*twice) == count
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_reading_lengthens_the_lease(rig: Reader) -> None:
    rig.publish("work", b"1")
    claimed = rig.claim()
    for _ in range(3):
        rig.wait(8)
        rig.read(*claimed)
    assert rig.counts("work") == (0, 1, 0)


def test_what_has_come_free_is_leased_again_and_what_another_has_is_missing(rig: Reader) -> None:
    rig.publish("work", b"1", b"2", b"3")
    rig.claim()
    rig.wait(11)
    assert rig.claim(count=1, consumer="other") == [(1, 1, 1)]
    answer = rig.read((1, 1, 3))
    assert ([each.body for each in answer.deliveries], answer.missing) == ([b"2", b"3"], 1)
    assert [each.receives for each in answer.deliveries] == [2, 2]
    assert rig.confirm((1, 1, 3)) == 1
    assert rig.counts("work") == (0, 1, 0)


def test_a_message_whose_lease_ran_out_is_finished_unless_another_has_it(rig: Reader) -> None:
    rig.publish("work", b"1", b"2", b"3")
    claimed = rig.claim(count=2)
    rig.wait(11)
    assert rig.confirm(*claimed, (1, 3, 3)) == 1  # The third one it never had.
    assert rig.bodies("work") == [b"3"]


def test_many_are_finished_in_one_event(rig: Reader) -> None:
    rig.publish("work", *[b"x"] * 100)
    rig.claim()
    before = len(rig.events)
    assert rig.confirm((1, 1, 100)) == 0
    assert len(rig.events) == before + 1
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_an_answer_has_room_for_so_much_and_says_where_it_goes_on(rig: Reader) -> None:
    rig.publish("work", *[b"x" * BODY_BYTES_MAX] * 6)
    rig.claim(count=3)
    rig.claim(count=3)
    first = rig.read((1, 1, 6))
    assert (len(first.deliveries), first.following) == (4, (1, 5))
    assert rig.read((1, 5, 6)).following is None


def test_a_message_that_moves_with_its_last_delivery_is_still_its_own(rig: Reader) -> None:
    rig.create("dead")
    rig.create("flaky", redrive_policy=RedrivePolicy(1, "dead"))
    rig.publish("flaky", b"1")
    (found,) = rig.fetch("flaky", lease_ns=LEASE_NS, consumer="spark")
    place = (found.queue, found.sequence, found.sequence)
    assert [each.body for each in rig.read(place).deliveries] == [b"1"]
    assert rig.confirm(place) == 0
    assert rig.counts("dead") == (0, 0, 0)


def test_places_that_nobody_knows_are_missing(rig: Reader) -> None:
    rig.publish("work", b"never fetched")
    assert rig.read((1, 1, 2), (9, 1, 1)) == Claimed([], 3)
    assert rig.confirm((1, 1, 2), (9, 1, 1)) == 3
