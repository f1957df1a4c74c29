"""The names that a batch defines are found by their numbers."""

from __future__ import annotations

from penstock.model.events import NameDefined, NameForgotten, QueueCreated
from penstock.model.settings import QueueSettings
from penstock.storage.log.names import names_defined, queues_created
from tests.support.samples import logged, seal


def test_the_queues_that_a_batch_creates_are_found_by_their_numbers() -> None:
    seventh = QueueCreated(5, 7, "seventh", QueueSettings())
    eighth = QueueCreated(6, 8, "achte", QueueSettings(retries=3))
    batch = seal([logged(1, b"before"), seventh, logged(2, b"between"), eighth])
    assert queues_created(*batch) == {7: "seventh", 8: "achte"}


def test_names_are_found_where_they_are_defined_and_where_they_are_forgotten() -> None:
    batch = seal([NameDefined(1, 3, "text/plain"), logged(1, b"\x01\x0c"), NameForgotten(2, 2, "größe")])
    assert names_defined(*batch) == {3: "text/plain", 2: "größe"}


def test_a_batch_of_messages_defines_nothing() -> None:
    batch = seal([logged(1, b"\x01\x02\x0c" * 100)])
    assert not names_defined(*batch)
    assert not queues_created(*batch)
