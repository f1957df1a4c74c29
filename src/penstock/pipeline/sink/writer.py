"""Writes rows of a Spark job into queues, each batch exactly once and as a whole.

Every task stages its rows with the broker, under a name that no other attempt has. The driver commits: it names the
attempts that count, and the query and the batch, which the broker remembers. So no row is written twice when a task
is retried, when it runs twice at the same time, or when a batch is replayed after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import TypeVar
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructType,
)

from penstock.errors import OptionError, PenstockError
from penstock.pipeline.broker import Broker
from penstock.pipeline.causes import plainly
from penstock.pipeline.sink.options import SinkOptions
from penstock.pipeline.sink.rows import as_messages, chunks_of

_TEXT = (StringType,)
_BYTES = (StringType, BinaryType)
_TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "body": _BYTES,
    "queue": _TEXT,
    "topics": (StringType, ArrayType),
    "key": _BYTES,
    "object": _TEXT,
    "priority": (NumericType,),
    "delay": (NumericType,),
    "content_type": _TEXT,
    "headers": (MapType,),
}


class StagedPart(WriterCommitMessage):
    """What one attempt of a task has staged."""

    def __init__(self, query: str, batch: int, part: str, chunks: int) -> None:
        self.query = query
        self.batch = batch
        self.part = part
        self.chunks = chunks


Messages = list[WriterCommitMessage | None]


class _Writer:
    """What both writers do: stage on executors, commit on the driver."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('queues cannot be overwritten: use mode("append")')
        _check(schema, options)
        self._options = options

    def _stage(self, batches: Iterable[pa.RecordBatch], query: str, batch: int) -> StagedPart:
        part = f"{_context().partitionId()}-{uuid4().hex}"
        chunks = 0
        with closing(self._broker()) as broker:
            for rows in batches:
                for data in chunks_of(as_messages(rows, self._options)):
                    broker.ask("POST", f"{_path(query, batch)}/{part}", {"chunk": chunks}, data)
                    chunks += 1
        return StagedPart(query, batch, part, chunks)

    def _commit(self, messages: Messages, query: str, batch: int) -> None:
        parts = [{"part": each.part, "chunks": each.chunks} for each in messages if isinstance(each, StagedPart)]
        with closing(self._broker()) as broker:
            broker.ask("POST", f"{_path(query, batch)}/commit", body=json.dumps({"parts": parts}).encode())

    def _drop(self, query: str, batch: int) -> None:
        """Drop what is staged; a batch that was committed is not affected. Errors are ignored: they would hide the
        one that led here, and rows that are not dropped expire."""
        with closing(self._broker()) as broker, suppress(PenstockError):
            broker.ask("DELETE", _path(query, batch), patient=0)

    def check_broker(self) -> None:
        """Raises `BrokerError` for a problem that would fail every task: no such broker or queue, a wrong token."""
        with closing(self._broker()) as broker:
            if self._options.queue:
                broker.ask("GET", f"/v1/queues/{quote(self._options.queue, safe='')}")
            else:
                broker.ask("GET", "/v1/queues", {"limit": 1})

    def _broker(self) -> Broker:
        return Broker(self._options.url, self._options.token, self._options.trust)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes one job. It is a query of its own with one batch, unless the options name query and batch."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._query = options.query or f"job-{uuid4().hex}"
        self._batch = options.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, self._query, self._batch)

    @plainly
    def commit(self, messages: Messages) -> None:
        self._commit(messages, self._query, self._batch)

    def abort(self, messages: Messages) -> None:
        del messages
        self._drop(self._query, self._batch)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a stream. The id of the query and the numbers of its batches come from Spark's checkpoint."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if options.query:
            raise OptionError(
                'the options "query" and "batch" are for batch writes: remove them, a stream has a checkpoint'
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query = _context().getLocalProperty("sql.streaming.queryId")
        batch = _context().getLocalProperty("streaming.sql.batchId")
        assert query is not None, "Spark did not pass the id of the query"
        assert batch is not None, "Spark did not pass the number of the batch"
        return self._stage(iterator, query, int(batch))

    @plainly
    def commit(self, messages: Messages, batch: int) -> None:
        query = _query_of(messages)
        if query:
            self._commit(messages, query, batch)

    def abort(self, messages: Messages, batch: int) -> None:
        query = _query_of(messages)
        if query:
            self._drop(query, batch)


_AnyWriter = TypeVar("_AnyWriter", bound=_Writer)


def checked(writer: _AnyWriter) -> _AnyWriter:
    """The same writer, once its broker has answered. Raises `BrokerError`."""
    writer.check_broker()
    return writer


def _query_of(messages: Messages) -> str:
    """The id of the query, which only tasks know. Empty if there were no tasks: then there is nothing to commit."""
    return next((each.query for each in messages if isinstance(each, StagedPart)), "")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    return context


def _path(query: str, batch: int) -> str:
    return f"/v1/stage/{quote(query, safe='')}/{batch}"


def _check(schema: StructType, options: SinkOptions) -> None:
    """Raises `OptionError` for what is wrong before any row has been read."""
    unknown = [name for name in schema.fieldNames() if name not in _TAKEN]
    if unknown:
        raise OptionError(f"unknown column {', '.join(unknown)}; the columns are {', '.join(_TAKEN)}")
    for field in schema:
        if not isinstance(field.dataType, _TAKEN[field.name]):
            kinds = " or ".join(kind.__name__.removesuffix("Type").lower() for kind in _TAKEN[field.name])
            raise OptionError(f"column {field.name} has type {field.dataType.simpleString()}, must be {kinds}")
    if "body" not in schema.fieldNames():
        raise OptionError("the column body is missing")
    if options.queue and options.topics:
        raise OptionError('set the option "queue" or "topics", not both: topics choose the queues')
    if not {"queue", "topics"} & set(schema.fieldNames()) and not options.queue and not options.topics:
        raise OptionError('set the option "queue" or "topics", or add a column of that name')
