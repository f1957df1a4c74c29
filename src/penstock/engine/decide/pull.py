"""One pull of a receiver, decided: its results first, then what each of its queues has for it.

A queue that keeps everything delivers by cursor: strictly in the order of sequences, stopping before a message that
is not visible yet, passing over what has gone. What is due again comes when there is nothing new, by sequence too.
Only a delivery moves a cursor: a pull that finds nothing changes nothing, wherever it was to start. A queue whose
messages leave has only workers: there a pull is a fetch, and a result finishes the message. Unless it asks for
several confirmations: then the consumers that give their names are its receivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from penstock.engine.decide.fetch import deliveries_of, fetch
from penstock.engine.decide.finish import finish
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import FETCH_BYTES_MAX, NEVER_NS, RECEIVERS_MAX, RUN_MESSAGES_MIN, UINT32_MAX
from penstock.model.answers import Decision, Delivery, Drawn, Pulled, Received, Refused, StoredResult, WrongResult
from penstock.model.commands import FROM_NEWEST, FROM_NEXT, AwaitResult, Draw, Fetch, Finish, Pull, Receive
from penstock.model.events import (
    Completed,
    DeadLettered,
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
from penstock.model.values import Nanos

_Table = NDArray[Any]


def pull(engine: EngineState, command: Pull, now: Nanos) -> Decision:
    return _Pulling(engine, command, now).decide()


class _Pulling:
    def __init__(self, engine: EngineState, command: Pull, now: Nanos, *, by_cursor: bool = False) -> None:
        self._engine = engine
        self._command = command
        self._now = now
        self._by_cursor = by_cursor  # Also where messages leave: the receiver is one of several that confirm them.
        self._events: list[Event] = []
        self._receiver = engine.names.known(command.receiver)
        self._room = FETCH_BYTES_MAX
        self._drawn: list[Drawn] = []
        self._answered: set[tuple[int, int]] = set()  # Queue and sequence, by this very pull.
        self._moves_dead_letters = False

    def decide(self) -> Decision:
        if refused := self._refused():
            return Decision((), refused)
        if not self._receiver:
            self._receiver = self._engine.names.number(self._command.receiver, self._now, self._events)
        wrong = self._store_results()
        if not wrong:
            for draw in self._command.draws:
                queue = self._engine.queue(draw.queue)
                if queue is not None:
                    self._draw(queue, draw)
        if len(self._events) == 1 and isinstance(self._events[0], NameDefined):
            self._events.clear()  # A receiver that gets nothing leaves no trace.
        return Decision(self._events, self._answer(wrong))

    def _refused(self) -> Refused | None:
        for draw in self._command.draws:
            queue = self._engine.queue(draw.queue)
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
        due_at, last = NEVER_NS, {}
        for draw in self._command.draws:
            queue = self._engine.queue(draw.queue)
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
        queue = self._engine.queue(name)
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
            return None  # The first one counts. That there is another one is the normal end of a retry.
        slot = queue.groups.slot(self._receiver, sequence)
        facts = (self._now, queue.number, sequence, row.created, slot.size if slot else 0, self._receiver)
        self._events.append(ResultStored(*facts, result))
        if queue.completes(sequence) and row.state != DAMAGED:
            self._events.append(Completed(*facts))
        self._answered.add((queue.number, sequence))
        return None

    def _finish(self, queue: Queue, sequence: int, result: bytes) -> Refused | None:
        command = Finish(queue.number, sequence, consumer=self._command.receiver, result=result)
        decision = finish(self._engine, command, self._now)
        if isinstance(decision.answer, Refused):
            return decision.answer
        self._events += decision.events
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
        """Runs of following messages behind the cursor, in order: each the first sequence, and the rows."""
        behind = cursor
        while wanted > 0 and self._room > 0 and (sequence := queue.rows.first_from(behind + 1)) is not None:
            rows = queue.rows.window(sequence, min(wanted, queue.last_sequence - sequence + 1))
            there, hidden = self._visible(rows)
            stop = int(hidden.argmax()) if hidden.any() else len(rows)
            for first, end in _stretches(there[:stop]):
                fitting = self._fit(rows, first, end)
                if fitting > first:
                    wanted -= fitting - first
                    yield sequence + first, rows[first:fitting]
                if fitting < end:
                    return  # Also a small one that would fit: it comes after those that do not.
            if stop < len(rows):
                return  # What is behind it waits, until it is visible: order is order.
            behind = sequence + len(rows) - 1

    def _visible(self, rows: _Table) -> tuple[_Table, _Table]:
        """Which of these are there, and which of those are not visible yet."""
        state = rows["state"]
        there = (state != GONE) & (state != DAMAGED) & (rows["expires_at"] > self._now)
        return there, there & (state == DELAYED) & (rows["receives"] == 0) & (rows["visible_at"] > self._now)

    def _fit(self, rows: _Table, first: int, end: int) -> int:
        """As many as there is room for in one answer. One message always fits into an empty one."""
        size = int(rows["body_bytes"][first:end].sum())
        if size > self._room:
            sizes = np.cumsum(rows["body_bytes"][first:end], dtype=np.int64)
            end = first + int(np.searchsorted(sizes, self._room, side="right"))
            self._room = 0
        else:
            self._room -= size
        return end

    def _newest(self, queue: Queue, cursor: int) -> list[tuple[int, _Table]]:
        """The last message that is there, visible, and behind the cursor."""
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
        """What was delivered long ago and has no result, now that there is nothing new."""
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
        texts = self._engine.names.texts
        senders = [texts[number] for number in rows["sender"].tolist()]
        names = ("position", "body_bytes", "key_bytes", "headers_bytes")
        positions, bodies, keys, headers = (rows[name].tolist() for name in names)
        return Drawn(queue.name, sequences, positions, bodies, keys, headers, senders, rows["created"].tolist())

    # ── Workers ─────────────────────────────────────────────────────────────────────────────────────────────

    def _fetch(self, queue: Queue, draw: Draw) -> None:
        """Of a queue whose messages leave, as a worker does."""
        if self._room <= 0:
            return
        consumer, confirm = self._command.receiver, draw.leases or draw.retries > 0
        command = Fetch(queue.name, draw.most, lease_ns=draw.fail_ns, consumer=consumer, confirm=confirm)
        decision = fetch(self._engine, command, self._now)
        moves = any(isinstance(event, DeadLettered) for event in decision.events)
        if not decision.answer or (moves and self._moves_dead_letters):
            return  # Two moves into one queue would take the same place: the second has to wait for the next pull.
        self._moves_dead_letters |= moves
        self._events += [
            event for event in decision.events if not (isinstance(event, NameDefined) and self._defines(event))
        ]
        deliveries: list[Delivery] = list(decision.answer)  # type: ignore[arg-type]
        self._room -= sum(delivery.body_bytes for delivery in deliveries)
        self._drawn.append(
            Drawn(
                queue.name,
                _sequences_of(decision.events),  # In this queue, wherever the messages came from.
                [delivery.position for delivery in deliveries],
                [delivery.body_bytes for delivery in deliveries],
                [delivery.key_bytes for delivery in deliveries],
                [delivery.headers_bytes for delivery in deliveries],
                [delivery.sender for delivery in deliveries],
                [delivery.created for delivery in deliveries],
            )
        )

    def _defines(self, event: NameDefined) -> bool:
        return any(isinstance(each, NameDefined) and each.text == event.text for each in self._events)


def _sequences_of(events: Sequence[Event]) -> list[int]:
    sequences: list[int] = []
    for event in events:
        if isinstance(event, MessageRun):
            sequences += event.sequence
        elif isinstance(event, MessageEvent):
            sequences.append(event.sequence)
    return sequences


def _stretches(there: _Table) -> list[list[int]]:
    """First and end of each stretch of what is there."""
    if there.all():
        return [[0, len(there)]] if len(there) else []
    edges = np.flatnonzero(np.diff(there, prepend=False, append=False))
    stretches: list[list[int]] = edges.reshape(-1, 2).tolist()
    return stretches


def waiting(engine: EngineState, command: Pull) -> Pull:
    """The pull of a client that waits after a first look: its results are stored, and only what comes from now on is
    new."""
    draws = [_from_now_on(engine, draw) if draw.start == FROM_NEXT else draw for draw in command.draws]
    return Pull(command.receiver, draws, (), command.wait_ns)


def _from_now_on(engine: EngineState, draw: Draw) -> Draw:
    queue = engine.queue(draw.queue)
    start, number = (queue.last_sequence + 1, queue.number) if queue else (0, 0)
    return replace(draw, start=start, queue_number=number, only_new=True)


def receive(engine: EngineState, command: Receive, now: Nanos) -> Decision:
    """What a consumer has not had of a queue that asks for several confirmations."""
    queue = engine.queue(command.queue)
    if queue is None or queue.settings.confirmations <= 1:
        return _fetched(engine, command, now)
    settings = queue.settings
    lease_ns = settings.visibility_ns if command.lease_ns is None else command.lease_ns
    draw = Draw(command.queue, most=command.count, retries=UINT32_MAX, fail_ns=lease_ns)
    decision = _Pulling(engine, Pull(command.consumer, (draw,)), now, by_cursor=True).decide()
    if not isinstance(decision.answer, Pulled):
        return decision
    return Decision(decision.events, _received(engine, queue, decision, min(now + lease_ns, NEVER_NS)))


def _fetched(engine: EngineState, command: Receive, now: Nanos) -> Decision:
    alone = Fetch(command.queue, command.count, 0, command.lease_ns, command.consumer)
    decision = fetch(engine, alone, now)
    if isinstance(decision.answer, Refused):
        return decision
    deliveries: Sequence[Delivery] = decision.answer  # type: ignore[assignment]
    return Decision(decision.events, Received(deliveries))


def _received(engine: EngineState, queue: Queue, decision: Decision, visible_at: Nanos) -> Received:
    assert isinstance(decision.answer, Pulled)
    sequences = _sequences_of(decision.events)
    if not sequences:
        return Received((), decision.answer.due_at)
    receives: list[int] = []
    for event in decision.events:
        if isinstance(event, MessageRun):
            receives += event.receives
        elif isinstance(event, MessageEvent):
            receives.append(event.receives)
    rows = queue.rows.many(sequences)
    assert rows is not None
    created = rows["created"].tolist()
    deliveries = deliveries_of(engine, queue.number, sequences, rows, receives, created, visible_at)
    for delivery in deliveries if engine.origins else ():
        place = (queue.number, delivery.sequence)
        delivery.queue, delivery.sequence = engine.origins.get(place, place)
    return Received(deliveries)


def result_of(engine: EngineState, command: AwaitResult, now: Nanos) -> Decision:
    """The result of a message; an empty answer while there is none."""
    queue = engine.queue(command.queue)
    if queue is None:
        return Decision((), Refused(Reason.NO_QUEUE, command.queue))
    if queue.settings.keep == "finished":
        return Decision((), Refused(Reason.NO_RESULTS, command.queue))
    row: Row | None = queue.rows.get(command.sequence)
    if row is None or row.expires_at <= now:
        return Decision((), Refused(Reason.NO_MESSAGE))
    receiver = engine.names.known(command.receiver)
    if command.receiver and not receiver:
        return Decision((), ())
    stored = queue.groups.result(command.sequence, receiver)
    if stored is None:
        return Decision((), ())
    return Decision((), StoredResult(engine.names.texts[stored.receiver], stored.position, stored.size))
