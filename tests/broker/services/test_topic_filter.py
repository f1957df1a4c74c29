"""Messages that a reader follows because of their topics: how many it remembers, and which it forgets."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.broker.services.topic_filter import TopicFilter
from penstock.model.kinds import Kind
from penstock.storage.letters.columns import Values
from penstock.storage.letters.table import Columns, Table

COLUMNS = ("letter", "kind", "queue", "sequence", "created", "topics", "to_queue", "to_sequence")
WANTED = 7


class Given(Columns):
    """Columns with these events."""

    def __init__(self, events: tuple[tuple[Any, ...], ...]) -> None:
        self._events = events

    def numbers(self, name: str) -> Values:
        found = [event[COLUMNS.index(name)] for event in self._events]
        if name == "letter":
            return Values(np.array([ord(letter) for letter in found], dtype=np.uint8))
        valid = np.array([value is not None for value in found], dtype=np.bool_)
        return Values(np.array([value or 0 for value in found], dtype=np.uint64), None if valid.all() else valid)


def rows(*events: tuple[Any, ...]) -> Table:
    return Table(Given(events))


def logged(sequence: int, topics: int = WANTED, queue: int = 1) -> tuple[Any, ...]:
    return ("L", Kind.LOGGED, queue, sequence, sequence, topics, None, None)


def happened(letter: str, sequence: int, queue: int = 1, kind: Kind = Kind.FETCHED) -> tuple[Any, ...]:
    return (letter, kind, queue, sequence, sequence, 0, None, None)


def followed(most: int = 100) -> TopicFilter:
    return TopicFilter(lambda numbers: np.equal(numbers, WANTED), 0, most)


def shown(reader: TopicFilter, *events: tuple[Any, ...]) -> list[bool]:
    return list(map(bool, reader.mask(rows(*events))))


def test_later_events_are_recognised_by_their_place() -> None:
    reader = followed()
    reader.learn(rows(logged(1), logged(2, topics=8), logged(3)))
    fetched = [happened("F", sequence) for sequence in (1, 2, 3)]
    assert shown(reader, *fetched, happened("F", 1, queue=2)) == [True, False, True, False]


def test_a_message_that_moves_and_moves_on_in_one_piece_of_the_log_is_followed() -> None:
    reader = followed()
    dead = ("E", Kind.DEAD_LETTERED, 1, 1, 1, 0, 2, 5)
    moved = ("Q", Kind.MOVED, 3, 9, 1, 0, 2, 5)
    reader.learn(rows(logged(1), dead, moved))
    assert shown(reader, happened("F", 5, queue=2), happened("F", 9, queue=3), happened("F", 9, queue=2)) == [
        True,
        True,
        False,
    ]


def test_the_end_of_a_queue_is_shown_if_a_followed_message_is_still_in_it() -> None:
    reader = followed()
    reader.learn(rows(logged(1), logged(1, queue=2), happened("X", 1, queue=2, kind=Kind.COMPLETED)))
    ends = [("D", Kind.QUEUE_REMOVED, queue, None, None, 0, None, None) for queue in (1, 2, 3)]
    assert shown(reader, *ends) == [True, False, False]


def test_what_has_ended_is_forgotten_first_and_then_the_oldest() -> None:
    reader = followed(most=3)
    reader.learn(rows(*[logged(sequence) for sequence in (1, 2, 3)], happened("X", 2, kind=Kind.COMPLETED)))
    reader.learn(rows(logged(4)))
    assert shown(reader, *[happened("F", sequence) for sequence in (1, 2, 3, 4)]) == [True, False, True, True]
    reader.learn(rows(logged(5)))
    assert shown(reader, *[happened("F", sequence) for sequence in (1, 3, 4, 5)]) == [False, True, True, True]


def test_who_is_met_without_having_entered_is_looked_for_where_it_was_created() -> None:
    reader = followed()
    assert reader._oldest_unknown(rows(logged(5), happened("F", 5))) is None
    assert reader._oldest_unknown(rows(logged(5), happened("F", 3), happened("F", 2))) == 2
    assert reader._oldest_unknown(rows()) is None
