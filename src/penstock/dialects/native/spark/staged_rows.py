"""Rows of a stream processor, as it stages them in Arrow. Only this needs pyarrow, so it is imported on first use."""

from __future__ import annotations

import struct
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import limits
from penstock.dialects.native.queue_document import checked_topic
from penstock.dialects.native.spark.arrow_bounds import check_stream, check_table
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.model.commands import NewMessage, Publish, PublishRun, PublishTopics
from penstock.model.header_values import checked_media_type
from penstock.model.kept_headers import encode_headers
from penstock.model.settings import QueueSettings
from penstock.model.times import nanos_of
from penstock.model.values import has_control_characters
from penstock.remembering import remembered

TYPES: dict[str, Any] = {
    "body": pa.binary(),
    "queue": pa.utf8(),
    "topics": pa.utf8(),
    "key": pa.binary(),
    "object": pa.utf8(),
    "priority": pa.int64(),
    "delay": pa.float64(),
    "content_type": pa.utf8(),
    "headers": pa.map_(pa.utf8(), pa.utf8()),
}


class StagedRows:
    """The rows of an Arrow stream. Each is a message with a queue, or with topics joined by line feeds."""

    def __init__(self, data: bytes, *, trusted: bool = True) -> None:
        """Raises `ProtocolError` for bytes that cannot be read. `check` looks at the rows. Not `trusted`: bounds are
        checked before anything is decoded."""
        self._columns = _read(data, trusted)
        self.count = len(self._columns["body"])

    @cached_property
    def queues(self) -> frozenset[str]:
        """The names of all queues that rows go to."""
        names = self._columns["queue"].unique().to_pylist() if "queue" in self._columns else ()
        return frozenset(name for name in names if name is not None)

    @cached_property
    def topics(self) -> frozenset[str]:
        texts = self._columns["topics"].unique().to_pylist() if "topics" in self._columns else ()
        return frozenset(topic for text in texts if text is not None for topic in _split(text))

    @cached_property
    def objects(self) -> frozenset[str]:
        """The objects of rows with a key."""
        if "object" not in self._columns or "key" not in self._columns:
            return frozenset()
        has_key = pc.greater(pc.binary_length(self._columns["key"]), 0)
        return frozenset(filter(None, self._columns["object"].filter(has_key).unique().to_pylist()))

    def check(self) -> None:
        """Raises `ProtocolError` for rows that cannot become messages."""
        columns = self._columns
        if columns["body"].null_count:
            raise ProtocolError("a row has no body")
        self._check_targets()
        for name, most in (("body", limits.BODY_BYTES_MAX), ("key", limits.KEY_BYTES_MAX)):
            longest = pc.max(pc.binary_length(columns[name])).as_py() if name in columns else None
            if longest is not None and longest > most:
                raise ProtocolError(f"a {name} has at most {most} bytes, got {longest}")
        for queue in self.queues:
            http.checked_name(queue.encode())
        for about in columns["object"].unique().to_pylist() if "object" in columns else ():
            http.checked_text(about or "", "object", 0)
        for text in columns["content_type"].unique().to_pylist() if "content_type" in columns else ():
            checked_media_type(text or "", "content_type")
        _check_range(columns, "priority", limits.UINT32_MAX)
        _check_range(columns, "delay", limits.INT32_MAX)
        for pairs in columns["headers"].to_pylist() if "headers" in columns else ():
            _packed(pairs or [])

    def _check_targets(self) -> None:
        """Every row has a queue or topics, and none has both."""
        nowhere = np.zeros(self.count, dtype=np.bool_)
        has_queue, has_topics = (
            self._columns[name].is_valid().to_numpy(zero_copy_only=False) if name in self._columns else nowhere
            for name in ("queue", "topics")
        )
        if (has_queue == has_topics).any():
            both = (has_queue & has_topics).any()
            raise ProtocolError("a row has both a queue and topics" if both else "a row has no queue and no topics")
        for topics in self._columns["topics"].unique().to_pylist() if "topics" in self._columns else ():
            names = topics.split("\n") if topics is not None else []
            if len(names) > limits.TOPICS_MAX:
                raise ProtocolError(f"a row has at most {limits.TOPICS_MAX} topics, got {len(names)}")
            for name in names:
                checked_topic(name)

    def publish_from(
        self, row: int, most: int, create: QueueSettings
    ) -> tuple[Publish | PublishRun | PublishTopics, int]:
        """The command that publishes the next rows, and the row after them. `create`: settings of queues that topics
        make."""
        following = int(self._bounds[np.searchsorted(self._bounds, row, side="right")])
        queue = self._columns["queue"][row].as_py() if "queue" in self._columns else None
        if queue is not None and self._alike:
            end = min(following, row + most, row + limits.ADMITTED_ROWS_MAX)
            return PublishRun(queue, self._messages(row, row + 1)[0], self._bodies(row, end)), end
        end = min(
            following,
            row + most,
            row + (limits.ADMITTED_TO_TOPICS_MAX if queue is None else limits.ADMITTED_MESSAGES_MAX),
        )
        messages = self._messages(row, end)
        return PublishTopics(messages, create) if queue is None else Publish(queue, messages), end

    @cached_property
    def _bounds(self) -> NDArray[np.int64]:
        """The rows at which another queue begins, and the end."""
        changes = _changes(self._columns["queue"]) if "queue" in self._columns else ()
        return np.append(changes, self.count).astype(np.int64)

    @cached_property
    def _alike(self) -> bool:
        """Whether rows differ only in their bodies and queues."""
        columns = self._columns
        plain = all(name not in columns or columns[name].null_count == self.count for name in ("key", "headers"))
        same = ("object", "priority", "delay", "content_type")
        return plain and not any(len(_changes(columns[name])) for name in same if name in columns)

    def _bodies(self, start: int, end: int) -> list[bytes]:
        bodies = self._columns["body"]
        _, bounds, data = bodies.buffers()
        counted = np.frombuffer(bounds, np.int32, count=bodies.offset + end + 1)  # The buffer may be longer.
        offsets = counted[bodies.offset + start :].tolist()
        whole = memoryview(data)[offsets[0] : offsets[-1]].tobytes() if data is not None else b""
        first = offsets[0]
        return [whole[low - first : high - first] for low, high in pairwise(offsets)]

    def _messages(self, start: int, end: int) -> list[NewMessage]:
        bodies = self._bodies(start, end)
        content_types, objects, topics, keys, headers, priorities, delays = (
            self._columns[name].slice(start, end - start).to_pylist() if name in self._columns else repeat(None)
            for name in ("content_type", "object", "topics", "key", "headers", "priority", "delay")
        )
        return [
            NewMessage(
                body,
                content_type=content_type or "",
                priority=priority or 0,
                object=about or "",
                topics=_split(topic) if topic else (),
                key=key or b"",
                headers=_packed(pairs) if pairs else b"",
                delay_ns=None if delay is None else nanos_of(delay),
            )
            for body, content_type, about, topic, key, pairs, priority, delay in zip(
                bodies, content_types, objects, topics, keys, headers, priorities, delays, strict=False
            )
        ]


