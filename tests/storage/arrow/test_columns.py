"""Batches as Arrow: the same rows as a plain loop over the events gives."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from penstock.errors import DamagedLogError
from penstock.limits import NEVER_NS
from penstock.model.events import (
    Carried,
    Completed,
    DeadLettered,
    Declined,
    Deleted,
    Delivered,
    Event,
    Expired,
    Extended,
    Failed,
    Fetched,
    HandedOver,
    HandedToReceiver,
    Invalidated,
    Logged,
    MessageEvent,
    Moved,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
    QueueRemoved,
    ReceiverMoved,
    Rescheduled,
    ResultCarried,
    ResultStored,
    Retried,
    Succeeded,
    Unchanged,
)
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings
from penstock.storage.arrow.columns import (
    COLUMNS,
    FIXED_COLUMNS,
    TYPES,
    decode,
    decode_grouped,
    schema,
)
from penstock.storage.arrow.names import Names
from penstock.storage.letters.forms import RECORDS_PER_GROUP
from penstock.storage.log.batch import Header
from penstock.storage.log.decode import events_of
from tests.support.samples import seal, seal_all

Row = dict[str, Any]

NUMBERED = ("consumer", "content_type", "sender", "object", "topics")
WITHOUT_NAMES = tuple(name for name in COLUMNS if name != "queue_name")


def logged(**changed: Any) -> Logged:
    facts: dict[str, Any] = {
        "time": 100,
        "queue": 1,
        "sequence": 7,
        "visible_at": 100,
        "expires_at": NEVER_NS,
        "priority": 0,
        "content_type": 0,
        "sender": 0,
        "object": 0,
        "topics": 0,
        "lease_ns": 0,
        "key": b"",
        "headers": b"",
        "digest": b"",
        "body": b"hello",
    }
    return Logged(**{**facts, **changed})


def dead_lettered(*, fetched: bool) -> DeadLettered:
    return DeadLettered(
        *(200, 1, 7, 100, 3, 5), fetched=fetched, visible_at=230, expires_at=900, to_queue=2, to_sequence=1
    )


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Rows with times as numbers: Arrow makes no Python value of a nanosecond."""
    for at, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            batch = batch.set_column(at, field.name, batch.column(at).cast(pa.int64()))
    rows: list[Row] = batch.to_pylist()
    return rows


# ── The plain loop ────────────────────────────────────────────────────────────────────────────────────────


def plain_rows(header: Header, payload: bytes) -> list[Row]:
    rows: list[Row] = []
    for at, (event, _) in enumerate(events_of(header, payload)):
        rows += [row | {"offset": header.base_offset + at, "kind": int(event.kind)} for row in expand(event)]
    return rows


def expand(event: Event) -> list[Row]:
    if isinstance(event, Logged):
        facts = message_facts(event, created=event.time)
        for name in ("visible_at", "priority", "content_type", "sender", "object", "topics"):
            facts[name] = getattr(event, name)
        facts["expires_at"] = known_time(event.expires_at)
        content = {name: getattr(event, name) or None for name in ("key", "headers", "digest")}
        return [facts | {"letter": "L", "body": event.body} | content, facts | {"letter": "Q"}]
    if isinstance(event, Queued | Unchanged):
        return expand_reference(event)
    if isinstance(event, QueueRemoved):
        nobody = dict.fromkeys(WITHOUT_NAMES) | dict.fromkeys(NUMBERED, 0) | {"receives": 0, "consumer": 0}
        return [nobody | {"letter": "D", "time": event.time, "queue": event.queue}]
    if isinstance(event, NameDefined | NameForgotten | QueueCreated | QueueChanged | Carried):
        return []
    if isinstance(event, ReceiverMoved | ResultCarried | Extended | Rescheduled):
        return []
    assert isinstance(event, MessageEvent)
    facts = message_facts(event, created=event.created, receives=event.receives, consumer=event.consumer)
    if isinstance(event, Succeeded):
        completed = [facts | {"letter": "X"}] if event.complete else []
        return [facts | {"letter": "S", "result": event.result or None}, *completed]
    if isinstance(event, DeadLettered):
        taken = [facts | {"letter": "F", "visible_at": event.visible_at}] if event.fetched else []
        given_up = facts | {"letter": "E", "to_queue": event.to_queue, "to_sequence": event.to_sequence}
        there = facts | {"letter": "Q", "queue": event.to_queue, "sequence": event.to_sequence}
        there |= {"visible_at": event.visible_at, "expires_at": known_time(event.expires_at)}
        return [*taken, given_up, there | {"receives": 0, "consumer": 0}]
    if isinstance(event, Moved):
        there = facts | {"letter": "Q", "queue": event.to_queue, "sequence": event.to_sequence}
        there |= {"visible_at": event.visible_at, "expires_at": known_time(event.expires_at)}
        return [there | {"receives": 0, "consumer": 0, "to_queue": event.queue, "to_sequence": event.sequence}]
    if isinstance(event, ResultStored):
        return [facts | {"letter": "S", "result": event.result or None}]
    if isinstance(event, Fetched | Retried | Delivered):
        facts["visible_at"] = known_time(event.visible_at)
    letters = {Fetched: "F", HandedOver: "K", Retried: "R", Failed: "E", Expired: "Z", Deleted: "D"}
    letters |= {Delivered: "F", HandedToReceiver: "K", Invalidated: "I", Declined: "N", Completed: "X"}
    return [facts | {"letter": letters[type(event)]}]


