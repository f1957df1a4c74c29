"""How a message ended: an event alone says the same as the whole story."""

from __future__ import annotations

import pytest

from penstock.dialects.native.wait import outcome_document
from penstock.limits import NEVER_NS
from penstock.model.events import (
    DeadLettered,
    Declined,
    Deleted,
    Event,
    Expired,
    Failed,
    Fetched,
    HandedOver,
    Invalidated,
    MessageEvent,
    Succeeded,
)
from penstock.model.happening import happening
from penstock.model.kinds import ENDS
from penstock.model.outcomes import Outcome, outcome_of, progress_of
from penstock.model.story import fold
from penstock.model.traces import Traced
from penstock.model.waits import fate_of
from tests.support.samples import logged

ABOUT = (1, 1, 1001, 1, 7)  # Queue, sequence, created, receives, consumer.
FETCHED = Fetched(2000, *ABOUT, visible_at=9000)


def traced(*events: Event) -> Traced:
    story = fold([logged(1, b"body"), *events])
    return Traced((1, 1), story, None, {}, [], [], True, lambda _: None, lambda _: None)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (Succeeded(3000, *ABOUT, complete=True, result=b""), "success"),
        (Invalidated(3000, *ABOUT), "invalid"),
        (Declined(3000, *ABOUT), "not_interested"),
        (Failed(3000, *ABOUT), "failed"),
        (Expired(3000, *ABOUT), "expired"),
        (Deleted(3000, *ABOUT), "deleted"),
        (DeadLettered(3000, *ABOUT, False, 3000, NEVER_NS, to_queue=2, to_sequence=1), "dead_lettered"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_event_says_the_same_as_the_story(end: MessageEvent, outcome: str) -> None:
    alone, whole = outcome_of(happening(end), "done"), progress_of(traced(FETCHED, end), "done", 4000).outcome
    assert alone
    assert whole
    assert (alone.outcome, alone.letter, alone.time) == (outcome, whole.letter, whole.time)
    assert whole.outcome == outcome
    documents = [
        outcome_document("id", fate_of(each, lambda number: f"consumer {number}")) for each in (alone, whole)
    ]
    assert documents[0] == documents[1]


def test_every_kind_that_ends_a_message_has_an_outcome() -> None:
    for kind in ENDS:
        assert kind.row.letters[-1] in "SXINEKZD"


def test_a_message_that_is_handed_over_was_taken_and_is_done() -> None:
    end = HandedOver(3000, *ABOUT)
    for until in ("taken", "done"):
        for found in (outcome_of(happening(end), until), progress_of(traced(end), until, 4000).outcome):
            assert found == Outcome("K", 3000, 7, "handed_over")


def test_a_delivery_is_enough_for_taken_only() -> None:
    for found in (outcome_of(happening(FETCHED), "taken"), progress_of(traced(FETCHED), "taken", 4000).outcome):
        assert found == Outcome("F", 2000, 7)
    assert outcome_of(happening(FETCHED), "done") is None
    assert progress_of(traced(FETCHED), "done", 4000).outcome is None


def test_a_dead_letter_that_its_last_consumer_has_is_looked_at_again_when_the_lease_ends() -> None:
    moved = DeadLettered(3000, *ABOUT, True, 9000, NEVER_NS, to_queue=2, to_sequence=1)
    assert outcome_of(happening(moved), "done") is None
    progress = progress_of(traced(moved), "done", 4000)
    assert (progress.outcome, progress.look_again_at, set(progress.places)) == (None, 9000, {(1, 1), (2, 1)})
    late = progress_of(traced(moved), "done", 9001).outcome
    assert late
    assert late.outcome == "dead_lettered"
