"""Rows of decoded batches without Arrow: the same values as a plain loop over the events gives."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from penstock.model.events import Event
from penstock.storage.letters.table import Table, table_of
from tests.storage.arrow.test_columns import WITHOUT_NAMES, Row, any_event, plain_rows
from tests.support.samples import seal_all

groups_of_events = st.lists(st.lists(any_event, min_size=1, max_size=8), max_size=5)


def rows_of(table: Table) -> list[Row]:
    columns = [table.objects(name) for name in WITHOUT_NAMES]
    return [dict(zip(WITHOUT_NAMES, row, strict=True)) for row in zip(*columns, strict=True)]


@given(groups_of_events)
def test_any_batches_give_the_rows_that_a_plain_loop_gives(groups: list[list[Event]]) -> None:
    batches = seal_all(groups)
    assert rows_of(table_of(batches)) == [row for batch in batches for row in plain_rows(*batch)]


@given(groups_of_events, st.data())
def test_chosen_rows_have_the_values_that_they_had_among_all(groups: list[list[Event]], data: st.DataObject) -> None:
    table = table_of(seal_all(groups))
    rows = rows_of(table)
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    start = data.draw(st.integers(0, len(rows)))
    kept = [row for row, chosen in zip(rows, mask, strict=True) if chosen]
    chosen = table.filter(np.array(mask, dtype=np.bool_))
    assert rows_of(chosen) == kept
    assert rows_of(chosen.slice(start, 3)) == kept[start : start + 3]
    assert rows_of(table.slice(start)) == rows[start:]
    assert len(chosen) == len(kept)
