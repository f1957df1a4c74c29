"""Messages that are taken, finished and given back, decided.

What many do at once is one event, if all of the messages are in the way that most are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.errors import Reason
from penstock.limits import FETCH_BYTES_MAX, NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Decision, Delivery, Done, Refused, refuse
from penstock.model.commands import Extend, Fetch, Finish, FinishMany, Release, Settle
from penstock.model.events import Event, Fetched, FetchedRun, Kicked, KickedRun, Succeeded, SucceededRun
from penstock.model.lifecycle import DAMAGED, DELAYED, KEPT, LEASED
from penstock.model.values import Nanos, Place

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

_DONE = Done()
_NOTHING = Decision((), ())
_DELIVERED = ("position", "body_bytes", "key_bytes", "headers_bytes", "content_type", "sender", "priority")


def fetch(engine: Engine, command: Fetch, now: Nanos) -> Decision:
    queue = engine.queue(command.queue)
    if queue is None:
        return refuse(Reason.NO_QUEUE, command.queue)
    if command.count >= RUN_MESSAGES_MIN and (run := _fetch_run(engine, command, queue, now)):
        return run
    chosen = queue.next_ready(command.count, now)
    if not chosen:
        return _NOTHING
    settings, number = queue.settings, queue.number
    confirm = command.confirm and settings.confirm
    events: list[Event] = []
    deliveries: list[Delivery] = []
    consumer = engine.names.number(command.consumer, now, events) if command.consumer else 0
    # Where others have to confirm it too, a message stays until its last lease has ended.
    moves_at = settings.redrive_policy.max_receives if settings.redrive_policy and settings.confirmations <= 1 else 0
    lease_ns = command.lease_ns
    taken: dict[int, int] = {}
    room = FETCH_BYTES_MAX
    for sequence, row in chosen:
        receives = row.receives + 1
        room -= row.body_bytes
        if room < 0 and deliveries:
            break
        visible_at = now + (row.lease_ns or settings.visibility_ns if lease_ns is None else lease_ns)
        visible_at = min(visible_at, NEVER_NS)
        if not confirm:
            events.append(Kicked(now, number, sequence, row.created, receives, consumer))
        elif moves_at and receives >= moves_at:
            leased = row._replace(receives=receives, consumer=consumer)
            events.append(engine.dead_letter(queue, sequence, leased, now, taken, held_until=visible_at))
        else:
            events.append(Fetched(now, number, sequence, row.created, receives, consumer, visible_at))
        deliveries.append(delivery_of(engine, queue, sequence, row, visible_at))
    return Decision(events, deliveries)


def _fetch_run(engine: Engine, command: Fetch, queue: Queue, now: Nanos) -> Decision | None:
    """Many messages in one event, if all of them are in the way that most messages are."""
    settings = queue.settings
    if settings.redrive_policy or settings.keeps or engine.origins:
        return None
    run = queue.ready_run(command.count, now)
    if run is None:
        return None
    first, rows = run
    own_leases = rows["lease_ns"]
    lease_ns = int(own_leases[0]) or settings.visibility_ns if command.lease_ns is None else command.lease_ns
    if command.lease_ns is None and (own_leases != own_leases[0]).any():
        return None
    if int(rows["body_bytes"].sum()) > FETCH_BYTES_MAX:
        return None
    events: list[Event] = []
    consumer = engine.names.number(command.consumer, now, events) if command.consumer else 0
    visible_at = min(now + lease_ns, NEVER_NS)
    count = len(rows)
    receives = (rows["receives"] + 1).tolist()
    created = rows["created"].tolist()
    facts = (now, queue.number, list(range(first, first + count)), created, receives, [consumer] * count)
    confirm = command.confirm and settings.confirm
    events.append(FetchedRun(*facts, visible_at) if confirm else KickedRun(*facts))
    sequences = range(first, first + count)
    return Decision(events, deliveries_of(engine, queue.number, sequences, rows, receives, created, visible_at))


def deliveries_of(
    engine: Engine,
    number: int,
    sequences: Sequence[int],
    rows: NDArray[Any],
    receives: list[int],
    created: list[Nanos],
    visible_at: Nanos,
) -> list[Delivery]:
    texts = engine.names.texts
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


def delivery_of(engine: Engine, queue: Queue, sequence: int, row: Row, visible_at: Nanos) -> Delivery:
    origin = engine.origins.get((queue.number, sequence)) if engine.origins else None
    delivery = Delivery(
        origin[0] if origin else queue.number,
        origin[1] if origin else sequence,
        row.position,
        row.body_bytes,
        row.key_bytes,
        row.headers_bytes,
        engine.names.texts[row.content_type],
        engine.names.texts[row.sender],
        row.priority,
        row.receives + 1,
        row.created,
        visible_at,
    )
    if row.topics or row.object:
        delivery.object, delivery.topics = engine.names.texts[row.object], engine.names.texts[row.topics]
    return delivery


def finish(engine: Engine, command: Finish, now: Nanos) -> Decision:
    found = engine.find(command.queue, command.sequence)
    if found is None or is_done_with(found[0], found[2]):
        return refuse(Reason.NO_MESSAGE)
    queue, sequence, row = found
    if not may_settle(engine, row, command):
        return refuse(Reason.LEASE_GONE)
    facts = (now, queue.number, sequence, row.created, row.receives, row.consumer)
    complete = queue.settings.confirmations <= 1 or queue.completes(sequence)
    return Decision((Succeeded(*facts, complete, command.result),), _DONE)


def finish_many(engine: Engine, command: FinishMany, now: Nanos) -> Decision:
    if len(command.finishes) >= RUN_MESSAGES_MIN and (run := finish_run(engine, command, now)):
        return run
    events: list[Event] = []
    answers: list[Done | Refused] = []
    done: set[Place] = set()
    for one in command.finishes:
        place = (one.queue, one.sequence)
        decision = refuse(Reason.NO_MESSAGE) if place in done else finish(engine, one, now)
        if decision.events:
            done.add(place)
        events.extend(decision.events)
        answers.append(decision.answer)  # type: ignore[arg-type]
    return Decision(events, answers)


def finish_run(engine: Engine, command: FinishMany, now: Nanos) -> Decision | None:
    """Many messages in one event, if all of them are leased, in one queue and finished in the plainest way."""
    finishes = command.finishes
    number = finishes[0].queue
    queue = engine.queues.get(number)
    if queue is None or engine.moved or queue.settings.keeps:
        return None
    sequences = [finish.sequence for finish in finishes]
    rows = queue.rows.many(sequences)
    if rows is None or (rows["state"] != LEASED).any():
        return None
    receives, consumers, texts = rows["receives"].tolist(), rows["consumer"].tolist(), engine.names.texts
    for finish, received, consumer in zip(finishes, receives, consumers, strict=True):
        if finish.queue != number or finish.result:
            return None
        if finish.consumer is not None and finish.consumer != texts[consumer]:
            return None
        if finish.delivery is not None and finish.delivery != received:
            return None
    event = SucceededRun(now, number, sequences, rows["created"].tolist(), receives, consumers)
    return Decision((event,), [_DONE] * len(sequences))


def release(engine: Engine, command: Release, now: Nanos) -> Decision:
    found = engine.find(command.queue, command.sequence)
    if found is None or found[2].state == KEPT:
        return refuse(Reason.NO_MESSAGE)
    queue, sequence, row = found
    if not is_held(row) or not may_settle(engine, row, command):
        return refuse(Reason.LEASE_GONE)
    return Decision((engine.returned(queue, sequence, row, now, command.delay_ns, {}),), _DONE)


def is_done_with(queue: Queue, row: Row) -> bool:
    """Is there nothing left for workers to do? A damaged message stays where receivers may have results for it."""
    return row.state == KEPT or (row.state == DAMAGED and queue.settings.keeps)


def is_held(row: Row) -> bool:
    """Leased; or a dead letter that is still with the consumer whose delivery was the last one."""
    return row.state == LEASED or (row.state == DELAYED and row.consumer != 0)


def may_settle(engine: Engine, row: Row, command: Finish | Release | Settle | Extend) -> bool:
    """Anyone, if no lease is named; else only the one who has the message, be it as a dead letter."""
    consumer, delivery = command.consumer, command.delivery
    if delivery is not None and not _is_running(engine, row, command.queue, delivery):
        return False
    if consumer is None:
        return True
    has = is_held(row) or (row.state == DAMAGED and row.consumer != 0)
    return has and engine.names.texts[row.consumer] == consumer


def _is_running(engine: Engine, row: Row, queue: int, delivery: int) -> bool:
    """Is it this delivery's lease that holds the message? A dead letter counts from 0 again, and is held by the
    delivery that used up its receives."""
    if row.state == LEASED or row.state == DAMAGED:
        return row.receives == delivery
    origin = engine.queues.get(queue)
    policy = origin.settings.redrive_policy if origin else None
    return row.state == DELAYED and row.receives == 0 and policy is not None and delivery >= policy.max_receives
