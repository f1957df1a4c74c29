"""Converts the whole state into sections of a snapshot, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from penstock.decoding import decode_json
from penstock.engine.couriers import ANYWHERE
from penstock.engine.names import StoredNames
from penstock.engine.queue import Queue
from penstock.engine.rows import Columns
from penstock.engine.state import EngineState
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Position

Section = tuple[str, bytes, Columns]  # A piece of a snapshot: kind, facts as JSON, columns.


class _Head(msgspec.Struct, omit_defaults=True):
    time: Nanos
    last_queue: int
    names: list[str]  # This and what follows are `StoredNames`.
    numbers: list[int] = []
    last_name: int = 0
    promised: Position = ANYWHERE  # Of `Couriers`. Earlier versions did not store it.


class _QueueFacts(msgspec.Struct):
    number: int
    name: str
    settings: QueueSettings
    last_sequence: int
    created: Nanos = 0
    changed: Nanos = 0


def sections_of(state: EngineState) -> Iterator[Section]:
    """The state in pieces of bounded size, for `restore`."""
    names = state.names.stored()
    promised = state.couriers.promised if state.queue_step > 1 else ANYWHERE  # Alone, nobody asks.
    head = _Head(state.time, state.last_queue, names.names, names.numbers, names.last_name, promised)
    yield "engine", msgspec.json.encode(head), ()
    for queue in state.queues.values():
        yield from _queue_sections(queue)
    yield from state.history.sections()
    moved = np.array([(*origin, *place) for origin, place in state.moved.items()], dtype=np.int64)
    yield "moved", b"", (moved,)
    yield from state.reasons.sections()
    yield from state.staging.sections()
    yield from state.answered.sections()
    yield from state.schedules.sections()
    yield from state.tokens.sections()
    yield from state.couriers.sections()
    yield from state.outcomes.sections()


def _queue_sections(queue: Queue) -> Iterator[Section]:
    facts = (queue.number, queue.name, queue.settings.to_store(), queue.last_sequence)
    created = {"created": queue.created} if queue.created else {}
    created |= {"changed": queue.changed} if queue.changed != queue.created else {}
    yield "queue", msgspec.json.encode(dict(zip(_QueueFacts.__struct_fields__, facts, strict=False)) | created), ()
    for columns in queue.rows.tables():
        yield "rows", b"", columns
    yield from queue.digests.sections()
    yield from queue.groups.sections()


def restore(state: EngineState, sections: Iterable[Section]) -> None:
    """Load a snapshot into `state`, which must be new."""
    assert not state.queue_numbers
    queue: Queue | None = None
    for kind, facts, columns in sections:
        if kind == "engine":
            head = decode_json(facts, _Head)
            state.time, state.last_queue = head.time, head.last_queue
            state.names.restore(StoredNames(head.names, head.numbers, head.last_name))
            state.couriers.promised = head.promised
        elif kind == "staging":
            state.staging.restore(facts)
        elif kind == "answered":
            state.answered.restore(columns)
        elif kind == "schedules":
            state.schedules.restore(facts)
        elif kind == "tokens":
            state.tokens.restore(facts)
        elif kind == "couriers":
            state.couriers.restore(facts)
        elif kind == "outcomes":
            state.outcomes.restore(facts)
        elif kind == "queue":
            stored = decode_json(facts, _QueueFacts)
            queue = Queue(stored.number, stored.name, stored.settings, stored.created)
            queue.last_sequence = stored.last_sequence
            queue.changed = stored.changed or stored.created
            state.queues[queue.number] = queue
            state.numbers[queue.name] = queue.number
            state.routing.assign(queue.number, queue.settings.topics)
        elif kind == "history":
            state.history.restore(facts)
        elif kind == "reasons":
            state.reasons.restore(facts, columns)
        elif kind == "moved":
            for a, b, c, d in columns[0].view(np.int64).reshape(-1, 4).tolist():
                state.moved[a, b] = (c, d)
                state.origins[c, d] = (a, b)
        else:
            assert queue is not None
            _restore_part(queue, kind, columns)
    _derive(state)


def _restore_part(queue: Queue, kind: str, columns: Columns) -> None:
    if kind == "rows":
        queue.rows.restore(columns)
    elif kind == "digests":
        queue.digests.restore(columns)
    else:
        queue.groups.restore(kind, columns)


def _derive(state: EngineState) -> None:
    """Rebuild what a snapshot does not contain: lines, indexes and deadlines follow from the rows."""
    for queue in state.queues.values():
        queue.line_up()
        if queue.damaged:
            state.damaged_in.add(queue.number)
        state.topics.note_all(queue.topics.numbers if queue.topics else ())
        state.arm(queue, queue.next_deadline())
