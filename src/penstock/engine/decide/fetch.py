"""Lease messages to workers, or hand them over for good. Many messages leased in the same way are one event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from penstock.engine.decide.draft import Draft
from penstock.engine.decide.retry import dead_letter
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Delivery, Refused
from penstock.model.commands import Fetch
from penstock.model.events import Fetched, FetchedRun, HandedOver, HandedOverRun
from penstock.model.values import Nanos

_DELIVERED = ("position", "body_bytes", "key_bytes", "headers_bytes", "content_type", "sender", "priority")


def fetch(draft: Draft, command: Fetch) -> Sequence[Delivery] | Refused:
    queue = draft.queue(command.queue)
    if queue is None:
        return Refused(Reason.NO_QUEUE, command.queue)
    if command.count >= RUN_MESSAGES_MIN and (run := _fetch_run(draft, command, queue)):
        return run
    chosen = queue.next_ready(command.count, draft.now)
    if not chosen:
        return ()
    events, now, settings, number = draft.events, draft.now, queue.settings, queue.number
    confirm = command.confirm and settings.confirm
    deliveries: list[Delivery] = []
    consumer = draft.number(command.consumer) if command.consumer else 0
    # If several consumers must confirm a message, it stays until its last lease has ended.
    moves_at = settings.redrive_policy.max_receives if settings.redrive_policy and settings.confirmations <= 1 else 0
    lease_ns = command.lease_ns
    room = command.bytes_max
    for sequence, row in chosen:
        receives = row.receives + 1
        room -= row.body_bytes
        if room < 0 and deliveries:
            break
        visible_at = now + (row.lease_ns or settings.visibility_ns if lease_ns is None else lease_ns)
        visible_at = visible_at if visible_at < NEVER_NS else NEVER_NS
        if not confirm:
            events.append(HandedOver(now, number, sequence, row.created, receives, consumer))
        elif moves_at and receives >= moves_at and not command.ahead:
            leased = row._replace(receives=receives, consumer=consumer)
            events.append(dead_letter(draft, queue, sequence, leased, visible_at))
        else:
            events.append(Fetched(now, number, sequence, row.created, receives, consumer, visible_at, command.ahead))
        deliveries.append(delivery_of(draft.state, queue, sequence, row, visible_at))
    return deliveries


def _fetch_run(draft: Draft, command: Fetch, queue: Queue) -> list[Delivery] | None:
    """Lease many messages in one event, if nothing about them or their queue is special."""
    state, settings = draft.state, queue.settings
    if (settings.redrive_policy and not command.ahead) or settings.keeps or state.origins:
        return None
    run = queue.ready_run(command.count, draft.now)
    if run is None:
        return None
    first, rows = run
    own_leases = rows["lease_ns"]
    lease_ns = int(own_leases[0]) or settings.visibility_ns if command.lease_ns is None else command.lease_ns
    if command.lease_ns is None and (own_leases != own_leases[0]).any():
        return None
    if int(rows["body_bytes"].sum()) > command.bytes_max:
        return None
    consumer = draft.number(command.consumer) if command.consumer else 0
    visible_at = min(draft.now + lease_ns, NEVER_NS)
    count = len(rows)
    receives = (rows["receives"] + 1).tolist()
    created = rows["created"].tolist()
    facts = (draft.now, queue.number, list(range(first, first + count)), created, receives, [consumer] * count)
    confirm = command.confirm and settings.confirm
    draft.events.append(FetchedRun(*facts, visible_at, command.ahead) if confirm else HandedOverRun(*facts))
    return deliveries_of(state, queue.number, range(first, first + count), rows, receives, created, visible_at)


def deliveries_of(
    state: EngineState,
    number: int,
    sequences: Sequence[int],
    rows: NDArray[Any],
    receives: list[int],
    created: list[Nanos],
    visible_at: Nanos,
) -> list[Delivery]:
    texts = state.names.texts
    columns = [rows[name].tolist() for name in _DELIVERED]
    deliveries = [
        Delivery(
            *(number, sequence, position, body, key, headers),
            *(texts[content_type], texts[sender], priority, times_received, time, visible_at),
        )
        for sequence, position, body, key, headers, content_type, sender, priority, times_received, time in zip(
            sequences, *columns, receives, created, strict=True
        )
    ]
    if rows["topics"].any() or rows["object"].any():
        numbers = (rows["object"].tolist(), rows["topics"].tolist())
        for delivery, about, topics in zip(deliveries, *numbers, strict=True):
            delivery.object, delivery.topics = texts[about], texts[topics]
    return deliveries


def delivery_of(state: EngineState, queue: Queue, sequence: int, row: Row, visible_at: Nanos) -> Delivery:
    origin = state.origins.get((queue.number, sequence)) if state.origins else None
    delivery = Delivery(
        origin[0] if origin else queue.number,
        origin[1] if origin else sequence,
        row.position,
        row.body_bytes,
        row.key_bytes,
        row.headers_bytes,
        state.names.texts[row.content_type],
        state.names.texts[row.sender],
        row.priority,
        row.receives + 1,
        row.created,
        visible_at,
    )
    if row.topics or row.object:
        delivery.object, delivery.topics = state.names.texts[row.object], state.names.texts[row.topics]
    return delivery
