"""The columns of decoded batches: one row a column, with its Arrow type and how it is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.limits import NEVER_NS
from penstock.storage.arrow import forms
from penstock.storage.arrow.arrays import Mask, primitive
from penstock.storage.arrow.rows import Rows
from penstock.storage.log.batch import HAS_DIGEST

_Build = Callable[[Rows], pa.Array]
_TIME = pa.timestamp("ns", tz="UTC")
NAME = pa.dictionary(pa.int32(), pa.utf8())  # The type of a name; its number, where texts are not known, is an int32.


class Column(NamedTuple):
    type: Any
    build: _Build


def _letter(rows: Rows) -> pa.Array:
    # Text of one byte each needs no more than its bytes: as fast as a dictionary, and every reader knows it.
    bounds = np.arange(len(rows.index) + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(forms.LETTER.take(rows.form))]
    return pa.Array.from_buffers(pa.utf8(), len(rows.index), buffers)


def _queue_name(rows: Rows) -> pa.Array:
    assert rows.names is not None
    return rows.names.queue_names(rows.queue)


def _time(name: str, present: Mask) -> _Build:
    """A time that only rows of some forms have, and that may be never."""

    def build(rows: Rows) -> pa.Array:
        times = rows.column(name)
        return primitive(_TIME, times, rows.are(present) & (times != NEVER_NS))

    return build


def _priority(rows: Rows) -> pa.Array:
    return primitive(pa.int64(), rows.column("priority").astype(np.int64), rows.are(forms.HAS_FACTS))


def _receives(rows: Rows) -> pa.Array:
    values = rows.column("receives").astype(np.int64)
    values[rows.moved] = 0  # A moved message counts from 0 again.
    return primitive(pa.int64(), values)


def _name(name: str) -> _Build:
    def build(rows: Rows) -> pa.Array:
        numbers = rows.column(name)
        if len(rows.moved):
            numbers[rows.moved] = 0
        return primitive(pa.int32(), numbers) if rows.names is None else rows.names.texts(numbers)

    return build


def _target(type_: Any, name: str, source: str) -> _Build:
    def build(rows: Rows) -> pa.Array:
        values = rows.column(name)
        if len(rows.moved):
            values[rows.moved] = rows.records[source][rows.index[rows.moved]]
        return primitive(type_, values, rows.are(forms.HAS_TARGET))

    return build


# In the order in which a record batch has them.
BUILT: dict[str, Column] = {
    "offset": Column(pa.int64(), lambda rows: primitive(pa.int64(), rows.offset)),
    "letter": Column(pa.utf8(), _letter),
    "kind": Column(pa.int8(), lambda rows: primitive(pa.int8(), rows.column("kind"))),
    "time": Column(_TIME, lambda rows: primitive(_TIME, rows.column("time"))),
    "queue": Column(pa.int32(), lambda rows: primitive(pa.int32(), rows.queue)),
    "queue_name": Column(NAME, _queue_name),
    "sequence": Column(pa.int64(), lambda rows: primitive(pa.int64(), rows.sequence, rows.of_messages)),
    "created": Column(_TIME, lambda rows: primitive(_TIME, rows.column("created"), rows.of_messages)),
    "visible_at": Column(_TIME, _time("visible_at", forms.HAS_VISIBLE_AT)),
    "expires_at": Column(_TIME, _time("expires_at", forms.HAS_EXPIRES_AT)),
    "priority": Column(pa.int64(), _priority),
    "receives": Column(pa.int64(), _receives),
    "consumer": Column(NAME, _name("consumer")),
    "content_type": Column(NAME, _name("content_type")),
    "sender": Column(NAME, _name("sender")),
    "object": Column(NAME, _name("object")),
    "topics": Column(NAME, _name("topics")),
    "to_queue": Column(pa.int32(), _target(pa.int32(), "to_queue", "queue")),
    "to_sequence": Column(pa.int64(), _target(pa.int64(), "to_sequence", "sequence")),
    "body": Column(pa.binary(), Rows.body),
    "result": Column(pa.binary(), lambda rows: rows.part(0, rows.result_bytes, forms.HAS_RESULT)),
    "key": Column(pa.binary(), lambda rows: rows.part(1, rows.records["key_bytes"], forms.HAS_OWN)),
    "headers": Column(pa.binary(), lambda rows: rows.part(2, rows.records["headers_bytes"], forms.HAS_OWN)),
    "digest": Column(pa.binary(), lambda rows: rows.part(3, rows.records["flags"] & HAS_DIGEST, forms.HAS_CONTENT)),
}
