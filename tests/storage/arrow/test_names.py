"""Names in Arrow tables: learnt from the log or given, dictionary-encoded, null where unknown."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.model.events import (
    Fetched,
    NameDefined,
    NameForgotten,
    QueueCreated,
)
from penstock.model.settings import QueueSettings
from penstock.storage.arrow.columns import (
    COLUMNS,
    decode,
)
from penstock.storage.arrow.names import Names
from tests.support.samples import logged, seal, seal_all

Row = dict[str, Any]

NUMBERED = ("consumer", "content_type", "sender", "object", "topics")
WITHOUT_NAMES = tuple(name for name in COLUMNS if name != "queue_name")


def test_names_are_learnt_from_the_batches_and_stay_known_for_later_ones() -> None:
    first, second = seal_all(
        [
            [
                QueueCreated(1, 1, "orders", QueueSettings()),
                NameDefined(1, 1, "text/plain"),
                logged(7, b"", content_type=1),
            ],
            [logged(7, b"", content_type=1), NameDefined(3, 2, "worker"), Fetched(4, 1, 7, 1, 1, 2, visible_at=9)],
        ]
    )
    names = Names()
    columns = ["queue_name", "content_type", "consumer"]
    assert (
        decode([first], columns, names).to_pylist()
        == [{"queue_name": "orders", "content_type": "text/plain", "consumer": None}] * 2
    )
    assert decode([second], columns, names).to_pylist()[-1] == {
        "queue_name": "orders",
        "content_type": None,
        "consumer": "worker",
    }


def test_names_given_from_outside_need_no_definitions() -> None:
    names = Names({1: "text/plain"}, {1: "orders", 9: "late"})
    row = decode([seal([logged(7, b"", content_type=1)])], ["queue_name", "content_type"], names).to_pylist()[0]
    assert row == {"queue_name": "orders", "content_type": "text/plain"}


@pytest.mark.parametrize("number", [0, 3, 4, 1 << 31])
def test_a_number_that_nobody_defined_has_no_name(number: int) -> None:
    names = Names()
    names.define(2, "b")
    names.define(5, "e")
    table = decode([seal([logged(7, b"", sender=number), logged(7, b"", sender=5)])], ["sender"], names)
    table.validate(full=True)
    assert table.column("sender").to_pylist() == [None, None, "e", "e"]


@pytest.mark.parametrize("number", [0, 3, 4, 1 << 30, (1 << 31) - 1])
def test_names_with_numbers_far_apart_are_found_too(number: int) -> None:
    names = Names({2: "b", 5: "e", (1 << 31) - 2: "z"})
    numbers = (number, 2, 5, (1 << 31) - 2)
    table = decode([seal([logged(7, b"", sender=each) for each in numbers])], ["sender"], names)
    table.validate(full=True)
    assert table.column("sender").to_pylist()[::2] == [None, "b", "e", "z"]


def test_a_name_that_is_forgotten_is_known_to_readers_by_what_the_record_repeats() -> None:
    names = Names()
    decode([seal([NameForgotten(1, 7, "text/plain")])], ["content_type"], names)
    rows = decode([seal([logged(7, b"", content_type=7)])], ["content_type"], names).to_pylist()
    assert rows == [{"content_type": "text/plain"}] * 2


def test_names_are_dictionary_encoded_and_numbers_without_a_table() -> None:
    batch = seal([logged(7, b"", sender=3)])
    assert decode([batch], ["sender"]).column("sender").to_pylist() == [3, 3]
    assert pa.types.is_dictionary(decode([batch], ["sender"], Names()).schema.field("sender").type)
