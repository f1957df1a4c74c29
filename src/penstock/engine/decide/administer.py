"""Create, change, delete, describe and list queues, and describe objects."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from penstock.engine.decide.draft import Draft, RefusedError
from penstock.engine.decide.promises import promise, remove_policies
from penstock.engine.queue import Queue
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import QUEUE_NUMBER_MAX, QUEUES_MAX
from penstock.model.access import OWN_QUEUES
from penstock.model.answers import (
    CHANGED_MEANWHILE,
    Answer,
    Done,
    ObjectDescription,
    QueueDescription,
    QueueList,
    QueueNames,
    Refused,
)
from penstock.model.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    DescribeObject,
    DescribeQueue,
    ListQueues,
    UpdateQueue,
)
from penstock.model.courier_commands import CheckDeadLetterQueue, NameQueues
from penstock.model.events import QueueChanged, QueueRemoved
from penstock.model.probe import Probe
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Wish


def create_queue(draft: Draft, command: CreateQueue) -> QueueDescription:
    return _description(make_queue(draft, command.name, command.settings), draft.now)


def make_queue(draft: Draft, name: str, settings: QueueSettings) -> Queue:
    if draft.queue(name):
        raise RefusedError(Refused(Reason.QUEUE_EXISTS, name))
    _check(draft, settings)
    if len(draft.state.queues) + draft.queues_created >= QUEUES_MAX or draft.next_queue > QUEUE_NUMBER_MAX:
        raise RefusedError(Refused(Reason.TOO_MANY_QUEUES, str(QUEUES_MAX)))
    return draft.add_queue(name, settings)


def update_queue(draft: Draft, command: UpdateQueue) -> QueueDescription | Refused:
    queue = draft.queue(command.name)
    if queue is None:
        return Refused(Reason.NO_QUEUE, command.name)
    if command.was not in (None, queue.settings):
        return CHANGED_MEANWHILE
    settings = command.settings
    if command.fields is not None:
        settings = replace(queue.settings, **{name: getattr(settings, name) for name in command.fields})
    _check(draft, settings)
    if settings.confirmations < queue.settings.confirmations and (queue.groups.slots or queue.kept):
        return Refused(Reason.CONFIRMATIONS_COUNT, command.name)  # Some messages would never be completed.
    draft.events.append(QueueChanged(draft.now, queue.number, settings))
    return replace(_description(queue, draft.now), settings=settings)


def _check(draft: Draft, settings: QueueSettings) -> None:
    policy = settings.redrive_policy
    if policy and not has_queue(draft, policy.dead_letter_queue):
        raise RefusedError(Refused(Reason.NO_DEAD_LETTER_QUEUE, policy.dead_letter_queue))
    if settings.confirmations > 1 and not settings.confirm:
        detail = f"confirm=false and confirmations={settings.confirmations}"
        raise RefusedError(Refused(Reason.NOT_TOGETHER, detail))
    if settings.confirmations > 1 and settings.push:
        detail = f"push and confirmations={settings.confirmations}; push is one consumer"
        raise RefusedError(Refused(Reason.NOT_TOGETHER, detail))


def has_queue(draft: Draft, name: str) -> bool:
    """Whether messages can be moved to a queue. One of another shard is created if it does not exist."""
    return draft.queue(name) is not None or draft.state.is_elsewhere(name)


def delete_queue(draft: Draft, command: DeleteQueue) -> QueueDescription | Refused:
    queue = draft.queue(command.name)
    if queue is None:
        return Refused(Reason.NO_QUEUE, command.name)
    if command.was not in (None, queue.settings):
        return CHANGED_MEANWHILE
    remove_policies(draft, queue.name, draft.now)
    draft.events.append(QueueRemoved(draft.now, queue.number))
    promise(draft, Wish.FORGET_DEAD_LETTERS, queue.name)
    return _description(queue, draft.now)


def check_dead_letter_queue(draft: Draft, command: CheckDeadLetterQueue) -> Done | Refused:
    return Done() if draft.queue(command.name) else Refused(Reason.NO_DEAD_LETTER_QUEUE, command.name)


def describe_queue(draft: Draft, command: DescribeQueue) -> QueueDescription | Refused:
    queue = draft.queue(command.name)
    return _description(queue, draft.now) if queue else Refused(Reason.NO_QUEUE, command.name)


def list_queues(draft: Draft, command: ListQueues) -> QueueList:
    state = draft.state
    numbers = state.routing.all_channels() if command.channels else _all_queues(state)
    if not command.access.sees_all:
        numbers = [number for number in numbers if command.access.sees(state.queues[number].name)]
    queues = state.queues
    start = bisect_right(numbers, command.after, key=lambda number: (queues[number].created, number)) + command.offset
    chosen = numbers[start:] if command.limit is None else numbers[start : start + command.limit]
    described = [_description(state.queues[number], draft.now) for number in chosen]
    return QueueList(len(numbers), described)


def _all_queues(state: EngineState) -> list[int]:
    """Without the broker's own: those who may read them know their names."""
    numbers = list(state.numbers.values())
    for name in OWN_QUEUES & state.numbers.keys():
        numbers.remove(state.numbers[name])
    return numbers


def describe_object(draft: Draft, command: DescribeObject) -> ObjectDescription | Refused:
    history, queues = draft.state.history, draft.state.queues
    newest = history.get(command.object, command.key)
    if newest is None:
        return Refused(Reason.NO_OBJECT)
    versions = history.versions(command.object, command.key, command.limit)
    numbers = {version.queue for version in (newest, *versions)}
    return ObjectDescription(newest, versions, {each: queues[each].name for each in numbers if each in queues})


def name_queues(draft: Draft, command: NameQueues) -> QueueNames:
    queues = draft.state.queues
    return QueueNames({number: queues[number].name for number in command.numbers if number in queues})


def _description(queue: Queue, now: Nanos) -> QueueDescription:
    oldest = queue.rows.oldest()
    return QueueDescription(
        name=queue.name,
        number=queue.number,
        settings=queue.settings,
        messages=queue.rows.count,
        ready=queue.ready,
        leased=queue.leases.live,
        delayed=queue.delayed.live,
        oldest_age_ns=now - oldest.created if oldest else 0,
        last_sequence=queue.last_sequence,
        kept=queue.kept,
        damaged=queue.damaged,
        created=queue.created,
    )


_MISSING = frozenset(reason for reason in Reason if reason.status == 404)
_THERE = frozenset((Reason.QUEUE_EXISTS, Reason.IS_CHANNEL, Reason.TOKEN_EXISTS))

Decide = Callable[[Draft, Any], Answer]


def probe_with(decide: Mapping[type[Command], Decide]) -> Decide:
    """Decides what is asked about with its own function from this table, and drops what comes of it."""

    def probe(draft: Draft, command: Probe) -> Answer:
        try:
            answer = decide[type(command.head)](draft, command.head)
        except RefusedError as error:
            answer = error.refused
        draft.events.clear()
        is_about_names = isinstance(answer, Refused) and answer.reason in _MISSING | _THERE
        return answer if is_about_names else Done()

    return probe
