"""Decide a pull of a receiver: first its results are stored, then its queues deliver messages.

A queue that keeps everything delivers by cursor: strictly in the order of sequences, stopping before a message that
is not visible yet, and skipping messages that are gone. If there is nothing new, messages that are due again are
delivered in the order of sequences. Only a delivery moves a cursor: a pull that finds nothing changes nothing,
wherever it should start. A queue whose messages leave has only workers: there a pull is a fetch, and a result
finishes the message. But if such a queue asks for several confirmations, the consumers that give a name are its
receivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from penstock.engine.decide.draft import Draft
from penstock.engine.decide.fetch import deliveries_of, fetch
from penstock.engine.decide.finish import finish
from penstock.engine.queue import Queue
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import NEVER_NS, RECEIVERS_MAX, RUN_MESSAGES_MIN, UINT32_MAX
from penstock.model.answers import Delivery, Drawn, Pulled, Received, Refused, StoredResult, WrongResult
from penstock.model.commands import FROM_NEWEST, FROM_NEXT, AwaitResult, Draw, Fetch, Finish, Pull, Receive
from penstock.model.consuming import Consume
from penstock.model.events import (
    Completed,
    Delivered,
    DeliveredRun,
    Event,
    HandedToReceiver,
    HandedToReceiverRun,
    MessageEvent,
    MessageRun,
    NameDefined,
    ResultStored,
)
from penstock.model.lifecycle import DAMAGED, DELAYED, GONE
from penstock.model.values import Nanos, Place

_Table = NDArray[Any]


def pull(draft: Draft, command: Pull) -> Pulled | Refused:
    return _Pulling(draft, command).decide()


class _Pulling:
    def __init__(self, draft: Draft, command: Pull, *, by_cursor: bool = False) -> None:
        self._draft = draft
        self._now = draft.now
        self._events = draft.events
        self._command = command
        self._by_cursor = by_cursor  # Even if messages leave the queue: several receivers confirm them.
        self._receiver = draft.state.names.known(command.receiver)
        self._room = command.bytes_max
        self._drawn: list[Drawn] = []
        self._answered: set[Place] = set()  # By results of this pull.

    def decide(self) -> Pulled | Refused:
        if refused := self._refused():
            return refused
        self._receiver = self._draft.number(self._command.receiver)
        wrong = self._store_results()
        if not wrong:
            for draw in self._command.draws:
                queue = self._draft.queue(draw.queue)
                if queue is not None:
                    self._draw(queue, draw)
        if len(self._events) == 1 and isinstance(self._events[0], NameDefined):
            self._events.clear()  # A receiver that gets nothing changes nothing.
        return self._answer(wrong)

    def _refused(self) -> Refused | None:
        for draw in self._command.draws:
            queue = self._draft.queue(draw.queue)
            if queue is None:
                continue
            if self._is_for_workers(queue):
                if draw.start:
                    return Refused(Reason.NO_CURSOR, draw.queue)
            elif len(queue.groups) >= RECEIVERS_MAX and self._receiver not in queue.groups:
                return Refused(Reason.TOO_MANY_RECEIVERS, f"{RECEIVERS_MAX}: {draw.queue}")
        return None

    def _is_for_workers(self, queue: Queue) -> bool:
        return queue.settings.keep == "finished" and not self._by_cursor

    def _answer(self, wrong: list[WrongResult]) -> Pulled:
        if self._drawn:
            return Pulled(self._drawn)
        due_at, last = NEVER_NS, dict[str, int | None]()
        for draw in self._command.draws:
            queue = self._draft.queue(draw.queue)
            last[draw.queue] = queue.last_sequence if queue else 0
            if queue and draw.retries and not draw.only_new and draw.start >= 0:
                due_at = min(due_at, queue.groups.next_due(self._receiver))
        return Pulled(wrong=wrong, last=last, due_at=due_at)

    # ── Results ─────────────────────────────────────────────────────────────────────────────────────────────

    def _store_results(self) -> list[WrongResult]:
        wrong = []
        for name, sequence, result in self._command.results:
            if refused := self._store(name, sequence, result):
                wrong.append(WrongResult(name, sequence, refused))
        return wrong

    def _store(self, name: str, sequence: int, result: bytes) -> Refused | None:
        queue = self._draft.queue(name)
        if queue is None:
            return Refused(Reason.NO_QUEUE)
        if (queue.number, sequence) in self._answered:
            return None
        if queue.settings.keep == "finished":
            return self._finish(queue, sequence, result)
        row = queue.rows.get(sequence)
        if row is None or row.expires_at <= self._now:
            return Refused(Reason.NO_MESSAGE)
        if len(queue.groups) >= RECEIVERS_MAX and self._receiver not in queue.groups:
            return Refused(Reason.TOO_MANY_RECEIVERS)
        if queue.groups.result(sequence, self._receiver):
            return None  # The first result counts. Another one is normal after a retry.
        slot = queue.groups.slot(self._receiver, sequence)
        facts = (self._now, queue.number, sequence, row.created, slot.size if slot else 0, self._receiver)
        self._events.append(ResultStored(*facts, result))
        if queue.completes(sequence) and row.state != DAMAGED:
            self._events.append(Completed(*facts))
        self._answered.add((queue.number, sequence))
        return None

    def _finish(self, queue: Queue, sequence: int, result: bytes) -> Refused | None:
        command = Finish(queue.number, sequence, consumer=self._command.receiver, result=result)
        answer = finish(self._draft, command)
        if isinstance(answer, Refused):
            return answer
        self._answered.add((queue.number, sequence))
        return None

    # ── Messages ────────────────────────────────────────────────────────────────────────────────────────────

    def _draw(self, queue: Queue, draw: Draw) -> None:
        if self._is_for_workers(queue):
            self._fetch(queue, draw)
            return
        if draw.start == FROM_NEXT or self._room <= 0:
            return
        cursor = queue.groups.cursor(self._receiver)
        if draw.start == FROM_NEWEST:
            self._deliver(queue, draw, self._newest(queue, cursor))
            return
        is_same = draw.queue_number in (0, queue.number)
        runs = list(self._unseen(queue, max(cursor, draw.start - 1) if is_same else cursor, draw.most))
        self._deliver(queue, draw, runs)
        if not runs:
            self._deliver_again(queue, draw)

    def _unseen(self, queue: Queue, cursor: int, wanted: int) -> Iterator[tuple[int, _Table]]:
        """Runs of consecutive messages after the cursor, in order: the first sequence and the rows of each."""
        while wanted > 0 and self._room > 0 and (sequence := queue.rows.first_from(cursor + 1)) is not None:
            rows = queue.rows.window(sequence, min(wanted, queue.last_sequence - sequence + 1))
            there, hidden = self._visible(rows)
            stop = int(hidden.argmax()) if hidden.any() else len(rows)
            for first, end in _stretches(there[:stop]):
                fitting = self._fit(rows, first, end)
                if fitting > first:
                    wanted -= fitting - first
                    yield sequence + first, rows[first:fitting]
                if fitting < end:
                    return  # Later messages that would fit wait too, to keep the order.
            if stop < len(rows):
                return  # The messages after a hidden one wait until it is visible, to keep the order.
            cursor = sequence + len(rows) - 1

    def _visible(self, rows: _Table) -> tuple[_Table, _Table]:
        """Which of these messages can be delivered at all, and which of them are not visible yet."""
        state = rows["state"]
        there = (state != GONE) & (state != DAMAGED) & (rows["expires_at"] > self._now)
        return there, there & (state == DELAYED) & (rows["receives"] == 0) & (rows["visible_at"] > self._now)

    def _fit(self, rows: _Table, first: int, end: int) -> int:
        """The end of the messages that fit into the answer. One message always fits into an empty answer."""
        size = int(rows["body_bytes"][first:end].sum())
        if size > self._room:
            sizes = np.cumsum(rows["body_bytes"][first:end], dtype=np.int64)
            end = first + int(np.searchsorted(sizes, self._room, side="right"))
            self._room = 0
        else:
            self._room -= size
        return end

    def _newest(self, queue: Queue, cursor: int) -> list[tuple[int, _Table]]:
        """The last visible message, if it is after the cursor and fits into the answer."""
        for first, rows in queue.rows.newest_first():
            if first + len(rows) <= cursor + 1:
                break
            there, hidden = self._visible(rows)
            found = np.flatnonzero(there & ~hidden)
            if len(found):
                last = int(found[-1])
                fits = first + last > cursor and self._fit(rows, last, last + 1) > last
                return [(first + last, rows[last : last + 1])] if fits else []
        return []

    def _deliver(self, queue: Queue, draw: Draw, runs: list[tuple[int, _Table]]) -> None:
        due_at = min(self._now + draw.fail_ns, NEVER_NS) if draw.retries else NEVER_NS
        for first, rows in runs:
            count, created = len(rows), rows["created"].tolist()
            facts = (self._now, queue.number, list(range(first, first + count)), created, [1] * count)
            consumers = [self._receiver] * count
            if count < RUN_MESSAGES_MIN or self._has_results(queue, first, count):
                for index, time in enumerate(created):
                    self._deliver_one(queue, draw, first + index, time, 1)
            elif draw.retries:
                self._events.append(DeliveredRun(*facts, consumers, due_at, leased=self._by_cursor))
            else:
                self._events.append(HandedToReceiverRun(*facts, consumers))
        if runs:
            sequences = [first + index for first, rows in runs for index in range(len(rows))]
            rows = runs[0][1] if len(runs) == 1 else np.concatenate([rows for _, rows in runs])
            self._drawn.append(self._columns(queue, sequences, rows))

    def _has_results(self, queue: Queue, first: int, count: int) -> bool:
        answered = [sequence for number, sequence in self._answered if number == queue.number]
        return queue.groups.has_slots(self._receiver, first, count) or any(
            first <= sequence < first + count for sequence in answered
        )

    def _has_result(self, queue: Queue, sequence: int) -> bool:
        stored = queue.groups.result(sequence, self._receiver)
        return stored is not None or (queue.number, sequence) in self._answered

    def _deliver_one(self, queue: Queue, draw: Draw, sequence: int, created: Nanos, deliveries: int) -> None:
        facts = (self._now, queue.number, sequence, created, deliveries, self._receiver)
        if not draw.retries or self._has_result(queue, sequence):
            self._events.append(HandedToReceiver(*facts))
        else:
            due_at = min(self._now + draw.fail_ns, NEVER_NS) if deliveries <= draw.retries else NEVER_NS
            self._events.append(Delivered(*facts, due_at, leased=self._by_cursor))

    def _deliver_again(self, queue: Queue, draw: Draw) -> None:
        """Deliver messages again whose results are overdue. Called if there is nothing new."""
        if not draw.retries or draw.only_new:
            return
        answered = {sequence for number, sequence in self._answered if number == queue.number}
        sequences, tables = [], []
        for sequence, deliveries in queue.groups.due(self._receiver, draw.most, self._now, answered):
            rows = queue.rows.window(sequence, 1)
            if not self._visible(rows)[0][0]:
                continue
            if not self._fit(rows, 0, 1):
                break
            self._deliver_one(queue, draw, sequence, int(rows["created"][0]), deliveries + 1)
            sequences.append(sequence)
            tables.append(rows)
        if sequences:
            self._drawn.append(self._columns(queue, sequences, np.concatenate(tables)))

    def _columns(self, queue: Queue, sequences: list[int], rows: _Table) -> Drawn:
        texts = self._draft.state.names.texts
        senders = [texts[number] for number in rows["sender"].tolist()]
        names = ("position", "body_bytes", "key_bytes", "headers_bytes")
        positions, bodies, keys, headers = (rows[name].tolist() for name in names)
        return Drawn(queue.name, sequences, positions, bodies, keys, headers, senders, rows["created"].tolist())

    # ── Workers ─────────────────────────────────────────────────────────────────────────────────────────────

    def _fetch(self, queue: Queue, draw: Draw) -> None:
        """Fetch as a worker, from a queue whose messages leave."""
        if self._room <= 0:
            return
        consumer, confirm = self._command.receiver, draw.leases or draw.retries > 0
        facts = (queue.name, draw.most, 0, draw.fail_ns, consumer, confirm)
        command = Fetch(*facts, bytes_max=self._room)
        before = len(self._events)
        deliveries = fetch(self._draft, command)
        if not deliveries or isinstance(deliveries, Refused):
            return
        self._room -= sum(delivery.body_bytes for delivery in deliveries)
        self._drawn.append(
            Drawn(
                queue.name,
                _sequences_of(self._events[before:]),  # The ids of messages that were moved have other sequences.
                [delivery.position for delivery in deliveries],
                [delivery.body_bytes for delivery in deliveries],
                [delivery.key_bytes for delivery in deliveries],
                [delivery.headers_bytes for delivery in deliveries],
                [delivery.sender for delivery in deliveries],
                [delivery.created for delivery in deliveries],
            )
        )


def _sequences_of(events: Sequence[Event]) -> list[int]:
    sequences: list[int] = []
    for event in events:
        if isinstance(event, MessageRun):
            sequences += event.sequence
        elif isinstance(event, MessageEvent):
            sequences.append(event.sequence)
    return sequences


def _stretches(there: _Table) -> list[list[int]]:
    """Start and end of each sequence of true values."""
    if there.all():
        return [[0, len(there)]] if len(there) else []
    edges = np.flatnonzero(np.diff(there, prepend=False, append=False))
    stretches: list[list[int]] = edges.reshape(-1, 2).tolist()
    return stretches


def waiting(state: EngineState, command: Pull) -> Pull:
    """The command to decide again for a client that waits: without its results, which are stored, and from now on."""
    draws = [_from_now_on(state, draw) if draw.start == FROM_NEXT else draw for draw in command.draws]
    return replace(command, draws=draws, results=())


def _from_now_on(state: EngineState, draw: Draw) -> Draw:
    queue = state.queue(draw.queue)
    start, number = (queue.last_sequence + 1, queue.number) if queue else (0, 0)
    return replace(draw, start=start, queue_number=number, only_new=True)


def consume(draft: Draft, command: Consume) -> Sequence[Delivery] | Received | Refused:
    queue = draft.queue(command.queue)
    wanted = command.of(queue.settings if queue else None)
    if wanted is None:
        return Refused(Reason.NO_QUEUE, command.queue)
    return receive(draft, wanted) if isinstance(wanted, Receive) else fetch(draft, wanted)


def receive(draft: Draft, command: Receive) -> Received | Refused:
    """Deliver messages to a consumer; one of several if the queue asks for several confirmations."""
    queue = draft.queue(command.queue)
    if queue is None or queue.settings.confirmations <= 1:
        return _fetched(draft, command)
    settings = queue.settings
    lease_ns = settings.visibility_ns if command.lease_ns is None else command.lease_ns
    draw = Draw(command.queue, most=command.count, retries=UINT32_MAX, fail_ns=lease_ns)
    pull = Pull(command.consumer, (draw,), bytes_max=command.bytes_max)
    answer = _Pulling(draft, pull, by_cursor=True).decide()
    if isinstance(answer, Refused):
        return answer
    deliveries = _received(draft, queue, min(draft.now + lease_ns, NEVER_NS))
    return Received(deliveries) if deliveries else Received((), answer.due_at)


def _fetched(draft: Draft, command: Receive) -> Received | Refused:
    facts = (command.queue, command.count, 0, command.lease_ns, command.consumer)
    answer = fetch(draft, Fetch(*facts, bytes_max=command.bytes_max))
    return answer if isinstance(answer, Refused) else Received(answer)


def _received(draft: Draft, queue: Queue, visible_at: Nanos) -> list[Delivery]:
    """The messages that the events of the draft deliver."""
    sequences = _sequences_of(draft.events)
    if not sequences:
        return []
    receives: list[int] = []
    for event in draft.events:
        if isinstance(event, MessageRun):
            receives += event.receives
        elif isinstance(event, MessageEvent):
            receives.append(event.receives)
    rows = queue.rows.many(sequences)
    assert rows is not None
    created, origins = rows["created"].tolist(), draft.state.origins
    deliveries = deliveries_of(draft.state, queue.number, sequences, rows, receives, created, visible_at)
    for delivery in deliveries if origins else ():
        place = (queue.number, delivery.sequence)
        delivery.queue, delivery.sequence = origins.get(place, place)
    return deliveries


def result_of(draft: Draft, command: AwaitResult) -> StoredResult | Refused | tuple[()]:
    """The result of a message; an empty answer as long as there is none."""
    queue, names = draft.queue(command.queue), draft.state.names
    if queue is None:
        return Refused(Reason.NO_QUEUE, command.queue)
    if queue.settings.keep == "finished":
        return Refused(Reason.NO_RESULTS, command.queue)
    row = queue.rows.get(command.sequence)
    if row is None or row.expires_at <= draft.now:
        return Refused(Reason.NO_MESSAGE)
    receiver = names.known(command.receiver)
    if command.receiver and not receiver:
        return ()
    stored = queue.groups.result(command.sequence, receiver)
    return StoredResult(names.texts[stored.receiver], stored.position, stored.size) if stored else ()
