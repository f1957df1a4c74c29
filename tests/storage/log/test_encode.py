"""Events to bytes and back: every kind, alone and in batches."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedLogError
from penstock.model.events import Event, Logged, MessageEvent, NameDefined, NameForgotten, Queued, QueuedRun
from penstock.model.kinds import Kind
from penstock.model.shard_events import Learned, LearnedRun
from penstock.storage.log.batch import HAS_DIGEST, HEADER_BYTES, RECORD_BYTES, is_whole, read_header, records_of
from penstock.storage.log.decode import events_at, events_of
from penstock.storage.log.encode import Batch, _encoder_of
from tests.support.effort import effort
from tests.support.samples import events, every_kind, logged, queued_apart, seal


def sealed(batch_events: list[Event], base_offset: int = 7, base_position: int = 1000) -> tuple[bytes, list[int]]:
    batch = Batch(base_offset, base_position)
    positions = [batch.add(event) for event in batch_events]
    assert batch.count == len(batch_events)
    data = batch.seal(99)
    assert len(data) == batch.end.position - base_position
    return data, positions


@pytest.mark.parametrize("kind", every_kind, ids=lambda kind: kind.__name__)
def test_every_event_comes_back_as_it_was(kind: type[Event]) -> None:
    @effort(40)
    @given(every_kind[kind])
    def comes_back(event: Event) -> None:
        data, positions = sealed([event])
        header = read_header(data)
        assert header is not None
        assert list(events_of(header, data[HEADER_BYTES:])) == [(event, positions[0])]

    comes_back()


@effort(40)
@given(st.lists(every_kind[Queued], min_size=1, max_size=6))
def test_a_run_of_references_is_written_as_each_of_them(queued: list[Queued]) -> None:
    alike = [msgspec.structs.replace(event, time=queued[0].time) for event in queued]
    columns = [[getattr(event, name) for event in alike] for name in Queued.__struct_fields__[1:]]
    run = QueuedRun(queued[0].time, *columns)
    assert queued_apart(run) == alike
    together, apart = Batch(0, 0), Batch(0, 0)
    together.add(run)
    for event in alike:
        apart.add(event)
    assert (together.count, together.seal(1)) == (len(alike), apart.seal(1))


def test_there_is_a_sample_of_every_kind() -> None:
    assert {kind.kind for kind in every_kind} == set(Kind)


@effort(150)
@given(st.lists(events, min_size=1, max_size=12), st.integers(0, 2**60), st.integers(0, 2**60))
def test_a_batch_comes_back_whole_with_its_positions(written: list[Event], offset: int, position: int) -> None:
    data, positions = sealed(written, offset, position)
    header = read_header(data)
    assert header is not None
    assert (header.base_offset, header.base_position, header.time) == (offset, position, 99)
    assert (header.records, header.total_bytes) == (len(written), len(data))
    payload = data[HEADER_BYTES:]
    assert is_whole(header, payload)
    assert not is_whole(header, payload[:-1])
    assert list(events_of(header, payload)) == list(zip(written, positions, strict=True))


@effort(150)
@given(st.lists(events, min_size=1, max_size=12))
def test_the_columns_agree_with_the_events(written: list[Event]) -> None:
    data, _ = sealed(written)
    header = read_header(data)
    assert header is not None
    table = records_of(header, data[HEADER_BYTES:])
    assert table["kind"].tolist() == [event.kind for event in written]
    assert table["time"].tolist() == [event.time for event in written]
    for record, event in zip(table, written, strict=True):
        named = set(table.dtype.names or ())
        for field in event.__struct_fields__:
            if field in named:
                assert record[field] == getattr(event, field), field
        match event:
            case Logged():
                assert record["created"] == getattr(event, "created", event.time)
                assert record["to_sequence"] == event.lease_ns
                assert record["body_bytes"] == len(event.body)
                assert (record["key_bytes"], record["headers_bytes"]) == (len(event.key), len(event.headers))
                assert bool(record["flags"] & HAS_DIGEST) == bool(event.digest)
            case NameDefined() | NameForgotten():
                assert (record["queue"], record["body_bytes"]) == (event.number, len(event.text.encode()))
            case MessageEvent() | Queued() | Learned():
                assert record["created"] == event.created
            case _:
                assert record["created"] == event.time


@effort(100)
@given(st.lists(events, min_size=1, max_size=12))
def test_the_lengths_in_the_records_cover_the_heap(written: list[Event]) -> None:
    data, _ = sealed(written)
    header = read_header(data)
    assert header is not None
    table = records_of(header, data[HEADER_BYTES:])
    lengths = table["body_bytes"].sum() + table["key_bytes"].sum() + table["headers_bytes"].sum()
    assert lengths + 32 * (table["flags"] & HAS_DIGEST != 0).sum() == header.heap_bytes
    assert len(data) == HEADER_BYTES + header.heap_bytes + RECORD_BYTES * len(written)


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.binary(min_size=1, max_size=9)), min_size=1, max_size=9))
def test_a_run_of_versions_is_written_as_each_of_them(versions: list[tuple[int, bytes]]) -> None:
    sequences, keys = [sequence for sequence, _ in versions], [key for _, key in versions]
    contents = [bytes(range(at, at + 16)) for at in range(len(keys))]
    single, together = Batch(0, 500), Batch(0, 500)
    for sequence, key, content in zip(sequences, keys, contents, strict=True):
        single.add(Learned(3, 6, sequence, 2, 1, key, content))
    together.add(LearnedRun(3, 6, sequences, 2, 1, keys, contents))
    assert together.seal(4) == single.seal(4)


def test_an_extent_is_read_while_its_batch_still_collects() -> None:
    batch = Batch(0, 500)
    first = batch.add(logged(1, b"one", key=b"k", headers=b"h"))
    second = batch.add(logged(2, b"two"))
    assert (batch.read(first, 5), batch.read(second, 3), batch.read(second, 0)) == (b"onekh", b"two", b"")
    data = batch.seal(1)
    assert data[first - 500 :][:5] == b"onekh"
    assert data[second - 500 :][:3] == b"two"


def test_an_empty_batch_has_nothing_to_commit() -> None:
    batch = Batch(0, 0)
    assert batch.size == 0
    batch.add(NameDefined(1, 1, ""))
    assert batch.size > 0


def test_an_event_with_a_field_that_records_do_not_have_is_refused() -> None:
    class Coloured(Event, frozen=True, gc=False):
        kind = Kind.EXPIRED
        colour: str

    with pytest.raises(AssertionError, match="Coloured"):
        _encoder_of(Coloured)


@effort(60)
@given(st.lists(events, min_size=1, max_size=12), st.data())
def test_some_events_of_a_batch_are_found_by_their_indices(written: list[Event], data: st.DataObject) -> None:
    chosen = sorted(data.draw(st.sets(st.integers(0, len(written) - 1))))
    assert list(events_at(*seal(written), chosen)) == [(at, written[at]) for at in chosen]


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [(0, 99, "unknown event kind 99: written by a newer version, or damaged"), (88, 7, "its records add up to")],
    ids=["kind", "size of the body"],
)
def test_a_record_that_cannot_be_read_is_damage_though_its_checksum_is_right(
    place: int, value: int, problem: str
) -> None:
    header = read_header(data := sealed([logged(1, b"body")])[0])
    assert header is not None
    payload = bytearray(data[HEADER_BYTES:])
    payload[header.heap_bytes + place] = value
    for read in (events_of(header, bytes(payload)), events_at(header, bytes(payload), [0])):
        with pytest.raises(DamagedLogError, match=problem):
            list(read)
