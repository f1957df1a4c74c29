"""How long a message waits before its next delivery: by the back-off of its queue, or as its consumer asked."""

from __future__ import annotations

import pytest

from penstock.limits import SECOND_NS
from penstock.model.events import Retried, TimedOut
from tests.support.engine_rig import Rig


def waits(rig: Rig, queue: str, times: int) -> list[float]:
    """How long a message waits after each of its deliveries, all of which its consumer lets run out."""
    found = []
    for _ in range(times):
        assert len(rig.fetch(queue, 1)) == 1
        rig.wait(30)
        event = rig.events[-1]
        assert isinstance(event, TimedOut)
        found.append((event.visible_at - event.time) / SECOND_NS)
        rig.wait(found[-1])
    return found


@pytest.mark.parametrize(
    ("growth", "expected"),
    [("fixed", [10, 10, 10, 10]), ("linear", [10, 20, 30, 35]), ("exponential", [10, 20, 35, 35])],
)
def test_the_delay_grows_with_each_delivery_up_to_its_limit(growth: str, expected: list[float]) -> None:
    rig = Rig()
    rig.create("q", retry_delay_ns=10 * SECOND_NS, retry_backoff=growth, retry_delay_max_ns=35 * SECOND_NS)
    rig.publish("q", b"x")
    assert waits(rig, "q", 4) == expected


def test_a_message_is_hidden_until_its_delay_is_over() -> None:
    rig = Rig()
    rig.create("q", retry_delay_ns=10 * SECOND_NS)
    rig.publish("q", b"x")
    rig.release(*rig.fetch("q", 1))
    assert isinstance(rig.events[-1], Retried)
    assert rig.counts("q") == (0, 0, 1)
    rig.wait(9)
    assert rig.bodies("q") == []
    rig.wait(1)
    assert rig.bodies("q") == [b"x"]


def test_without_a_delay_a_message_is_ready_at_once() -> None:
    rig = Rig()
    rig.create("q", retry_backoff="exponential", retry_jitter=1.0)
    rig.publish("q", b"x")
    assert waits(rig, "q", 3) == [0, 0, 0]


def test_the_delay_that_a_consumer_asks_for_counts_instead() -> None:
    rig = Rig()
    rig.create("q", retry_delay_ns=10 * SECOND_NS)
    rig.publish("q", b"x")
    rig.release(*rig.fetch("q", 1), delay_ns=3 * SECOND_NS)
    rig.wait(3)
    assert rig.bodies("q") == [b"x"]


def test_jitter_spreads_messages_that_failed_together_and_takes_off_no_more_than_its_share() -> None:
    rig = Rig()
    rig.create("q", retry_delay_ns=10 * SECOND_NS, retry_jitter=0.4)
    rig.publish("q", *[b"%d" % number for number in range(100)])
    assert len(rig.fetch("q", 100)) == 100
    rig.wait(30)
    delays = {event.visible_at - event.time for event in rig.events if isinstance(event, TimedOut)}
    assert len(delays) == 100
    assert 6 * SECOND_NS <= min(delays) < 7 * SECOND_NS
    assert 9 * SECOND_NS < max(delays) <= 10 * SECOND_NS