def expand_reference(event: Queued | Unchanged) -> list[Row]:
    facts = message_facts(event, created=event.created if isinstance(event, Queued) else event.time)
    for name in ("priority", "content_type", "sender", "object", "topics", "to_queue", "to_sequence"):
        facts[name] = getattr(event, name)
    if isinstance(event, Unchanged):
        return [facts | {"letter": "L", "key": event.key or None}, facts | {"letter": "U"}]
    times = {"visible_at": known_time(event.visible_at), "expires_at": known_time(event.expires_at)}
    return [facts | times | {"letter": "Q"}]


def message_facts(event: Any, *, created: int, receives: int = 0, consumer: int = 0) -> Row:
    row: Row = dict.fromkeys(WITHOUT_NAMES)
    row |= dict.fromkeys(NUMBERED, 0)
    row |= {"time": event.time, "queue": event.queue, "sequence": event.sequence}
    return row | {"created": created, "receives": receives, "consumer": consumer}


def known_time(time: int) -> int | None:
    return None if time == NEVER_NS else time


# ── Any events ────────────────────────────────────────────────────────────────────────────────────────────

times = st.integers(1, 1 << 62)
numbers = st.integers(0, (1 << 31) - 1)
sequences = st.integers(1, 1 << 44)
texts = st.binary(max_size=20)
about = (times, numbers, sequences, times, numbers, numbers)
settings = st.just(QueueSettings())
any_event = st.one_of(
    st.builds(
        Logged,
        *(times, numbers, sequences, times, times | st.just(NEVER_NS), st.integers(0, (1 << 32) - 1)),
        *(numbers, numbers, numbers, numbers, times),
        *(texts, texts, st.sampled_from((b"", bytes(range(32)))), texts),
    ),
    st.builds(
        Queued,
        *(times, numbers, sequences, times, times, times | st.just(NEVER_NS), st.integers(0, (1 << 32) - 1)),
        *(numbers, numbers, numbers, numbers, numbers, sequences),
    ),
    st.builds(
        Unchanged,
        *(times, numbers, sequences, st.integers(0, (1 << 32) - 1)),
        *(numbers, numbers, numbers, numbers, numbers, sequences, texts),
    ),
    st.one_of(*(st.builds(kind, *about) for kind in (Invalidated, Declined, Completed))),
    st.one_of(*(st.builds(kind, *about, visible_at=times) for kind in (Extended, Rescheduled))),
    st.builds(Moved, *about, times, times | st.just(NEVER_NS), numbers, sequences),
    st.builds(Fetched, *about, visible_at=times),
    st.builds(Retried, *about, visible_at=times),
    st.builds(Succeeded, *about, complete=st.booleans(), result=texts),
    st.builds(
        DeadLettered,
        *about,
        fetched=st.booleans(),
        visible_at=times,
        expires_at=times | st.just(NEVER_NS),
        to_queue=numbers,
        to_sequence=sequences,
    ),
    st.one_of(*(st.builds(kind, *about) for kind in (HandedOver, Failed, Expired, Deleted, HandedToReceiver))),
    st.builds(Carried, *about, extent=texts),
    st.builds(Delivered, *about, visible_at=times | st.just(NEVER_NS)),
    st.builds(ResultStored, *about, result=texts),
    st.builds(ResultCarried, *about, result=texts),
    st.builds(ReceiverMoved, times, numbers, sequences, numbers),
    st.builds(NameDefined, times, numbers, st.text(max_size=5)),
    st.builds(NameForgotten, times, numbers, st.text(max_size=5)),
    st.builds(QueueCreated, times, numbers, st.text(max_size=5), settings),
    st.builds(QueueChanged, times, numbers, settings),
    st.builds(QueueRemoved, times, numbers),
)


