"""Queues that are made, changed, removed and described, and objects that are described, decided."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from penstock.engine.queue import Queue
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import QUEUE_NUMBER_MAX, QUEUES_MAX
from penstock.model.answers import Decision, ObjectDescription, QueueDescription, QueueList, refuse
from penstock.model.commands import CreateQueue, DeleteQueue, DescribeObject, DescribeQueue, ListQueues, UpdateQueue
from penstock.model.events import Event, QueueChanged, QueueCreated, QueueRemoved
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos


def create_queue(engine: EngineState, command: CreateQueue, now: Nanos) -> Decision:
    if command.name in engine.numbers:
        return refuse(Reason.QUEUE_EXISTS, command.name)
    if refused := _refused(engine, command.settings):
        return refused
    if len(engine.queues) >= QUEUES_MAX or engine.last_queue >= QUEUE_NUMBER_MAX:
        return refuse(Reason.TOO_MANY_QUEUES, str(QUEUES_MAX))
    event = QueueCreated(now, engine.last_queue + 1, command.name, command.settings)
    return Decision((event,), _description(Queue(event.queue, event.name, event.settings), now))


def update_queue(engine: EngineState, command: UpdateQueue, now: Nanos) -> Decision:
    queue = engine.queue(command.name)
    if queue is None:
        return refuse(Reason.NO_QUEUE, command.name)
    settings = command.settings
    if command.fields is not None:
        changes = {name: getattr(settings, name) for name in command.fields}
        settings = msgspec.structs.replace(queue.settings, **changes)
    if refused := _refused(engine, settings):
        return refused
    if settings.confirmations < queue.settings.confirmations and (queue.groups.slots or queue.kept):
        return refuse(Reason.CONFIRMATIONS_COUNT, command.name)  # What is full by now would never be completed.
    changed = QueueChanged(now, queue.number, settings)
    return Decision((changed,), msgspec.structs.replace(_description(queue, now), settings=settings))


def _refused(engine: EngineState, settings: QueueSettings) -> Decision | None:
    policy = settings.redrive_policy
    if policy and policy.dead_letter_queue not in engine.numbers:
        return refuse(Reason.NO_DEAD_LETTER_QUEUE, policy.dead_letter_queue)
    if settings.confirmations > 1 and not settings.confirm:
        return refuse(Reason.NOT_TOGETHER, f"confirm=false and confirmations={settings.confirmations}")
    if settings.confirmations > 1 and settings.push:
        return refuse(Reason.NOT_TOGETHER, f"push and confirmations={settings.confirmations}; push is one consumer")
    return None


def delete_queue(engine: EngineState, command: DeleteQueue, now: Nanos) -> Decision:
    queue = engine.queue(command.name)
    if queue is None:
        return refuse(Reason.NO_QUEUE, command.name)
    events: list[Event] = []
    for other in engine.queues.values():
        policy = other.settings.redrive_policy
        if policy and policy.dead_letter_queue == queue.name and other is not queue:
            events.append(QueueChanged(now, other.number, _without_policy(other.settings)))
    events.append(QueueRemoved(now, queue.number))
    return Decision(events, _description(queue, now))


def describe_queue(engine: EngineState, command: DescribeQueue, now: Nanos) -> Decision:
    queue = engine.queue(command.name)
    if queue is None:
        return refuse(Reason.NO_QUEUE, command.name)
    return Decision((), _description(queue, now))


def list_queues(engine: EngineState, command: ListQueues, now: Nanos) -> Decision:
    numbers = engine.routing.all_channels() if command.channels else list(engine.numbers.values())
    start = bisect_right(numbers, command.after) + command.offset
    chosen = numbers[start:] if command.limit is None else numbers[start : start + command.limit]
    described = [_description(engine.queues[number], now) for number in chosen]
    return Decision((), QueueList(len(numbers), described, chosen[-1] if chosen else 0))


def describe_object(engine: EngineState, command: DescribeObject, _: Nanos) -> Decision:
    newest = engine.history.get(command.object, command.key)
    if newest is None:
        return refuse(Reason.NO_OBJECT)
    versions = engine.history.versions(command.object, command.key, command.limit)
    numbers = {version.queue for version in (newest, *versions)}
    queues = {number: engine.queues[number].name for number in numbers if number in engine.queues}
    return Decision((), ObjectDescription(newest, versions, queues))


def _without_policy(settings: QueueSettings) -> QueueSettings:
    return QueueSettings(
        redrive_policy=None,
        **{name: getattr(settings, name) for name in settings.__struct_fields__ if name != "redrive_policy"},
    )


def _description(queue: Queue, now: Nanos) -> QueueDescription:
    oldest = queue.rows.oldest()
    return QueueDescription(
        name=queue.name,
        settings=queue.settings,
        messages=queue.rows.count,
        ready=queue.ready,
        leased=queue.leases.live,
        delayed=queue.delayed.live,
        oldest_age_ns=now - oldest.created if oldest else 0,
        last_sequence=queue.last_sequence,
        kept=queue.kept,
        damaged=queue.damaged,
    )
