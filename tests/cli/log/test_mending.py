"""A replay with gaps: what an event presupposes is made up or noted, and nothing stops it."""

from __future__ import annotations

from penstock.cli.log.losses import QueueLosses
from penstock.cli.log.mending import Mender
from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS
from penstock.model.events import Event, Fetched, Logged, NameDefined, QueueCreated, Succeeded
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos

CREATED = QueueCreated(1, 1, "orders", QueueSettings())


def logged(time: Nanos, sequence: int, content_type: int = 0) -> Logged:
    names = {"content_type": content_type, "sender": 0, "object": 0, "topics": 0}
    content = {"key": b"", "headers": b"", "digest": b"", "body": b"body"}
    times = {"visible_at": time, "expires_at": NEVER_NS, "lease_ns": 0}
    return Logged(time=time, queue=1, sequence=sequence, priority=0, **times, **names, **content)  # type: ignore[arg-type]


def mended(*steps: Event | int, texts: dict[int, str] | None = None) -> tuple[Mender, QueueLosses]:
    """Apply events; a number stands for that many events that are lost."""
    mender = Mender(Engine(), texts or {})
    for step in steps:
        if isinstance(step, int):
            mender.lose(step)
        else:
            mender.apply(step, 0)
    return mender, mender.finish(ends_open=False)[0]


def test_a_later_message_shows_which_are_missing() -> None:
    _, queue = mended(CREATED, logged(2, 1), 9, logged(3, 5))
    assert (queue.lost, queue.unknown, queue.messages) == ([(2, 4)], [], 2)


def test_without_a_later_message_as_many_may_be_missing_as_events_and_none_is_given_out_again() -> None:
    mender, queue = mended(CREATED, logged(2, 1), 9)
    assert (queue.lost, queue.unknown) == ([], [(2, 10)])
    assert mender.engine.queues[1].last_sequence == 10


def test_a_message_that_arrived_in_a_gap_and_was_finished_later_is_not_lost() -> None:
    finished = Succeeded(4, 1, 3, 2, 1, 0, complete=True, result=b"")
    _, queue = mended(CREATED, logged(2, 1), 9, Fetched(3, 1, 3, 2, 1, 0, visible_at=9), finished, logged(5, 4))
    assert queue.lost == [(2, 2)]


def test_a_message_whose_finish_may_be_lost_is_kept_and_counted() -> None:
    _, queue = mended(CREATED, logged(2, 1), Fetched(3, 1, 1, 2, 1, 0, visible_at=9), 1, logged(5, 2))
    assert (queue.messages, queue.may_return) == (2, 1)


def test_a_message_that_was_given_back_in_a_gap_can_be_fetched_again() -> None:
    first, second = (Fetched(time, 1, 1, 2, 1, 0, visible_at=time + 9) for time in (3, 6))
    done = Succeeded(7, 1, 1, 2, 2, 0, complete=True, result=b"")
    _, queue = mended(CREATED, logged(2, 1), first, 1, second, done)
    assert (queue.messages, queue.lost) == (0, [])


def test_a_queue_that_was_created_in_a_gap_gets_a_name() -> None:
    _, queue = mended(5, logged(2, 3))
    assert (queue.name, queue.lost, queue.messages) == ("salvaged-1", [(1, 2)], 1)
    assert queue.notes == ["Its name and its settings are lost."]


def test_a_name_that_was_defined_in_a_gap_is_found_elsewhere_or_becomes_none() -> None:
    found, _ = mended(CREATED, 1, logged(2, 1, content_type=7), texts={7: "text/plain"})
    assert found.engine.names.texts[7] == "text/plain"
    lost, _ = mended(CREATED, 1, logged(2, 1, content_type=7))
    row = lost.engine.queues[1].rows.get(1)
    assert row is not None
    assert row.content_type == 0
    assert lost.notes() == ["1 content types, senders, objects, topics or consumers of messages are lost."]


def test_a_name_that_is_defined_twice_because_forgetting_it_was_lost_is_one_name() -> None:
    again = NameDefined(3, 9, "text/plain")
    mender, _ = mended(CREATED, NameDefined(2, 4, "text/plain"), 1, again, logged(4, 1, content_type=9))
    row = mender.engine.queues[1].rows.get(1)
    assert row is not None
    assert row.content_type == 4
    assert mender.engine.names.next_number(mender.engine.names.last) == 10, "no number is used twice"


def test_an_event_that_does_not_fit_stops_nothing_even_if_no_gap_is_known() -> None:
    _, queue = mended(CREATED, Succeeded(2, 1, 4, 1, 1, 0, complete=True, result=b""), logged(3, 5))
    assert (queue.messages, queue.lost) == (1, [(1, 3)])
