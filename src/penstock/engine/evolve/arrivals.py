"""Messages that enter queues: logged there, queued by reference, or only archived because nothing has changed."""

from __future__ import annotations

import numpy as np

from penstock.engine.history import content_digest, note, note_run
from penstock.engine.queue import Queue
from penstock.engine.rows import ROW_DTYPE, Row
from penstock.engine.state import EngineState
from penstock.limits import RUN_MESSAGES_MIN
from penstock.model.events import Logged, LoggedRun, Queued, QueuedRun, Unchanged, UnchangedRun
from penstock.model.lifecycle import DELAYED, READY
from penstock.model.values import KeyedRun, Nanos, Position


def logged(state: EngineState, event: Logged, position: Position) -> None:
    queue = state.queues[event.queue]
    sequence, visible_at, expires_at, priority = event.sequence, event.visible_at, event.expires_at, event.priority
    assert sequence == queue.last_sequence + 1, "sequences have no gaps"
    row_state = READY if visible_at <= event.time else DELAYED
    key = event.key
    row = (visible_at, 0, 0, row_state, 0, len(key), priority, position, event.time, expires_at)
    sizes = (len(event.body), len(event.headers))
    names = (event.content_type, event.sender, event.lease_ns, event.object, event.topics)
    queue.rows.add(sequence, row + sizes + names)
    queue.enter(sequence, row_state, visible_at, priority, expires_at)
    if event.digest:
        queue.digests.remember(event.digest, sequence)
    if key and event.object:
        about, digest = state.names.texts[event.object], content_digest(event.body)
        note(state.history, about, key, digest, event.queue, sequence, event.time, position)
    if event.topics:
        state.index_topics(queue, event.topics, sequence)
    deadline = expires_at if row_state == READY else min(visible_at, expires_at)
    if deadline < queue.armed:
        state.arm(queue, deadline)


def logged_run(state: EngineState, event: LoggedRun, position: Position) -> None:
    queue = state.queues[event.queue]
    first, visible_at, expires_at = event.sequence, event.visible_at, event.expires_at
    assert first == queue.last_sequence + 1, "sequences have no gaps"
    row_state = READY if visible_at <= event.time else DELAYED
    sizes = np.fromiter(map(len, event.bodies), dtype=np.int64, count=len(event.bodies))
    key_sizes = np.fromiter(map(len, event.keys), dtype=np.int64) if event.keys else np.int64(0)
    ends = position + np.cumsum(sizes + key_sizes)
    rows = np.zeros(len(sizes), dtype=ROW_DTYPE)
    rows["key_bytes"] = key_sizes
    rows["visible_at"] = visible_at
    rows["state"] = row_state
    rows["priority"] = event.priority
    rows["position"] = ends - sizes - key_sizes
    rows["created"] = event.time
    rows["expires_at"] = expires_at
    rows["body_bytes"] = sizes
    rows["content_type"] = event.content_type
    rows["sender"] = event.sender
    rows["lease_ns"] = event.lease_ns
    rows["object"] = event.object
    rows["topics"] = event.topics
    queue.rows.add_run(first, rows)
    queue.enter_run(first, len(sizes), row_state, visible_at, event.priority, expires_at)
    if event.topics:
        state.index_topics(queue, event.topics, first, len(sizes))
    if event.contents:
        about, positions = state.names.texts[event.object], rows["position"].tolist()
        facts = (event.queue, first, event.time, positions, event.seen)
        note_run(state.history, KeyedRun(about, event.keys, event.contents, *facts))
    state.arm(queue, expires_at if row_state == READY else min(visible_at, expires_at))


def queued(state: EngineState, event: Queued, _: Position) -> None:
    facts = (event.visible_at, event.expires_at, event.priority)
    names = (event.content_type, event.sender, event.object, event.topics)
    original = (event.to_queue, event.to_sequence)
    _refer(state, event.time, event.queue, event.sequence, event.created, *facts, *names, *original)


def queued_run(state: EngineState, event: QueuedRun, _: Position) -> None:
    queues = event.queue
    if len(queues) < RUN_MESSAGES_MIN * len(set(queues)):
        _refer_each(state, event, slice(None))
        return
    start = 0
    while start < len(queues):
        stop = start + queues.count(queues[start])  # The messages of one queue are next to each other.
        _refer_run(state, event, slice(start, stop))
        start = stop