@given(st.lists(st.lists(any_event, min_size=1, max_size=8), max_size=5))
def test_any_batches_give_the_rows_that_a_plain_loop_gives(groups: list[list[Event]]) -> None:
    batches = seal_all(groups)
    expected = [row for batch in batches for row in plain_rows(*batch)]
    decoded = decode(batches)
    decoded.validate(full=True)
    assert rows_of(decoded) == expected
    assert [row for batch in decode_grouped(batches) for row in rows_of(batch)] == expected


@given(st.lists(any_event, min_size=1, max_size=8), st.lists(st.sampled_from(WITHOUT_NAMES), unique=True))
def test_a_choice_of_columns_gives_the_same_values_in_the_order_asked_for(
    events: list[Event], columns: list[str]
) -> None:
    batch = seal(events)
    chosen, whole = decode([batch], columns), decode([batch])
    assert chosen.schema.names == columns
    assert all(chosen.column(name).equals(whole.column(name)) for name in columns)


# ── Letters ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("event", "letters"),
    [
        (logged(), "LQ"),
        (Fetched(2, 1, 7, 1, 1, 0, visible_at=9), "F"),
        (HandedOver(2, 1, 7, 1, 1, 0), "K"),
        (Succeeded(2, 1, 7, 1, 1, 0, complete=True, result=b""), "SX"),
        (Succeeded(2, 1, 7, 1, 1, 0, complete=False, result=b""), "S"),
        (Retried(2, 1, 7, 1, 1, 0, visible_at=9), "R"),
        (Failed(2, 1, 7, 1, 1, 0), "E"),
        (dead_lettered(fetched=True), "FEQ"),
        (dead_lettered(fetched=False), "EQ"),
        (Expired(2, 1, 7, 1, 1, 0), "Z"),
        (Deleted(2, 1, 7, 1, 1, 0), "D"),
        (Carried(2, 1, 7, 1, 1, 0, extent=b"hello"), ""),
        (Queued(2, 1, 7, 1, 9, NEVER_NS, 0, 0, 0, 0, 0, 2, 5), "Q"),
        (Unchanged(2, 1, 7, 0, 0, 0, 3, 4, 2, 5, b"key"), "LU"),
        (Invalidated(2, 1, 7, 1, 1, 3), "I"),
        (Declined(2, 1, 7, 1, 1, 3), "N"),
        (Extended(2, 1, 7, 1, 1, 3, visible_at=9), ""),
        (Rescheduled(2, 1, 7, 1, 1, 3, visible_at=9), ""),
        (Moved(2, 1, 7, 1, 1, 3, 9, NEVER_NS, 2, 5), "Q"),
        (Completed(2, 1, 7, 1, 1, 3), "X"),
        (Delivered(2, 1, 7, 1, 1, 3, visible_at=9), "F"),
        (HandedToReceiver(2, 1, 7, 1, 1, 3), "K"),
        (ResultStored(2, 1, 7, 1, 1, 3, result=b"42"), "S"),
        (ResultCarried(2, 1, 7, 1, 1, 3, result=b"42"), ""),
        (ReceiverMoved(2, 1, 7, 3), ""),
        (NameDefined(2, 1, "text/plain"), ""),
        (QueueRemoved(2, 1), "D"),
    ],
)
def test_a_record_becomes_a_row_for_each_of_its_letters(event: Event, letters: str) -> None:
    assert "".join(decode([seal([event])], ["letter"]).column("letter").to_pylist()) == letters


