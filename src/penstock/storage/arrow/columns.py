"""Batches as Arrow: one row for every letter of every record, with no loop over events.

The records of many batches are joined into one table, each column is one gather from it, and the heap becomes one
binary array whose slots (body, key, headers, digest of each record) are bounded by one cumulative sum. Columns that
nobody asks for cost nothing. Whole numbers are signed, because Spark knows no others; all of them fit.

A record may stand for several letters. What its rows have is told by their form: a message's facts are on its L, Q
and U, the body, key, headers and digest on L alone, a result on S. The Q of a message that was moved, be it to a
dead-letter queue or by an operator, has the place there. Another place is in `to_queue` and `to_sequence`: on E where
a dead letter went, on Q what it refers to or where it was moved from, on L and U the version it equals.

A queue that is removed is one D, for itself and every message in it: its `sequence` and `created` are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import DamagedLogError
from penstock.limits import INT32_MAX, NEVER_NS
from penstock.model.kinds import DEFINES, LETTERS, MOVES, Kind, kinds_where
from penstock.storage.log.batch import DIGEST_BYTES, FLAGS, HAS_DIGEST, RECORD_DTYPE, Header

RECORDS_PER_GROUP = 8_192  # Measured: fewer pay for the calls, more for memory that is touched for the first time.
BYTES_PER_GROUP = 64 << 20  # Bodies bound a group earlier; Arrow's offsets have room for 2 GiB.

_Array = NDArray[Any]
_TIME = pa.timestamp("ns", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.utf8())

# In the order of the columns of a record batch. Names are text if a `Names` is given, else their numbers.
TYPES: dict[str, Any] = {
    "offset": pa.int64(),
    "letter": pa.utf8(),
    "kind": pa.int8(),
    "time": _TIME,
    "queue": pa.int32(),
    "queue_name": _NAME,
    "sequence": pa.int64(),
    "created": _TIME,
    "visible_at": _TIME,
    "expires_at": _TIME,
    "priority": pa.int64(),
    "receives": pa.int64(),
    "consumer": _NAME,
    "content_type": _NAME,
    "sender": _NAME,
    "object": _NAME,
    "topics": _NAME,
    "to_queue": pa.int32(),
    "to_sequence": pa.int64(),
    "body": pa.binary(),
    "result": pa.binary(),
    "key": pa.binary(),
    "headers": pa.binary(),
    "digest": pa.binary(),
}
COLUMNS = tuple(TYPES)
HEAP_COLUMNS = ("body", "result", "key", "headers", "digest")
FIXED_COLUMNS = tuple(name for name in COLUMNS if name not in HEAP_COLUMNS)


class Names:
    """What the numbers in the log stand for. Fed by the definitions in decoded batches, or given from outside."""

    def __init__(self, texts: Mapping[int, str] | None = None, queues: Mapping[int, str] | None = None) -> None:
        self._texts = _Texts(dict(texts or {}))
        self._queues = _Texts(dict(queues or {}))

    def define(self, number: int, text: str) -> None:
        self._texts.define(number, text)

    def define_queue(self, number: int, name: str) -> None:
        self._queues.define(number, name)

    def queue_name(self, number: int) -> str | None:
        return self._queues.known.get(number)

    def texts(self, numbers: _Array) -> pa.DictionaryArray:
        return self._texts.encode(numbers)

    def queue_names(self, numbers: _Array) -> pa.DictionaryArray:
        return self._queues.encode(numbers)


@lru_cache
def schema(columns: tuple[str, ...], *, named: bool) -> pa.Schema:
    """The schema of decoded batches. Not `named`: without the text of names."""
    return pa.schema([(name, _column_type(name, named=named)) for name in columns])


def decode(
    batches: Iterable[tuple[Header, bytes]], columns: Sequence[str] | None = None, names: Names | None = None
) -> pa.RecordBatch:
    """One record batch of all the letters in these batches, in order. `columns`: those wanted; absent: all.

    With `names`, numbers become text, after the definitions in these batches were added to it; a number that nobody
    has defined becomes null. Without, the columns hold the numbers, 0 for none.
    """
    wanted = _wanted(columns, names)
    rows = _Rows(list(batches), names)
    arrays = [_BUILDERS[name](rows) for name in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(wanted, named=names is not None))


def decode_grouped(
    batches: Iterable[tuple[Header, bytes]],
    columns: Sequence[str] | None = None,
    names: Names | None = None,
    *,
    records_min: int = RECORDS_PER_GROUP,
) -> Iterator[pa.RecordBatch]:
    """As `decode`, over a log of any length: batches are decoded together until a group is large enough."""
    group: list[tuple[Header, bytes]] = []
    records = size = 0
    for batch in batches:
        group.append(batch)
        records += batch[0].records
        size += batch[0].heap_bytes
        if records >= records_min or size >= BYTES_PER_GROUP:
            yield decode(group, columns, names)
            group = []
            records = size = 0
    if group:
        yield decode(group, columns, names)


def _wanted(columns: Sequence[str] | None, names: Names | None) -> tuple[str, ...]:
    if columns is None:
        return COLUMNS if names else tuple(name for name in COLUMNS if name != "queue_name")
    unknown = [name for name in columns if name not in TYPES]
    if unknown:
        raise ValueError(f"unknown columns: {', '.join(unknown)}")
    if names is None and "queue_name" in columns:
        raise ValueError("queue_name needs names")
    return tuple(columns)


def _column_type(name: str, *, named: bool) -> Any:
    return pa.int32() if TYPES[name] is _NAME and not named else TYPES[name]


_TABLE_SIZE_MAX = 1 << 22


class _Texts:
    """Numbers to text, as an Arrow dictionary that is made again only when it has grown."""

    def __init__(self, known: dict[int, str]) -> None:
        self.known = known
        self._dictionary: pa.Array | None = None
        self._table: NDArray[np.int32] = np.full(1, -1, dtype=np.int32)  # By number: where the text stands, or -1.
        self._sparse: NDArray[np.int64] | None = None  # The numbers in order, if they are too large for a table.

    def define(self, number: int, text: str) -> None:
        if self.known.get(number) != text:
            self.known[number] = text
            self._dictionary = None

    def encode(self, numbers: _Array) -> pa.DictionaryArray:
        if self._dictionary is None:
            self._build()
        places = self._places(numbers)
        valid = places >= 0
        indices = _primitive(pa.int32(), places * valid, valid)
        return pa.DictionaryArray.from_arrays(indices, self._dictionary, safe=False)

    def _build(self) -> None:
        """The texts in the order of their numbers, of which some are missing. Number 0 is no name."""
        pairs = sorted(pair for pair in self.known.items() if pair[0])
        self._dictionary = pa.array([text for _, text in pairs] or [""], type=pa.utf8())
        numbers = np.array([number for number, _ in pairs], dtype=np.int64)
        last = pairs[-1][0] if pairs else 0
        if last < _TABLE_SIZE_MAX:
            self._table = np.full(last + 2, -1, dtype=np.int32)  # One more: what is beyond the end is not known.
            self._table[numbers] = np.arange(len(pairs))
            self._sparse = None
        else:
            self._sparse = numbers

    def _places(self, numbers: _Array) -> NDArray[np.int32]:
        """Of each number, where its text stands, or -1. A table is ten times as fast as a search."""
        if self._sparse is None:
            return self._table.take(numbers, mode="clip")
        places = np.searchsorted(self._sparse, numbers)
        found = self._sparse.take(places, mode="clip") == numbers
        return np.where(found, places, -1).astype(np.int32)


# ── Forms: what a row of each letter has ──────────────────────────────────────────────────────────────────


class _Form(NamedTuple):
    """A letter as part of a kind of record."""

    kind: Kind
    letter: str


def _letters(kind: Kind, flags: int) -> str:
    letters = kind.row.letters
    for letter, field in kind.row.only_if.items():
        if not flags & FLAGS[field]:
            letters = letters.replace(letter, "")
    return letters


# The first two bytes of a record, kind and flags, taken as one number, are the key of these tables.
_FLAGS = HAS_DIGEST | sum(FLAGS.values())
_KEY_MASK = _FLAGS << 8 | 0xFF
_FORMS = [_Form(kind, letter) for kind, letters in LETTERS.items() for letter in letters]
_UNKNOWN = 255
_ROWS_OF = np.full(_KEY_MASK + 1, _UNKNOWN, dtype=np.uint8)  # How many rows a record makes.
_FIRST_FORM = np.zeros(_KEY_MASK + 1, dtype=np.uint8)  # The others follow, as in the list.
for _kind in Kind:
    for _flags in range(_FLAGS + 1):
        _said = _letters(_kind, _flags)
        _ROWS_OF[_flags << 8 | _kind] = len(_said)
        if _said:
            _FIRST_FORM[_flags << 8 | _kind] = _FORMS.index(_Form(_kind, _said[0]))


def _are(chosen: Callable[[_Form], bool]) -> NDArray[np.bool_]:
    return np.array([chosen(form) for form in _FORMS], dtype=np.bool_)


def _store(field: str) -> NDArray[np.bool_]:
    return _are(lambda form: field in form.kind.row.stores)


def _letter_is(letters: str) -> NDArray[np.bool_]:
    return _are(lambda form: form.letter in letters)


# A message that is moved has the facts of its new place on Q. If it is moved because it failed, that place is on E.
_IS_OF_MESSAGE = _are(lambda form: form.kind.row.about == "message")
_IS_MOVED = _are(lambda form: form.kind.row.moves) & _letter_is("Q")
_HAS_FACTS = _store("priority")
_HAS_CONTENT = _store("body") & _letter_is("L")
_HAS_OWN = _store("key") & _letter_is("L")
_HAS_RESULT = _store("result") & _letter_is("S")
_HAS_TARGET = _store("to_queue") & (_letter_is("E") | _are(lambda form: "E" not in form.kind.row.letters))
_HAS_VISIBLE_AT = _store("visible_at") & ~_letter_is("E")
_HAS_EXPIRES_AT = _store("expires_at") & (_HAS_FACTS | _IS_MOVED)
_OF_QUEUES = kinds_where(lambda row: row.letters and row.about == "queue")
_WITH_RESULT = kinds_where(lambda row: row.letters and "result" in row.stores)
_LETTER = np.array([ord(form.letter) for form in _FORMS], dtype=np.uint8)

_COPY_BYTES_MAX = 4096
_SLOTS = 4  # Of each record in the heap: body (or result), key, headers, digest.


class _Rows:
    """The rows of a group of batches. What is computed once for several columns is kept."""

    def __init__(self, batches: list[tuple[Header, bytes]], names: Names | None) -> None:
        self.batches = batches
        self.names = names
        self.records = _join_records(batches)
        keys = self.records.view("<u2")[:: self.records.dtype.itemsize // 2] & _KEY_MASK
        self._count = _ROWS_OF[keys]
        if len(keys) and self._count.max() == _UNKNOWN:
            unknown = int(keys[self._count == _UNKNOWN][0]) & 0xFF
            raise DamagedLogError(f"kind {unknown} is no event of this version")
        self.index = np.repeat(np.arange(len(keys)), self._count)  # Of each row: its record.
        self._keys = keys
        if names is not None:
            self._learn(names)

    def column(self, name: str) -> _Array:
        return self.records[name][self.index]

    def are(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return chosen.take(self.form)

    def _of_kinds(self, chosen: frozenset[Kind]) -> NDArray[np.bool_]:
        """Which records are of one of a few kinds."""
        kinds = self.records["kind"]
        found: NDArray[np.bool_] = np.logical_or.reduce([kinds == kind for kind in chosen])
        return found

    @cached_property
    def form(self) -> _Array:
        """Of each row: what it is, as an index into `_FORMS`."""
        first_row = np.cumsum(self._count, dtype=np.int64) - self._count
        base: _Array = _FIRST_FORM[self._keys] - first_row
        form: _Array = np.arange(len(self.index)) + base[self.index]
        return form

    @cached_property
    def moved(self) -> _Array:
        """The rows that tell of a message in the queue that it was moved to."""
        if not self._of_kinds(MOVES).any():
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.are(_IS_MOVED))

    @cached_property
    def offset(self) -> _Array:
        if not self.batches:
            return np.empty(0, dtype=np.int64)
        first, last = self.batches[0][0], self.batches[-1][0]
        if last.base_offset + last.records - first.base_offset == len(self.records):
            return self.index + first.base_offset
        bases = np.array([header.base_offset for header, _ in self.batches], dtype=np.int64)
        counts = np.array([header.records for header, _ in self.batches], dtype=np.int64)
        lead: _Array = np.repeat(bases - (np.cumsum(counts) - counts), counts)
        offset: _Array = self.index + lead[self.index]
        return offset

    @cached_property
    def of_messages(self) -> NDArray[np.bool_] | None:
        """Which rows are about a message, not about a queue. None: all of them."""
        return self.are(_IS_OF_MESSAGE) if self._of_kinds(_OF_QUEUES).any() else None

    @cached_property
    def queue(self) -> _Array:
        return self._placed("queue", "to_queue")

    @cached_property
    def sequence(self) -> _Array:
        return self._placed("sequence", "to_sequence")

    def _placed(self, name: str, moved_name: str) -> _Array:
        values = self.column(name)
        if len(self.moved):
            values[self.moved] = self.records[moved_name][self.index[self.moved]]
        return values

    # The heap

    @cached_property
    def heap(self) -> bytes | memoryview:
        assert sum(header.heap_bytes for header, _ in self.batches) <= INT32_MAX, "decode_grouped bounds a group"
        if len(self.batches) == 1:
            header, payload = self.batches[0]
            return memoryview(payload)[: header.heap_bytes]
        return b"".join([_heap(header, payload) for header, payload in self.batches])

    @cached_property
    def slot_bounds(self) -> NDArray[np.int32]:
        """Where each slot of each record ends in the heap, after a leading 0."""
        records = self.records
        sizes = np.empty((len(records), _SLOTS), dtype=np.int64)
        sizes[:, 0] = records["body_bytes"]
        sizes[:, 1] = records["key_bytes"]
        sizes[:, 2] = records["headers_bytes"]
        sizes[:, 3] = (records["flags"] & HAS_DIGEST) * DIGEST_BYTES
        bounds = _bounds(sizes.reshape(-1))
        if bounds[-1] != len(self.heap):
            raise DamagedLogError(f"records speak of {bounds[-1]} bytes in a heap of {len(self.heap)}")
        return bounds

    @cached_property
    def slots(self) -> pa.Array:
        """The whole heap as one array; no copy."""
        buffers = [None, pa.py_buffer(self.slot_bounds), pa.py_buffer(self.heap)]
        return pa.Array.from_buffers(pa.binary(), len(self.records) * _SLOTS, buffers)

    def body(self) -> pa.Array:
        has_body = self.are(_HAS_CONTENT)
        bounds = _bounds(self.column("body_bytes") * has_body)
        if bounds[-1] == len(self.heap):  # Nothing but bodies, one after the other: no copy.
            buffers = [_bits(has_body), pa.py_buffer(bounds), pa.py_buffer(self.heap)]
            return pa.Array.from_buffers(pa.binary(), len(has_body), buffers)
        return self._take(0, has_body)

    @property
    def result_bytes(self) -> _Array:
        sizes: _Array = self.records["body_bytes"] * self._of_kinds(_WITH_RESULT)
        return sizes

    def part(self, slot: int, sizes: _Array, forms: NDArray[np.bool_]) -> pa.Array:
        """The slot of the rows of these forms where it is not empty."""
        present = sizes != 0
        if not present.any():
            return pa.nulls(len(self.index), pa.binary())
        return self._take(slot, self.are(forms) & present[self.index])

    def _take(self, slot: int, chosen: NDArray[np.bool_]) -> pa.Array:
        return self.slots.take(_primitive(pa.int64(), self.index * _SLOTS + slot, chosen))

    def _learn(self, names: Names) -> None:
        kinds = self.records["kind"]
        for at in np.flatnonzero(self._of_kinds(DEFINES)).tolist():
            start, end = self.slot_bounds[_SLOTS * at : _SLOTS * at + 2].tolist()
            text, number = bytes(self.heap[start:end]), int(self.records["queue"][at])
            if kinds[at] == Kind.QUEUE_CREATED:
                names.define_queue(number, msgspec.json.decode(text, type=_Named).name)
            else:  # A name that is forgotten here was in use before.
                names.define(number, text.decode())


def _heap(header: Header, payload: bytes) -> bytes | memoryview:
    # A small copy costs a third of a view.
    size = header.heap_bytes
    return payload[:size] if size < _COPY_BYTES_MAX else memoryview(payload)[:size]


class _Named(msgspec.Struct):
    """What is wanted of the facts of a new queue."""

    name: str


def _join_records(batches: list[tuple[Header, bytes]]) -> _Array:
    # A copy also of a single batch: behind a heap of any length the records would not be aligned.
    joined = b"".join([payload[header.heap_bytes :] for header, payload in batches])
    return np.frombuffer(joined, dtype=RECORD_DTYPE)


# ── Arrow arrays from numpy ───────────────────────────────────────────────────────────────────────────────


def _bits(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _bounds(sizes: _Array) -> NDArray[np.int32]:
    bounds = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _primitive(kind: Any, values: _Array, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Bytes as they are: the type may be another one of the same width."""
    buffers = [None if valid is None else _bits(valid), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _plain(name: str) -> Callable[[_Rows], pa.Array]:
    return lambda rows: _primitive(TYPES[name], rows.column(name))


def _letter(rows: _Rows) -> pa.Array:
    # Text of one byte each needs no more than its bytes: as fast as a dictionary, and every reader knows it.
    bounds = np.arange(len(rows.index) + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(_LETTER.take(rows.form))]
    return pa.Array.from_buffers(pa.utf8(), len(rows.index), buffers)


def _queue_name(rows: _Rows) -> pa.Array:
    assert rows.names is not None
    return rows.names.queue_names(rows.queue)


def _visible_at(rows: _Rows) -> pa.Array:
    times = rows.column("visible_at")
    return _primitive(_TIME, times, rows.are(_HAS_VISIBLE_AT) & (times != NEVER_NS))


def _expires_at(rows: _Rows) -> pa.Array:
    times = rows.column("expires_at")
    return _primitive(_TIME, times, rows.are(_HAS_EXPIRES_AT) & (times != NEVER_NS))


def _priority(rows: _Rows) -> pa.Array:
    return _primitive(pa.int64(), rows.column("priority").astype(np.int64), rows.are(_HAS_FACTS))


def _receives(rows: _Rows) -> pa.Array:
    values = rows.column("receives").astype(np.int64)
    values[rows.moved] = 0  # It starts anew there.
    return _primitive(pa.int64(), values)


def _name(name: str) -> Callable[[_Rows], pa.Array]:
    def build(rows: _Rows) -> pa.Array:
        numbers = rows.column(name)
        if len(rows.moved):
            numbers[rows.moved] = 0
        return _primitive(pa.int32(), numbers) if rows.names is None else rows.names.texts(numbers)

    return build


def _target(name: str, source: str) -> Callable[[_Rows], pa.Array]:
    def build(rows: _Rows) -> pa.Array:
        values = rows.column(name)
        if len(rows.moved):
            values[rows.moved] = rows.records[source][rows.index[rows.moved]]
        return _primitive(TYPES[name], values, rows.are(_HAS_TARGET))

    return build


_BUILDERS: dict[str, Callable[[_Rows], pa.Array]] = {
    "offset": lambda rows: _primitive(pa.int64(), rows.offset),
    "letter": _letter,
    "kind": lambda rows: _primitive(pa.int8(), rows.column("kind")),
    "time": _plain("time"),
    "queue": lambda rows: _primitive(pa.int32(), rows.queue),
    "queue_name": _queue_name,
    "sequence": lambda rows: _primitive(pa.int64(), rows.sequence, rows.of_messages),
    "created": lambda rows: _primitive(_TIME, rows.column("created"), rows.of_messages),
    "visible_at": _visible_at,
    "expires_at": _expires_at,
    "priority": _priority,
    "receives": _receives,
    "consumer": _name("consumer"),
    "content_type": _name("content_type"),
    "sender": _name("sender"),
    "object": _name("object"),
    "topics": _name("topics"),
    "to_queue": _target("to_queue", "queue"),
    "to_sequence": _target("to_sequence", "sequence"),
    "body": _Rows.body,
    "result": lambda rows: rows.part(0, rows.result_bytes, _HAS_RESULT),
    "key": lambda rows: rows.part(1, rows.records["key_bytes"], _HAS_OWN),
    "headers": lambda rows: rows.part(2, rows.records["headers_bytes"], _HAS_OWN),
    "digest": lambda rows: rows.part(3, rows.records["flags"] & HAS_DIGEST, _HAS_CONTENT),
}
assert _BUILDERS.keys() == TYPES.keys()