def _read(data: bytes, trusted: bool) -> dict[str, pa.Array]:
    try:
        if not trusted:
            check_stream(data)
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            table = stream.read_all()
        table.validate(full=True)
        if not trusted:
            check_table(table)
        table = table.combine_chunks()
        unknown = [name for name in table.column_names if name not in TYPES]
        if unknown or len(set(table.column_names)) < table.num_columns:
            raise ProtocolError(f"unknown column {', '.join(unknown)}; the columns are {', '.join(TYPES)}")
        if "body" not in table.column_names:
            raise ProtocolError("the column body is missing")
        return {name: _plain(table.column(name), TYPES[name]) for name in table.column_names}
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise ProtocolError(f"the body is not an Arrow stream of messages: {error}") from None


def _plain(column: pa.ChunkedArray, kind: Any) -> pa.Array:
    array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == kind else array.cast(kind)


def _changes(array: pa.Array) -> NDArray[np.int64]:
    """The rows whose value differs from the row before."""
    numbers = array.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    return np.flatnonzero(numbers[1:] != numbers[:-1]).astype(np.int64) + 1


def _check_range(columns: dict[str, pa.Array], name: str, high: int) -> None:
    if name in columns and columns[name].null_count < len(columns[name]):
        values = columns[name].drop_null().to_numpy()
        if not ((values >= 0) & (values <= high)).all():
            raise ProtocolError(f"{name} must be a number from 0 to {high}")


def _packed(pairs: list[tuple[str, str | None]]) -> bytes:
    """Headers as they are stored."""
    if any(has_control_characters(text or "") for pair in pairs for text in pair):
        raise ProtocolError("headers must not have control characters")
    packed = encode_headers({name.lower().encode(): (value or "").encode() for name, value in pairs})
    if len(packed) > limits.HEADERS_BYTES_MAX:
        raise ProtocolError(f"headers have at most {limits.HEADERS_BYTES_MAX} bytes, got {len(packed)}")
    return packed


@remembered(4096)
def _split(topics: str) -> tuple[str, ...]:
    return tuple(topics.split("\n"))
