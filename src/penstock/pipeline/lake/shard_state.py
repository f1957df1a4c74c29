"""The state of a shard as rows of tables: what waited there at the offset of its snapshot.

The snapshot has the facts of each message, and the position of its bytes in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.engine.engine import Engine
from penstock.engine.history import NoHistory
from penstock.engine.queue import Queue
from penstock.engine.slots import AWAITED, HELD, STORED
from penstock.limits import NEVER_NS
from penstock.model.letters import ORDER
from penstock.model.lifecycle import DAMAGED, DELAYED, KEPT, LEASED, READY
from penstock.pipeline.lake.delta import PARTITION
from penstock.pipeline.lake.tables import COUNTED, HISTOGRAMS, LEASES, MESSAGES, QUEUE_MINUTES
from penstock.pipeline.source.columns import as_map
from penstock.pipeline.source.log import EventLog, Extent
from penstock.storage.log.snapshot import read_facts, read_snapshot

_LETTERS = {READY: "Q", DELAYED: "Q", LEASED: "F", KEPT: "X", DAMAGED: "B"}
_WINDOW_BYTES = 8 << 20  # Bodies that lie near each other are fetched together.
_GAP_BYTES = 64 << 10
_MINUTE_US = 60_000_000

Consumers = Mapping[int, list[dict[str, Any]]]  # By sequence.


class ShardState:
    def __init__(self, log: EventLog, extent: Extent, snapshot: Path) -> None:
        facts = read_facts(snapshot)
        self.offset = facts.offset  # All events before it are in the state.
        self._engine = Engine(NoHistory(), shard=extent.shard, shards=extent.shards)
        self._engine.restore(read_snapshot(snapshot))
        self._time_us = facts.time // 1000
        self._shard = extent.shard
        self._bodies = _Bodies(log)
        self.waiting = sum(queue.rows.count - queue.kept for queue in self._queues)

    @property
    def _queues(self) -> list[Queue]:
        return [self._engine.queues[number] for number in sorted(self._engine.queues)]

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Rows of each table that has a past, in pieces."""
        for queue in self._queues:
            held = self._held(queue)
            yield LEASES.name, pa.Table.from_pylist(self._leases(queue, held), LEASES.schema)
            for sequences, rows in queue.rows.tables():
                yield MESSAGES.name, self._messages(queue, sequences, rows, held)
        yield QUEUE_MINUTES.name, pa.Table.from_pylist(list(self._minutes()), QUEUE_MINUTES.schema)

    # ── Depths ──────────────────────────────────────────────────────────────────────────────────────────────

    def _minutes(self) -> Iterator[dict[str, Any]]:
        """What each queue holds, as messages that came before the first minute: nothing was counted then."""
        minute = _moment(self._time_us - self._time_us % _MINUTE_US)
        for queue in self._queues:
            counts = dict.fromkeys((*COUNTED, "gone"), 0) | {"gone": queue.kept - queue.rows.count}
            histograms: dict[str, Any] = dict.fromkeys(HISTOGRAMS)
            place = {"queue": queue.name, "queue_number": queue.number, "minute": minute, PARTITION: minute.date()}
            yield place | counts | histograms

    # ── Deliveries ──────────────────────────────────────────────────────────────────────────────────────────

    def _held(self, queue: Queue) -> list[_Held]:
        """Deliveries to receivers and to workers. When they began is not known."""
        found = []
        for pairs, slots in queue.groups.tables():
            for (sequence, receiver), slot in zip(pairs.tolist(), slots.tolist(), strict=True):
                state, _, _, value = slot
                if state in (AWAITED, HELD, STORED):
                    found.append(_Held(sequence, receiver, True, None if state == STORED else value))
        for sequences, rows in queue.rows.tables():
            leased = rows["state"] == LEASED
            columns = (sequences[leased], rows["consumer"][leased], rows["visible_at"][leased])
            for sequence, consumer, until in zip(*[column.tolist() for column in columns], strict=True):
                found.append(_Held(sequence, consumer, False, until))
        return found

    def _leases(self, queue: Queue, held: Sequence[_Held]) -> list[dict[str, Any]]:
        place = {"queue": queue.name, "queue_number": queue.number, "shard": self._shard, "offset": self.offset - 1}
        found = []
        for each in held:
            if each.until is not None:
                name = self._name(each.consumer)
                facts = {"sequence": each.sequence, "consumer": name, "visible_at": _moment(each.until // 1000)}
                found.append(place | facts | {"receiver": name or "" if each.is_receiver else None})
        return found

    def _consumers(self, held: Sequence[_Held]) -> Consumers:
        found: dict[int, list[dict[str, Any]]] = {}
        for each in held:
            outcome = self._moment("S") if each.until is None else None
            facts = {"consumer": self._name(each.consumer), "outcome": outcome, "deliveries": 1}
            found.setdefault(each.sequence, []).append(facts)
        return found

    # ── Messages ────────────────────────────────────────────────────────────────────────────────────────────

    def _messages(
        self, queue: Queue, sequences: NDArray[np.int64], rows: NDArray[Any], held: Sequence[_Held]
    ) -> pa.Table:
        """Times that the state does not have are null: when messages were received before."""
        consumers = self._consumers(held)
        created = rows["created"] // 1000
        contents = self._bodies.read(rows)
        places = [self._engine.origins.get((queue.number, sequence)) for sequence in sequences.tolist()]
        columns: dict[str, Any] = {
            "queue": [queue.name] * len(rows),
            "queue_number": [queue.number] * len(rows),
            "sequence": sequences,
            "shard": [self._shard] * len(rows),
            "last": [self._moment(_letter(*each)) for each in rows[["state", "receives"]].tolist()],
            "receives": rows["receives"],
            **dict.fromkeys(("modified", "created", "entered"), _times(created)),
            "gone": [_moment(self._time_us) if state == KEPT else None for state in rows["state"].tolist()],
            **{
                name: [self._name(number) for number in rows[name].tolist()]
                for name in ("content_type", "sender", "object", "topics")
            },
            "priority": rows["priority"],
            "expires_at": _times(rows["expires_at"] // 1000, rows["expires_at"] == NEVER_NS),
            "body": [body for body, _, _ in contents],
            "key": [key or None for _, key, _ in contents],
            "headers": as_map(pa.array([headers or None for _, _, headers in contents], pa.binary())),
            "origin_queue": [None if place is None else self._engine.name_of(place[0]) for place in places],
            "origin_queue_number": [None if place is None else place[0] for place in places],
            "origin_sequence": [None if place is None else place[1] for place in places],
            "consumers": [consumers.get(sequence) for sequence in sequences.tolist()],
            PARTITION: _times(created).cast(pa.date32()),
        }
        known = [columns.get(field.name) for field in MESSAGES.schema]
        arrays = [
            pa.nulls(len(rows), field.type) if column is None else pa.array(column, field.type)
            for field, column in zip(MESSAGES.schema, known, strict=True)
        ]
        return pa.table(arrays, schema=MESSAGES.schema)

    def _moment(self, letter: str) -> int:
        """As `MOMENT` in SQL: before all events that follow the state."""
        return (self.offset - 1) * 16 + ORDER.index(letter) + 1

    def _name(self, number: int) -> str | None:
        return self._engine.names.texts.get(number) or None


class _Held(NamedTuple):
    """A delivery, or a receiver's result."""

    sequence: int
    consumer: int
    is_receiver: bool
    until: int | None  # None: the result is there.


class _Bodies:
    """Reads bodies, keys and headers where the state says that they are."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def read(self, rows: NDArray[Any]) -> list[tuple[bytes | None, bytes, bytes]]:
        starts = rows["position"].astype(np.int64)
        sizes = np.stack([rows[f"{name}_bytes"].astype(np.int64) for name in ("body", "key", "headers")])
        ends = starts + sizes.sum(axis=0)
        found: list[tuple[bytes | None, bytes, bytes]] = [(None, b"", b"")] * len(rows)
        window, base = b"", 0
        order = np.argsort(starts, kind="stable").tolist()
        for at, index in enumerate(order):
            if rows["state"][index] == DAMAGED:
                continue
            start, end = int(starts[index]), int(ends[index])
            if end > base + len(window) or start < base:
                base, window = start, self._log.raw(start, self._window_end(order[at:], starts, ends))
            body, key, _ = sizes[:, index].tolist()
            data = window[start - base : end - base]
            found[index] = data[:body], data[body : body + key], data[body + key :]
        return found

    def _window_end(self, order: Sequence[int], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
        """Where to stop reading: before the next large gap, or when it is enough."""
        first, end = int(starts[order[0]]), int(ends[order[0]])
        for index in order[1:]:
            if starts[index] > end + _GAP_BYTES or ends[index] > first + _WINDOW_BYTES:
                break
            end = max(end, int(ends[index]))
        return end


def _letter(state: int, receives: int) -> str:
    """The last letter, as far as the state tells: what was received and waits was given back."""
    return "R" if receives and state in (READY, DELAYED) else _LETTERS[state]


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)


def _times(micros: NDArray[Any], absent: NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.array(micros.astype(np.int64), mask=absent).cast(pa.timestamp("us", tz="UTC"))
