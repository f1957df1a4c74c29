"""Who waits for what. Each client waits with the keys of its command, first come first served.

A key is of one of three kinds: the workers of a queue, a receiver of a queue, or the result of a message. Events wake
keys; then `waking.py` decides the commands of their clients again.

What it guarantees: an event wakes every key that it may have something for, at a cost that does not grow with the
number of clients that wait. A waiter stands under all its keys or under none, so one that leaves is found nowhere.

Why so: keys are looked up, not searched. A key that was woken is only noted (`woken`); clients are asked when the
events of the turn are all applied, because one message may be ready and taken again within them.

What would break it: to decide for a client while events are being applied; a new kind of command that waits without
its row in `of_command`; a kind of event with the wrong `wakes`, `clears` or `whose` in `model/kinds.py`, from which
the sets below are made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.room import Holder
from penstock.broker.writer.asked import through
from penstock.broker.writer.port import Reply
from penstock.broker.writer.scheduler import Deadline, Scheduler
from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS, ROOM_LONG_MESSAGES
from penstock.model.answers import Answer, Done, Pulled, Received, Refused
from penstock.model.client import Cancelable, Client
from penstock.model.commands import AwaitResult, Command, Fetch, Pull, ReadClaimed, Receive, Waiting
from penstock.model.events import MessageEvent, MessageRun, QueuedRun
from penstock.model.kinds import MOVES, Kind, kinds_where
from penstock.model.values import Key, Nanos, Stage

if TYPE_CHECKING:
    from penstock.broker.writer.waking import Waking

# A message may be ready in its queue. A run of queued messages has several queues, and an observer of its own.
_MAKES_READY = kinds_where(lambda row: row.wakes and not row.moves) - {Kind.QUEUED}
# Messages that receivers have not answered are due again at a known time.
_DUE_AGAIN = kinds_where(lambda row: row.whose != "workers" and "visible_at" in row.stores)
_CLEARS = kinds_where(lambda row: row.clears)

ByKey = dict[Key, dict["Waiter", None]]
Woken = list[tuple["WaitersByKey", Key]]  # Keys that something may have come for.


class Waiter:
    """A client that waits, or may have to: for a message, or for room for the answer. `cancel` it if it has gone
    away, even before it waits."""

    size = 0  # One message is enough.

    __slots__ = (
        *("_client", "_waking", "canceled", "command", "decided_at", "long"),
        *("patient", "reply", "stage", "timer", "until"),
    )

    def __init__(
        self, waking: Waking, command: Waiting, reply: Reply, stage: Stage, client: Client | None = None
    ) -> None:
        """`client`: absent for a service of the broker, which needs no room."""
        self._waking = waking
        self._client = client
        self.command = command
        self.reply = reply
        self.stage = stage
        self.timer: Cancelable | None = None
        self.until: Nanos = 0  # When it stops waiting, once it has begun.
        self.canceled = False
        self.patient = getattr(command, "wait_ns", 0) > 0
        asked = _messages_asked(command) if client is not None else 0
        self.long = asked if asked > ROOM_LONG_MESSAGES else 0
        self.decided_at = 0.0
        if self.long:
            self.reply = through(reply, partial(self._give_long, reply))

    @property
    def is_long(self) -> bool:
        """The answer may have many messages: `long` of them."""
        return self.long > 0

    @property
    def is_turned_away(self) -> bool:
        """Its client is that of another process, which has no room for the answer now."""
        room = self._waking.room
        return bool(room.on_crowded) and getattr(self._client, "is_turned_away", False)

    @property
    def needs_room(self) -> bool:
        return self._client is not None

    @property
    def holder(self) -> Holder:
        """Who has the answer then: the connection of the client, if it has one here."""
        return getattr(self._client, "holder", None) or self

    def abort(self) -> None:
        """It holds nothing."""

    def has_room(self) -> None:
        self.decided_at = self._waking.room.now()
        self._waking.has_room(self)

    def _give_long(self, reply: Reply, answer: Any) -> None:
        reply(answer)
        if answer and self.decided_at:
            self._waking.room.pay(self.decided_at)

    @property
    def is_waiting(self) -> bool:
        """False if it is answered, about to be answered, or not decided yet."""
        return self.timer is not None

    def cancel(self) -> None:
        self.canceled = True
        self._waking.forget(self)

    def give_up(self) -> None:
        """Answer with what there is: now, or as soon as the command is decided."""
        self.patient = False
        self._waking.give_up(self)


def _messages_asked(command: Waiting | ReadClaimed) -> int:
    """How many messages the answer may have."""
    if type(command) is Pull:
        return sum([draw.most for draw in command.draws])
    if type(command) is ReadClaimed:
        return sum([last + 1 - first for _, first, last in command.claimed])
    return command.count if type(command) is Fetch or type(command) is Receive else 1


class Watch:
    """A client that wants to know, once, when a queue has a ready message. `cancel` it if it no longer does."""

    __slots__ = ("_workers", "queue", "wake")

    def __init__(self, workers: Workers, queue: str, wake: Callable[[], None]) -> None:
        self._workers = workers
        self.queue = queue
        self.wake: Callable[[], None] | None = wake

    def cancel(self) -> None:
        self.wake = None
        self._workers.remove_watch(self)

    def woken(self, answer: Answer) -> None:
        """What woke it is durable; or never will be, and it watches on."""
        if self.wake and isinstance(answer, Refused):
            self._workers.add_watch(self)
        elif self.wake:
            self.wake()


class WaitersByKey:
    """The clients that wait with keys of one kind."""

    in_turn = True  # All waiters with the same key want the same: if the first gets nothing, none does.

    def __init__(self, by_key: ByKey, woken: Woken) -> None:
        self.by_key = by_key
        self._woken = woken

    def add(self, waiter: Waiter, answer: Answer) -> None:
        """Let a client wait whose command had this empty answer."""
        for key in waiter.command.waits_for:
            self.by_key.setdefault(key, {})[waiter] = None
        self.unserved(waiter, answer)

    def remove(self, waiter: Waiter) -> None:
        for key in waiter.command.waits_for:
            _discard(self.by_key, key, waiter)

    def wake(self, key: Key) -> None:
        if key in self.by_key:
            self._woken.append((self, key))

    def unserved(self, waiter: Waiter, answer: Answer) -> None:
        """A client still waits after this empty answer."""


class Workers(WaitersByKey):
    """They wait for any message of a queue: the key is its name. So do those who only watch it."""

    def __init__(self, by_key: ByKey, woken: Woken) -> None:
        super().__init__(by_key, woken)
        self.watches: dict[str, dict[Watch, None]] = {}

    def wake(self, key: Key) -> None:
        if key in self.by_key or key in self.watches:
            self._woken.append((self, key))

    def add_watch(self, watch: Watch) -> None:
        self.watches.setdefault(watch.queue, {})[watch] = None

    def remove_watch(self, watch: Watch) -> None:
        if watch in self.watches.get(watch.queue, ()):
            _discard(self.watches, watch.queue, watch)

    def dismiss_watches(self) -> None:
        watches, self.watches = self.watches, {}
        for watch in [watch for of_queue in watches.values() for watch in of_queue]:
            watch.woken(Done())


class Receivers(WaitersByKey):
    """They wait for messages that a receiver has not had: the key is its queue and name, and any start it gives."""

    def __init__(self, by_key: ByKey, woken: Woken, new_deadline: Callable[[Callable[[], None]], Deadline]) -> None:
        super().__init__(by_key, woken)
        self.on_due: Callable[[Key], None] = lambda _: None
        self.by_queue: dict[str, dict[Key, None]] = {}
        self._starts: dict[Key, dict[Key, None]] = {}  # By queue and receiver: the keys with a start of their own.
        self._due: dict[Key, Deadline] = {}  # When a message without a result is delivered again.
        self._new_deadline = new_deadline

    def add(self, waiter: Waiter, answer: Answer) -> None:
        super().add(waiter, answer)
        for key in waiter.command.waits_for:
            self.by_queue.setdefault(key[0], {})[key] = None
            if len(key) == 4:
                self._starts.setdefault(key[:2], {})[key] = None

    def remove(self, waiter: Waiter) -> None:
        super().remove(waiter)
        for key in waiter.command.waits_for:
            if key not in self.by_key:
                self._remove_key(key)

    def _remove_key(self, key: Key) -> None:
        if due := self._due.pop(key, None):
            due.set(NEVER_NS)
        _discard(self.by_queue, key[0], key)
        if len(key) == 4:
            _discard(self._starts, key[:2], key)

    def wake_queue(self, queue: str) -> None:
        if queue in self.by_queue:
            self._woken += [(self, key) for key in self.by_queue[queue]]

    def wake_receiver(self, queue: str, receiver: str) -> None:
        self._woken += [(self, key) for key in self._waiting_as(queue, receiver)]

    def _waiting_as(self, queue: str, receiver: str) -> list[Key]:
        """The keys of all who wait as this receiver, wherever they start."""
        key = (queue, receiver)
        return [each for each in (key, *self._starts.get(key, ())) if each in self.by_key]

    # A message without a result in time is delivered again. Only receivers that wait need a timer for it.

    def unserved(self, waiter: Waiter, answer: Answer) -> None:
        if (type(answer) is Pulled or type(answer) is Received) and answer.due_at != NEVER_NS:
            for key in waiter.command.waits_for:
                self._set_due(key, answer.due_at)

    def due_again(self, queue: str, receiver: str, due_at: Nanos) -> None:
        if queue in self.by_queue and due_at != NEVER_NS:
            for key in self._waiting_as(queue, receiver):
                self._set_due(key, due_at)

    def _set_due(self, key: Key, due_at: Nanos) -> None:
        due = self._due.get(key)
        if due is None:
            due = self._due[key] = self._new_deadline(lambda: self._is_due(key))
        if due_at < due.at:
            due.set(due_at)

    def _is_due(self, key: Key) -> None:
        del self._due[key]
        self.on_due(key)

    def rearm(self) -> None:
        """Set the timers again: the clock does not run as they do."""
        for due in self._due.values():
            due.set(due.at)


class Results(WaitersByKey):
    """They wait for a result of a message, from one receiver or from any: the key is its queue and sequence."""

    in_turn = False


class Waiters:
    """All clients that wait, and the keys that were woken."""

    def __init__(self, clock: Callable[[], Nanos], scheduler: Scheduler) -> None:
        self.by_key: ByKey = {}
        self.woken: Woken = []
        self.count = 0
        self.workers = Workers(self.by_key, self.woken)
        self.receivers = Receivers(self.by_key, self.woken, lambda callback: Deadline(clock, scheduler, callback))
        self.results = Results(self.by_key, self.woken)
        self.of_command: dict[type[Command], WaitersByKey] = {
            Fetch: self.workers,
            Pull: self.receivers,
            Receive: self.receivers,
            AwaitResult: self.results,
        }
        self.observers: dict[Kind, Callable[[Any, Engine], None]] = {
            **dict.fromkeys(_MAKES_READY, self._ready),
            **dict.fromkeys(MOVES, self._moved),
            Kind.QUEUED: self._queued,
            Kind.RESULT_STORED: self._result_stored,
            **dict.fromkeys(_DUE_AGAIN, self._due_again),
            **dict.fromkeys(_CLEARS, self._cleared),
        }
        """By kind: called before an event is applied, to wake those who wait for it."""

    def all(self) -> list[Waiter]:
        return list(dict.fromkeys(waiter for waiters in self.by_key.values() for waiter in waiters))

    def waiting(self, queue: str) -> int:
        """How many clients wait for a message of this queue."""
        keys: list[Key] = [queue, *self.receivers.by_queue.get(queue, ())]
        return sum([len(self.by_key.get(key, ())) for key in keys])

    def wake_queue(self, name: str) -> None:
        """A message of this queue may be ready, or the queue is about to go."""
        self.workers.wake(name)
        if name in self.receivers.by_queue:
            self.receivers.wake_queue(name)

    def _ready(self, event: Any, engine: Engine) -> None:
        self.wake_queue(engine.queues[event.queue].name)

    def _moved(self, event: Any, engine: Engine) -> None:
        self.wake_queue(engine.queues[event.to_queue].name)

    def _queued(self, event: Any, engine: Engine) -> None:
        for number in dict.fromkeys(event.queue if type(event) is QueuedRun else (event.queue,)):
            self.wake_queue(engine.queues[number].name)

    def _result_stored(self, event: Any, engine: Engine) -> None:
        self.results.wake((engine.queues[event.queue].name, event.sequence))

    def _due_again(self, event: Any, engine: Engine) -> None:
        receiver = event.consumer[0] if isinstance(event, MessageRun) else event.consumer
        self.receivers.due_again(engine.queues[event.queue].name, engine.names.texts[receiver], event.visible_at)

    def _cleared(self, event: Any, engine: Engine) -> None:
        """Wake receivers that stopped before a message which is now gone."""
        if isinstance(event, MessageEvent) and not event.receives:
            self.receivers.wake_queue(engine.queues[event.queue].name)


def _discard(members_by: dict[Any, dict[Any, None]], name: Any, member: Any) -> None:
    """Remove a member, and its name with the last one."""
    members = members_by[name]
    del members[member]
    if not members:
        del members_by[name]