def _refer(
    state: EngineState,
    time: Nanos,
    number: int,
    sequence: int,
    created: Nanos,
    visible_at: Nanos,
    expires_at: Nanos,
    priority: int,
    content_type: int,
    sender: int,
    about: int,
    topics: int,
    to_queue: int,
    to_sequence: int,
) -> None:
    """Add a message of one queue to another one. Both rows point to the same extent."""
    queue, original = state.queues[number], state.queues[to_queue]
    row = original.rows.get(to_sequence)
    assert row is not None, f"message {to_sequence} of queue {to_queue} is referred to and does not exist"
    assert sequence == queue.last_sequence + 1, "sequences have no gaps"
    row_state = READY if visible_at <= time else DELAYED
    facts = (visible_at, 0, 0, row_state, 0, row.key_bytes, priority, row.position, created, expires_at)
    sizes = (row.body_bytes, row.headers_bytes)
    queue.rows.add(sequence, facts + sizes + (content_type, sender, row.lease_ns, about, topics))
    queue.enter(sequence, row_state, visible_at, priority, expires_at)
    if queue.settings.deduplication:
        digest = original.digests.by_sequence.get(to_sequence)
        if digest and digest not in queue.digests:
            queue.digests.remember(digest, sequence)
    if topics:
        state.index_topics(queue, topics, sequence)
    deadline = expires_at if row_state == READY else min(visible_at, expires_at)
    if deadline < queue.armed:
        state.arm(queue, deadline)


def _refer_each(state: EngineState, event: QueuedRun, chosen: slice) -> None:
    columns = [getattr(event, name)[chosen] for name in event.__struct_fields__[1:]]
    for facts in zip(*columns, strict=True):
        _refer(state, event.time, *facts)


def _refer_run(state: EngineState, event: QueuedRun, chosen: slice) -> None:
    """Like `_refer`, for the messages of one queue, if they are alike enough."""
    queue = state.queues[event.queue[chosen.start]]
    first, visible_at = event.sequence[chosen.start], event.visible_at[chosen.start]
    expires_at, priority = event.expires_at[chosen.start], event.priority[chosen.start]
    rows = state.queues[event.to_queue[chosen.start]].rows.many(event.to_sequence[chosen])
    alike = all(
        column[chosen].count(column[chosen.start]) == chosen.stop - chosen.start
        for column in (event.visible_at, event.expires_at, event.priority, event.topics, event.to_queue)
    )
    if rows is None or not alike or queue.settings.deduplication:
        _refer_each(state, event, chosen)
        return
    assert first == queue.last_sequence + 1, "sequences have no gaps"
    row_state = READY if visible_at <= event.time else DELAYED
    facts = {"visible_at": visible_at, "expires_at": expires_at, "priority": priority, "state": row_state}
    names = {"content_type": event.content_type, "sender": event.sender, "object": event.object}
    columns = {"created": event.created, "topics": event.topics} | names
    for name, value in {"receives": 0, "consumer": 0, "marks": 0, **facts}.items():
        rows[name] = value
    for name, column in columns.items():
        rows[name] = column[chosen]
    queue.rows.add_run(first, rows)
    queue.enter_run(first, len(rows), row_state, visible_at, priority, expires_at)
    if topics := event.topics[chosen.start]:
        state.index_topics(queue, topics, first, len(rows))
    state.arm(queue, expires_at if row_state == READY else min(visible_at, expires_at))


def arrive(state: EngineState, queue: Queue, sequence: int, row: Row, digest: bytes | None) -> None:
    """Add a message that was in another queue, here or elsewhere. Both have the same content."""
    assert sequence == queue.last_sequence + 1, "sequences have no gaps"
    queue.rows.add(sequence, row)
    queue.enter(sequence, row.state, row.visible_at, row.priority, row.expires_at)
    if digest and queue.settings.deduplication and digest not in queue.digests:
        queue.digests.remember(digest, sequence)
    if row.topics:
        state.index_topics(queue, row.topics, sequence)
    state.arm(queue, row.expires_at if row.state == READY else min(row.visible_at, row.expires_at))


def unchanged(state: EngineState, event: Unchanged, _: Position) -> None:
    queue = state.queues[event.queue]
    assert event.sequence == queue.last_sequence + 1, "sequences have no gaps"
    queue.last_sequence = event.sequence


def unchanged_run(state: EngineState, event: UnchangedRun, _: Position) -> None:
    queue = state.queues[event.queue]
    assert event.sequence == queue.last_sequence + 1, "sequences have no gaps"
    queue.last_sequence += len(event.keys)
