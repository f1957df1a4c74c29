"""`format("penstock")` for Spark: its options choose the reader or writer."""

from __future__ import annotations

from typing import Any

from msgspec import structs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import OptionError
from penstock.pipeline.causes import plainly
from penstock.pipeline.sink.options import parse_sink_options
from penstock.pipeline.sink.writer import BatchWriter, StreamWriter, checked
from penstock.pipeline.source.columns import COLUMNS, unknown_columns
from penstock.pipeline.source.events import EventReader, FilteredEventReader
from penstock.pipeline.source.filters import is_pushing
from penstock.pipeline.source.options import QUEUE_COLUMNS, Options, parse_options
from penstock.pipeline.source.queue import QueueStreamReader, queue_schema
from penstock.pipeline.source.rows import spark_schema
from penstock.pipeline.source.stream import EventStreamReader


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    @plainly
    def schema(self) -> StructType:
        return _schema(parse_options(self.options))

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        options = _asked(self.options, schema)
        if options.read == "queue":
            raise OptionError(
                "read=queue is for streams: it leases messages and finishes them when their batch is done. "
                "Use spark.readStream, or read=events, which leaves the messages in the queue"
            )
        return FilteredEventReader(options) if is_pushing() else EventReader(options)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _asked(self.options, schema)
        return QueueStreamReader(options) if options.read == "queue" else EventStreamReader(options)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return checked(BatchWriter(parse_sink_options(self.options), schema, overwrite))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return checked(StreamWriter(parse_sink_options(self.options), schema, overwrite))


def _schema(options: Options) -> StructType:
    return queue_schema(options.columns) if options.read == "queue" else spark_schema(options.columns)


def _asked(given: Any, schema: StructType) -> Options:
    """The options, with the columns of the schema, which the user may have chosen."""
    options = parse_options(given)
    columns = tuple(schema.fieldNames())
    known = QUEUE_COLUMNS if options.read == "queue" else COLUMNS
    wrong = unknown_columns(columns, known)
    if wrong:
        raise OptionError(wrong)
    options = structs.replace(options, columns=columns)
    for field, ours in zip(schema, _schema(options), strict=True):
        if field.dataType != ours.dataType:
            raise OptionError(
                f"column {field.name} has type {ours.dataType.simpleString()}, not {field.dataType.simpleString()}"
            )
    return options
