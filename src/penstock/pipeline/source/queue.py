"""`format("penstock")` with `read=queue`: reads the messages of a queue as a stream, and finishes them.

The driver leases messages and notes their places in the offset, which Spark writes to its checkpoint before anything
is read. So a replayed batch has the same messages: executors read them by their places, and renew leases that have
run out meanwhile. When a batch is committed its messages are finished, at the latest before the next batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.dialects.native.spark.claimed_rows import SCHEMA
from penstock.dialects.native.spark.claims import Ranges
from penstock.errors import MessagesLostError
from penstock.limits import CLAIMED_MAX
from penstock.pipeline.broker import Broker
from penstock.pipeline.causes import plainly
from penstock.pipeline.source.columns import HEADERS, TIME, as_map
from penstock.pipeline.source.options import Options

logger = logging.getLogger(__name__)

Offset = dict[str, Any]  # `reader`: who leases. `batch`: its number, from 0. `claimed`: the places of its messages.

_TASKS_MAX = 4
_TASK_MESSAGES_MIN = 10_000


def queue_schema(columns: tuple[str, ...]) -> StructType:
    return from_arrow_schema(_arrow_schema(columns))


def _arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([field.with_type(_spark_type(field)) for field in (SCHEMA.field(name) for name in columns)])


def _spark_type(field: pa.Field) -> Any:
    if field.name == "headers":
        return HEADERS
    return TIME if pa.types.is_timestamp(field.type) else field.type


def _as_spark(array: pa.Array, field: pa.Field) -> pa.Array:
    return as_map(array) if field.name == "headers" else array.cast(field.type, safe=False)


class Share(InputPartition):
    """The messages that one task reads, and who has leased them."""

    def __init__(self, reader: str, claimed: Ranges) -> None:
        self.reader = reader
        self.claimed = claimed


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        self._options = options
        (queue,) = options.queues
        self._path = f"/v1/claims/{quote(queue, safe='')}"
        self._queue = f"/v1/queues/{quote(queue, safe='')}"
        self._finished = ("", 0)  # Reader and batch.
        self._left: int | None = None  # How many messages a run with AvailableNow may still take.

    @cached_property
    def _broker(self) -> Broker:
        # Opened on first use: a reader is pickled and sent to the executors.
        assert self._options.url is not None
        return Broker(self._options.url, self._options.token, self._options.trust)

    # ── On the driver ───────────────────────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> Offset:
        return {"reader": f"spark-{uuid4().hex}", "batch": 0, "claimed": []}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.messages_max)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._left = json.loads(self._broker.ask("GET", self._queue).body)["status"]["ready"]

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Lease the next messages. Spark calls this when it is done with all earlier ones, so finish those first."""
        del limit  # It is the one that we gave to Spark.
        self.commit(start)
        most = self._options.messages_max if self._left is None else min(self._options.messages_max, self._left)
        claimed = self._claim(start["reader"], most)
        return {"reader": start["reader"], "batch": start["batch"] + 1, "claimed": claimed} if claimed else start

    def _claim(self, reader: str, most: int) -> Ranges:
        claimed: Ranges = []
        while most > 0:
            wish = {"consumer": reader, "lease": self._options.lease_seconds, "count": min(most, CLAIMED_MAX)}
            more = json.loads(self._broker.ask("POST", self._path, body=json.dumps(wish).encode()).body)
            if not more["count"]:
                break
            most -= more["count"]
            self._left = None if self._left is None else self._left - more["count"]
            _add(claimed, more["claimed"])
        return claimed

    def partitions(self, start: Offset, end: Offset) -> list[Share]:
        if start["batch"] == end["batch"]:
            return []
        claimed: Ranges = end["claimed"]
        size = max(_TASK_MESSAGES_MIN, -(-_count(claimed) // _TASKS_MAX))
        return [Share(end["reader"], part) for part in _divided(claimed, size)]

    @plainly
    def commit(self, end: Offset) -> None:
        """Finish the messages of a batch that Spark is done with. Calling this twice does no harm."""
        if self._finished == (end["reader"], end["batch"]):
            return
        for part in _divided(end["claimed"], CLAIMED_MAX):
            known = {"consumer": end["reader"], "claimed": part}
            self._broker.ask("POST", f"{self._path}/finish", body=json.dumps(known).encode())
        self._finished = (end["reader"], end["batch"])

    def stop(self) -> None:
        if "_broker" in self.__dict__:
            self._broker.close()

    # ── On the executors ────────────────────────────────────────────────────────────────────────────────────

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Share):
            return  # Spark passes a partition of its own if there are none.
        schema = _arrow_schema(self._options.columns)
        with closing(self._broker) as broker:
            for part in _divided(partition.claimed, CLAIMED_MAX):
                for rows in self._read(broker, partition.reader, part):
                    arrays = [_as_spark(rows.column(field.name), field) for field in schema]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _read(self, broker: Broker, reader: str, claimed: Ranges) -> Iterator[pa.RecordBatch]:
        while claimed:
            known = {"consumer": reader, "claimed": claimed, "lease": self._options.lease_seconds}
            answer = broker.ask("POST", f"{self._path}/read", body=json.dumps(known).encode())
            self._check(int(answer.headers["X-Penstock-Missing"]))
            with pa.ipc.open_stream(answer.body) as stream:
                yield from stream
            following = answer.headers["X-Penstock-Next"]
            claimed = _from(claimed, *map(int, following.split("."))) if following else []

    def _check(self, missing: int) -> None:
        if not missing:
            return
        loss = f"{missing} messages of this batch are gone or leased by other consumers: their leases had run out"
        if self._options.fail_on_data_loss:
            raise MessagesLostError(f"{loss}. With failOnDataLoss=false the query continues without them.")
        logger.warning("%s; the query continues without them", loss)


# ── Ranges of places ──────────────────────────────────────────────────────────────────────────────────────────


def _count(claimed: Ranges) -> int:
    return sum(last - first + 1 for _, first, last in claimed)


def _add(claimed: Ranges, more: Ranges) -> None:
    for queue, first, last in more:
        if claimed and (claimed[-1][0], claimed[-1][2] + 1) == (queue, first):
            claimed[-1] = (queue, claimed[-1][1], last)
        else:
            claimed.append((queue, first, last))


def _divided(claimed: Ranges, size: int) -> Iterator[Ranges]:
    """The same places in parts of at most `size`."""
    part: Ranges = []
    room = size
    for queue, first, last in claimed:
        while first <= last:
            end = min(last, first + room - 1)
            part.append((queue, first, end))
            room -= end - first + 1
            first = end + 1
            if not room:
                yield part
                part, room = [], size
    if part:
        yield part


def _from(claimed: Ranges, queue: int, sequence: int) -> Ranges:
    """The places from this one on."""
    for at, (number, first, last) in enumerate(claimed):
        if number == queue and first <= sequence <= last:
            return [(queue, sequence, last), *claimed[at + 1 :]]
    return []
