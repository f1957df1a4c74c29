"""Rows against a plain dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.rows import ROW_BYTES, Row, Rows
from penstock.limits import NEVER_NS, ROWS_PER_CHUNK
from penstock.model.kinds import State
from tests.support.effort import effort

u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(0, 2**63 - 1)
states = st.sampled_from([State.READY, State.DELAYED, State.LEASED]).map(int)
bits = st.integers(0, 1)
rows = st.builds(
    Row,
    visible_at=i64,
    receives=u32,
    consumer=u32,
    state=states,
    marks=bits,
    key_bytes=st.integers(0, 1024),
    priority=u32,
    position=st.integers(0, 2**64 - 1),
    created=i64,
    expires_at=i64,
    body_bytes=u32,
    headers_bytes=u32,
    content_type=u32,
    sender=u32,
    lease_ns=i64,
    object=u32,
    topics=u32,
)


class RowsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rows = Rows()
        self.model: dict[int, Row] = {}
        self.last = 0

    @rule(row=rows, skip=st.sampled_from([1, 1, 1, 2, 31, 100]))
    def add(self, row: Row, skip: int) -> None:
        """Sequences grow; those skipped came and went."""
        self.last += skip
        self.rows.add(self.last, row)
        self.model[self.last] = row

    @rule(data=st.data(), lease=st.tuples(i64, u32, u32, states, bits))
    def change(self, data: st.DataObject, lease: tuple[int, int, int, int, int]) -> None:
        if self.model:
            sequence = data.draw(st.sampled_from(sorted(self.model)))
            self.rows.change(sequence, *lease)
            self.model[sequence] = Row._make((*lease, *self.model[sequence][len(lease) :]))

    @rule(data=st.data(), position=i64)
    def move(self, data: st.DataObject, position: int) -> None:
        if self.model:
            sequence = data.draw(st.sampled_from(sorted(self.model)))
            self.rows.move(sequence, position)
            self.model[sequence] = self.model[sequence]._replace(position=position)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.model:
            sequence = data.draw(st.sampled_from(sorted(self.model)))
            self.rows.remove(sequence)
            del self.model[sequence]

    @rule()
    def snapshot_and_restore(self) -> None:
        pieces = list(self.rows.tables())
        restored = Rows()
        for piece in pieces:
            restored.restore(piece)
        assert [[column.tobytes() for column in piece] for piece in restored.tables()] == [
            [column.tobytes() for column in piece] for piece in pieces
        ]
        self.rows = restored

    @invariant()
    def agree(self) -> None:
        assert self.rows.count == len(self.model)
        for sequence in range(1, self.last + 2):
            row = self.model.get(sequence)
            assert self.rows.get(sequence) == row
            if row:
                assert self.states_at(row.visible_at, sequence) == [row.state]
                assert self.states_at(row.visible_at ^ 1, sequence) == []
                assert self.rows.is_alive(row.expires_at, sequence)
                assert not self.rows.is_alive(row.expires_at ^ 1, sequence)
        assert self.rows.oldest() == (self.model[min(self.model)] if self.model else None)

    def states_at(self, time: int, sequence: int) -> list[int]:
        rows = self.rows
        are_in = {State.READY: rows.is_ready, State.DELAYED: rows.is_delayed, State.LEASED: rows.is_leased}
        return [state for state, is_in in are_in.items() if is_in(time, sequence)]

    @invariant()
    def neighbours_agree(self) -> None:
        there = sorted(self.model)
        newest = [
            first + index
            for first, window in self.rows.newest_first()
            for index in np.flatnonzero(window["state"]).tolist()[::-1]
        ]
        assert newest == there[::-1]
        for sequence in range(0, self.last + 40, 7):
            assert self.rows.first_from(sequence) == next((each for each in there if each >= sequence), None)
            for chunks in (2, 50):  # The first one may hold nothing but what comes before.
                sequences, rows = self.rows.piece_from(sequence, chunks)
                found = [each for each in there if each >= sequence]
                assert sequences.tolist() == found[: len(sequences)]
                assert bool(len(sequences)) == bool(found)
                assert len(sequences) == len(rows)
            window = self.rows.window(sequence, 45)
            assert [sequence + index for index in np.flatnonzero(window["state"]).tolist()] == [
                each for each in there if sequence <= each < sequence + 45
            ]

    @invariant()
    def a_chunk_lives_as_long_as_its_last_row(self) -> None:
        assert self.rows._chunks.keys() == {sequence // ROWS_PER_CHUNK for sequence in self.model}


RowsMachine.TestCase.settings = effort(20)
test_rows_behave_like_a_dictionary = RowsMachine.TestCase


def test_a_removed_message_neither_holds_nor_expires() -> None:
    table = Rows()
    row = Row(10, 0, 0, State.READY, 0, 0, 0, 0, 1, 99, 0, 0, 0, 0, 0, 0, 0)
    table.add(1, row)
    table.add(2, row)
    table.remove(1)
    assert table.get(1) is None
    assert not table.is_ready(10, 1)
    assert not table.is_alive(99, 1)


@pytest.mark.parametrize("sequences", [[1, 2, 3], [1, 3]], ids=["a run", "with gaps"])
def test_of_the_messages_that_are_removed_together_those_are_known_that_would_have_expired(
    sequences: list[int],
) -> None:
    table = Rows()
    row = Row(10, 0, 0, State.READY, 0, 0, 0, 0, 1, 99, 0, 0, 0, 0, 0, 0, 0)
    for sequence, expires_at in enumerate((99, NEVER_NS, 98), start=1):
        table.add(sequence, row._replace(expires_at=expires_at))
    assert table.remove_many(sequences) == [1, 3]
    assert table.count == 3 - len(sequences)


def test_a_snapshot_of_many_rows_comes_in_bounded_pieces() -> None:
    table = Rows()
    count = 128 * ROWS_PER_CHUNK + 100
    row = tuple(Row(10, 0, 0, State.READY, 0, 0, 0, 0, 1, 99, 0, 0, 0, 0, 0, 0, 0))
    for sequence in range(count):
        table.add(sequence, row)
    pieces = list(table.tables())
    assert [len(sequences) for sequences, _ in pieces] == [128 * ROWS_PER_CHUNK, 100]
    assert max(rows.nbytes for _, rows in pieces) <= 128 * ROWS_PER_CHUNK * ROW_BYTES
    restored = Rows()
    for piece in pieces:
        restored.restore(piece)
    assert restored.count == count
    assert restored.get(count - 1) == Row._make(row)


def test_the_next_message_is_found_over_a_wide_gap() -> None:
    table = Rows()
    row = Row(10, 0, 0, State.READY, 0, 0, 0, 0, 1, 99, 0, 0, 0, 0, 0, 0, 0)
    for sequence in (5, 100_000, 200_000):
        table.add(sequence, row)
    assert [table.first_from(sequence) for sequence in (0, 6, 100_001, 200_001)] == [5, 100_000, 200_000, None]
    assert [table.piece_from(0, count)[0].tolist() for count in (1, 2, 3)] == [
        [5],
        [5, 100_000],
        [5, 100_000, 200_000],
    ]
    table.remove(100_000)
    assert table.first_from(6) == 200_000


def test_rows_of_an_older_snapshot_get_no_object_and_no_topics() -> None:
    table = Rows()
    row = Row(10, 1, 2, State.LEASED, 1, 3, 4, 5, 6, 99, 7, 8, 9, 10, 11, 12, 13)
    table.add(1, row)
    table.add(70, row)
    ((sequences, rows),) = table.tables()
    old = np.frombuffer(b"".join([each.tobytes()[:72] for each in rows]), dtype=np.uint8)
    restored = Rows()
    restored.restore((sequences, old))
    assert [restored.get(sequence) for sequence in (1, 70)] == [row._replace(object=0, topics=0)] * 2