def test_a_dead_lettered_message_is_queued_anew_in_the_other_queue() -> None:
    columns = ["letter", "queue", "sequence", "receives", "consumer", "visible_at", "to_queue", "to_sequence"]
    rows = rows_of(decode([seal([dead_lettered(fetched=True)])], columns))
    assert [tuple(row.values()) for row in rows] == [
        ("F", 1, 7, 3, 5, 230, None, None),
        ("E", 1, 7, 3, 5, None, 2, 1),
        ("Q", 2, 1, 0, 0, 230, None, None),
    ]


def test_a_body_is_on_its_l_row_and_a_result_on_its_s_row() -> None:
    finished = Succeeded(9, 1, 7, 1, 1, 0, complete=True, result=b"42")
    table = decode([seal([logged(body=b""), finished])], ["letter", "body", "result"])
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("L", b"", None),
        ("Q", None, None),
        ("S", None, b"42"),
        ("X", None, None),
    ]


def test_what_has_not_changed_has_a_key_and_headers_of_its_own_on_its_l_row() -> None:
    same = Unchanged(2, 1, 7, 0, 0, 0, 3, 4, 2, 5, b"key", b"headers")
    table = decode([seal([same, same])], ["letter", "body", "key", "headers"])
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("L", None, b"key", b"headers"),
        ("U", None, None, None),
    ] * 2


def test_times_are_nanoseconds_in_utc() -> None:
    table = decode([seal([logged(time=1_767_225_600_000_000_001)])], ["time"])
    assert table.schema.field("time").type == pa.timestamp("ns", tz="UTC")
    assert table.column("time").cast(pa.int64()).to_pylist() == [1_767_225_600_000_000_001] * 2


# ── Work saved, memory shared ─────────────────────────────────────────────────────────────────────────────


def test_the_heap_is_not_touched_for_columns_of_fixed_width() -> None:
    header, payload = seal([logged(body=b"a"), logged(body=b"b")])
    payload = payload[header.heap_bytes :]  # Its heap is gone.
    headless = header._replace(heap_bytes=0)
    fixed = [name for name in FIXED_COLUMNS if name != "queue_name"]
    assert decode([(headless, payload)], fixed).num_rows == 4
    with pytest.raises(DamagedLogError, match="has 0 bytes, but its records add up to 2"):
        decode([(headless, payload)], ["body"])


def test_the_bodies_of_one_batch_are_not_copied() -> None:
    header, payload = seal([logged(body=b"first"), logged(body=b"second")])
    body = decode([(header, payload)], ["body"]).column("body")
    assert body.buffers()[2].address == np.frombuffer(payload, dtype=np.uint8).ctypes.data
    assert body.to_pylist() == [b"first", None, b"second", None]


def test_batches_that_do_not_follow_each_other_keep_their_offsets() -> None:
    batches = [seal([logged(), logged()], 10), seal([logged()], 500)]
    assert decode(batches, ["offset"]).column("offset").to_pylist() == [10, 10, 11, 11, 500, 500]


def test_groups_end_when_they_are_large_enough() -> None:
    events = [HandedOver(2, 1, 7, 1, 1, 0)] * (RECORDS_PER_GROUP // 2)
    batches = seal_all([events, events, events])
    assert [batch.num_rows for batch in decode_grouped(batches, ["offset"])] == [
        RECORDS_PER_GROUP,
        RECORDS_PER_GROUP // 2,
    ]


def test_no_batches_give_an_empty_table_of_the_same_schema() -> None:
    assert decode([], names=Names()).schema == schema(COLUMNS, named=True)
    assert decode([]).num_rows == 0
    assert list(decode_grouped([])) == []


# ── Refused ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_kind_of_the_future_is_refused() -> None:
    header, payload = seal([HandedOver(2, 1, 7, 1, 1, 0)])
    with pytest.raises(DamagedLogError, match="kind 99"):
        decode([(header, b"\x63" + payload[1:])], ["letter"])


def test_an_unknown_column_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="colour"):
        decode([], ["offset", "colour"])
    with pytest.raises(ValueError, match="needs names"):
        decode([], ["queue_name"])


def test_every_kind_is_known_and_every_column_has_a_type() -> None:
    assert set(TYPES) == set(COLUMNS)
    assert all(int(kind) < 256 for kind in Kind)
