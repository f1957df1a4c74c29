"""Push: the messages of a channel, sent to an HTTP endpoint as they come.

Each channel with a `push` has a pusher, which is one more consumer of its queue: it fetches as many messages as it
has room for, sends each in a request of its own, and confirms it or gives it back by what is answered. It fetches
only while it has a connection, and opens the first one when it hears of a message: so an endpoint that cannot be
reached uses up nobody's retries. Nothing polls: a pusher without work is a fetch, or a watch, that waits.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal, Protocol, cast

from penstock import __version__
from penstock.dialects.native.push import Reply, RequestWriter, parse_url, retry_after_ns
from penstock.dialects.wire.conversation import Cancelable
from penstock.dialects.wire.times import in_seconds
from penstock.errors import ProtocolError, Reason
from penstock.ids import MessageIds
from penstock.limits import (
    PUSH_ERROR_CHARACTERS_MAX,
    PUSH_LEASE_MARGIN_SECONDS,
    PUSH_PAUSE_SECONDS,
    PUSH_WAIT_SECONDS,
    SECOND_NS,
)
from penstock.model.answers import Answer, Delivery, Refused
from penstock.model.commands import Fetch, Outcome, Settle
from penstock.model.settings import Push
from penstock.model.values import Nanos
from penstock.server.services.circuit import Circuit, State, backoff_ns
from penstock.server.services.outgoing import Connection, Connections, known_refusal
from penstock.server.writer.port import Pending, ServicePort

logger = logging.getLogger(__name__)

CONSUMER = "push"


class PushLimits(Protocol):
    @property
    def private_addresses(self) -> Literal["refuse", "allow"]: ...
    @property
    def connections_max(self) -> int: ...
    @property
    def retry_seconds(self) -> float: ...
    @property
    def retry_seconds_max(self) -> float: ...
    @property
    def circuit_failures(self) -> int: ...
    @property
    def circuit_seconds_max(self) -> float: ...


class Pushers:
    """All pushers of a broker. The connections that each may have, and so the messages in memory, are reserved for
    it: a channel for which there is no room is not pushed."""

    def __init__(self, loop: ServicePort, ids: MessageIds, limits: PushLimits, chance: Callable[[], float]) -> None:
        self.loop = loop
        self.ids = ids
        self.limits = limits
        self.chance = chance
        self.outcomes: dict[Outcome, int] = {"success": 0, "invalid": 0, "not_interested": 0, "retry": 0}
        self._by_queue: dict[int, Pusher] = {}
        self._refused: dict[int, str] = {}  # By queue: why it is not pushed, although it says so.
        self._leaving: set[Pusher] = set()  # No longer pushed, with messages that are still on their way.
        self._stopping = False
        loop.on_queue.append(self._look_at)

    def start(self) -> None:
        """Begin with the channels there are; again when the log was opened anew, since some may be gone."""
        for number in dict.fromkeys([*self._by_queue, *self._refused, *self.loop.engine.queues]):
            self._follow(number)

    def stop(self) -> None:
        """Fetch nothing more; what is on its way may arrive."""
        self._stopping = True
        for pusher in self._all():
            pusher.stop()

    def close(self) -> None:
        """Give back what is still on its way."""
        for pusher in self._all():
            pusher.close()

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    # ── What others want to know ────────────────────────────────────────────────────────────────────────────

    def check(self, channel: str, push: Push) -> None:
        """Raises `ProtocolError` for what would not be pushed, as far as it is known now."""
        if refusal := self._refusal(self.loop.engine.numbers.get(channel, 0), push):
            raise ProtocolError(refusal)

    def state(self, channel: str) -> dict[str, Any]:
        """How it goes with a channel; nothing if it is not to be pushed."""
        number = self.loop.engine.numbers.get(channel, 0)
        if number in self._refused:
            return {"circuit": "open", "in_flight": 0, "last_error": self._refused[number]}
        return self._by_queue[number].describe() if number in self._by_queue else {}

    @property
    def in_flight(self) -> int:
        return sum(pusher.in_flight for pusher in self._all())

    @property
    def connections(self) -> int:
        return sum(pusher.connections for pusher in self._all())

    def channels_by_circuit(self) -> dict[State, int]:
        counts: dict[State, int] = {"closed": 0, "open": len(self._refused), "half-open": 0}
        for pusher in self._by_queue.values():
            counts[pusher.circuit_state] += 1
        return counts

    # ── Channels that come, change and go ───────────────────────────────────────────────────────────────────

    def _look_at(self, number: int) -> None:
        """A queue was made, changed or removed: what is it now?"""
        room = self._room(0)
        self._follow(number)
        if self._room(0) > room:
            self._follow_refused()

    def _follow_refused(self) -> None:
        for number in list(self._refused):
            self._follow(number)

    def _follow(self, number: int) -> None:
        queue = self.loop.engine.queues.get(number)
        push = queue.settings.push if queue and not self._stopping else None
        refusal = self._refusal(number, push) if push else None
        self._note_refusal(number, refusal)
        pusher = self._by_queue.get(number)
        if queue and push and not refusal:
            if pusher:
                pusher.set(push, queue.settings.confirm)
            else:
                self._by_queue[number] = Pusher(self, queue.name, push, queue.settings.confirm)
        elif pusher:
            self._let_go(self._by_queue.pop(number))

    def _refusal(self, number: int, push: Push) -> str | None:
        """Why nothing is pushed so. A name, which may stand for any address, is looked at when it is connected to."""
        try:
            endpoint = parse_url(push.url)
        except ProtocolError as error:
            return str(error)
        if self.limits.private_addresses == "refuse" and (reason := known_refusal(endpoint)):
            return f"{endpoint.host} {reason}"
        room = self._room(number)
        if push.max_in_flight > room:
            return f"push.connections_max = {self.limits.connections_max} leaves room for a max_in_flight of {room}"
        return None

    def _note_refusal(self, number: int, refusal: str | None) -> None:
        if refusal is None:
            self._refused.pop(number, None)
        elif self._refused.get(number) != refusal:
            self._refused[number] = refusal
            channel = self.loop.engine.queues[number].name
            logger.warning("push_refused", extra={"channel": channel, "reason": refusal})

    def _room(self, number: int) -> int:
        """How many connections this queue may have: as many as no other has."""
        others = [pusher for other, pusher in self._by_queue.items() if other != number]
        return max(0, self.limits.connections_max - sum(each.max_in_flight for each in [*others, *self._leaving]))

    def _let_go(self, pusher: Pusher) -> None:
        self._leaving.add(pusher)
        pusher.stop()
        pusher.when_idle(lambda: self._gone(pusher))

    def _gone(self, pusher: Pusher) -> None:
        self._leaving.discard(pusher)
        self._follow_refused()

    def _all(self) -> list[Pusher]:
        return [*self._by_queue.values(), *self._leaving]


class Pusher:
    """One channel on its way to its endpoint."""

    _connections: Connections
    _writer: RequestWriter
    _circuit: Circuit

    def __init__(self, pushers: Pushers, channel: str, push: Push, confirm: bool) -> None:
        self._pushers = pushers
        self._channel = channel
        self._push = push
        self._confirm = confirm
        self._loop = pushers.loop
        self._asyncio = asyncio.get_running_loop()
        self._last_error: str | None = None
        self._attempts: set[_Attempt] = set()
        self._asked: _Asked | None = None
        self._pause: asyncio.TimerHandle | None = None  # Until it is over, nothing is asked for.
        self._go_on_is_due = False
        self._stopped = False
        self._when_idle: Callable[[], None] = lambda: None
        self._aim()
        self._go_on_soon()

    def set(self, push: Push, confirm: bool) -> None:
        """Push so from now on. What is on its way stays on its way, and counts."""
        is_elsewhere = push.url != self._push.url
        self._push, self._confirm = push, confirm
        self._ask_no_more()
        if is_elsewhere:
            self._connections.close()
            self._aim()
        self._go_on_soon()

    def _aim(self) -> None:
        """Begin with an endpoint of which nothing is known yet."""
        endpoint, limits = parse_url(self._push.url), self._pushers.limits
        allow_private = limits.private_addresses == "allow"
        self._connections = Connections(endpoint, lambda: self._pushers.tls, allow_private, self._lost_the_last)
        self._writer = RequestWriter(self._pushers.ids, self._channel, endpoint, __version__)
        first_ns, longest_ns = _range(limits.retry_seconds, limits.circuit_seconds_max)
        self._circuit = Circuit(limits.circuit_failures, first_ns, longest_ns)
        self._last_error = None
        self._end_pause()

    def stop(self) -> None:
        self._stopped = True
        self._ask_no_more()
        self._end_pause()
        self._connections.close()

    def close(self) -> None:
        for attempt in list(self._attempts):
            self._end(attempt)
            self._settle(attempt.delivery, "retry")

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Called when it is stopped and nothing is on its way any more."""
        self._when_idle = callback
        if not self._attempts:
            callback()

    # ── Views ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_flight(self) -> int:
        return len(self._attempts)

    @property
    def max_in_flight(self) -> int:
        return self._push.max_in_flight

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def circuit_state(self) -> State:
        return self._circuit.state

    def describe(self) -> dict[str, Any]:
        return {"circuit": self._circuit.state, "in_flight": self.in_flight, "last_error": self._last_error}

    # ── Asking for messages ─────────────────────────────────────────────────────────────────────────────────

    def _go_on_soon(self) -> None:
        """When this turn ends, so that messages which are done with together make room together."""
        if not self._go_on_is_due:
            self._go_on_is_due = True
            self._asyncio.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Ask for as much as there is room for; without a connection, for a reason to open one."""
        self._go_on_is_due = False
        if self._stopped or self._pause or self._asked:
            return
        most = 1 if self._circuit.state == "half-open" else self._push.max_in_flight
        room = most - len(self._attempts)
        if room > 0:
            asked = self._asked = _Asked()
            if self._connections:
                self._fetch(room, asked)
            else:
                asked.handle = self._loop.watch(self._channel, partial(self._wake, asked))

    def _fetch(self, room: int, asked: _Asked) -> None:
        lease_ns = self._push.timeout_ns + PUSH_LEASE_MARGIN_SECONDS * SECOND_NS
        command = Fetch(self._channel, room, PUSH_WAIT_SECONDS * SECOND_NS, lease_ns, CONSUMER, self._confirm)
        asked.handle = asked.fetch = self._loop.submit(command, partial(self._fetched, asked, self._confirm))

    def _ask_no_more(self) -> None:
        asked = self._asked
        if asked and asked.fetch:
            self._loop.decide_collected()
            if not asked.fetch.is_waiting:
                return  # Messages are about to come, and count when they do.
        if asked and asked.handle:
            asked.handle.cancel()
        self._asked = None

    def _lost_the_last(self) -> None:
        """No connection is left: a fetch that waits should be a watch instead."""
        if self._asked and self._asked.fetch:
            self._ask_no_more()
            self._go_on_soon()

    def _fetched(self, asked: _Asked, confirm: bool, answer: Answer) -> None:
        if self._asked is asked:
            self._asked = None
        if isinstance(answer, Refused):
            self._refused(answer)
            return
        self._go_on_soon()
        for delivery in cast("Sequence[Delivery]", answer):
            if self._stopped or len(self._attempts) >= self._push.max_in_flight:
                self._settle(delivery, "retry")
            else:
                self._begin(_Attempt(self, delivery, confirm, self._connections, self._writer.write(delivery)))

    def _refused(self, answer: Refused) -> None:
        if answer.reason is not Reason.NO_QUEUE and not self._pause:  # A queue that is gone takes its pusher along.
            self._last_error = _cut(answer.sentence)
            self._rest(PUSH_PAUSE_SECONDS * SECOND_NS)

    def _wake(self, asked: _Asked) -> None:
        """There is a message. Find out whether there is anyone to send it to, before it is taken."""
        if self._connections:
            self._asked = None
            self._go_on()
        else:
            asked.handle = self._asyncio.create_task(self._open_first(asked))

    async def _open_first(self, asked: _Asked) -> None:
        connections = self._connections
        try:
            async with asyncio.timeout(self._push.timeout_ns / SECOND_NS):
                connection = await connections.connect()
        except (OSError, ProtocolError) as error:
            if self._asked is asked:
                self._asked = None
                self._note_failure(_told(error), self._circuit.trip(self._pushers.chance()))
        else:
            if self._asked is asked:
                self._asked = None
            connections.keep(connection)
            self._go_on_soon()

    def _rest(self, nanos: Nanos) -> None:
        """Ask for nothing for a while."""
        self._end_pause()
        self._ask_no_more()
        if not self._stopped:
            self._pause = self._asyncio.call_later(nanos / SECOND_NS, self._rested)

    def _rested(self) -> None:
        self._pause = None
        if self._circuit.state == "open":
            self._circuit.half_open()
        self._go_on_soon()

    def _end_pause(self) -> None:
        if self._pause:
            self._pause.cancel()
            self._pause = None

    # ── One message ─────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, attempt: _Attempt) -> None:
        self._attempts.add(attempt)
        attempt.timer = self._asyncio.call_later(self._push.timeout_ns / SECOND_NS, self._time_is_over, attempt)
        if connection := attempt.connections.take():
            self._send(attempt, connection)
        else:
            self._send_anew(attempt)

    def _send_anew(self, attempt: _Attempt) -> None:
        attempt.opening = self._asyncio.create_task(self._open_for(attempt))

    async def _open_for(self, attempt: _Attempt) -> None:
        try:
            connection = await attempt.connections.connect()
        except (OSError, ProtocolError) as error:
            attempt.opening = None
            self._fail(attempt, _told(error))
        else:
            attempt.opening = None
            self._send(attempt, connection)

    def _send(self, attempt: _Attempt, connection: Connection) -> None:
        attempt.connection = connection
        connection.send(attempt.head, attempt.delivery.body, attempt)

    def answered(self, attempt: _Attempt, reply: Reply) -> None:
        if reply.outcome == "retry":
            self._fail(attempt, f"the endpoint answered {reply.status}", reply.retry_after)
            return
        self._end(attempt)
        self._pushers.outcomes[reply.outcome] += 1
        if attempt.connections is self._connections and self._circuit.succeed():
            self._end_pause()
            logger.info("push_resumed", extra={"channel": self._channel})
        if attempt.confirm:
            self._settle(attempt.delivery, reply.outcome)

    def broken(self, attempt: _Attempt, reason: str, is_stale: bool) -> None:
        if is_stale:
            self._send_anew(attempt)  # Not the message's fault, and no failure: an endpoint may close what rests.
        else:
            self._fail(attempt, reason)

    def _time_is_over(self, attempt: _Attempt) -> None:
        self._fail(attempt, f"no answer within {in_seconds(self._push.timeout_ns)}")

    def _fail(self, attempt: _Attempt, reason: str, retry_after: bytes = b"") -> None:
        """Try again later: the message, and if it goes on like this, the endpoint."""
        self._end(attempt)
        self._pushers.outcomes["retry"] += 1
        limits, chance = self._pushers.limits, self._pushers.chance
        asked_ns = retry_after_ns(retry_after, self._loop.now())
        first_ns, longest_ns = _range(limits.retry_seconds, limits.retry_seconds_max)
        delay_ns = backoff_ns(attempt.delivery.receives, first_ns, longest_ns, chance())
        if attempt.confirm:
            self._settle(attempt.delivery, "retry", max(delay_ns, asked_ns))
        if attempt.connections is self._connections:
            open_ns = self._circuit.fail(chance())
            self._note_failure(reason, None if open_ns is None else max(open_ns, asked_ns))

    def _note_failure(self, reason: str, open_ns: Nanos | None) -> None:
        self._last_error = reason
        if open_ns is not None:
            told = {"channel": self._channel, "reason": reason, "seconds": open_ns / SECOND_NS}
            logger.warning("push_suspended", extra=told)
            self._rest(open_ns)

    def _end(self, attempt: _Attempt) -> None:
        self._attempts.remove(attempt)
        attempt.end()
        self._go_on_soon()
        if self._stopped and not self._attempts:
            self._when_idle()

    def _settle(self, delivery: Delivery, outcome: Outcome, delay_ns: Nanos = 0) -> None:
        facts = (delivery.queue, delivery.sequence, outcome, None, delivery.receives, delay_ns)
        self._loop.submit(Settle(*facts), _nothing)


class _Asked:
    """What a pusher waits for: messages, a reason to connect, or the first connection."""

    __slots__ = ("fetch", "handle")

    def __init__(self) -> None:
        self.fetch: Pending | None = None
        self.handle: Cancelable | asyncio.Task[None] | None = None


class _Attempt:
    """One message on its way."""

    __slots__ = ("_pusher", "confirm", "connection", "connections", "delivery", "head", "opening", "timer")

    def __init__(
        self, pusher: Pusher, delivery: Delivery, confirm: bool, connections: Connections, head: bytes
    ) -> None:
        self._pusher = pusher
        self.delivery = delivery
        self.confirm = confirm
        self.connections = connections
        self.head = head
        self.timer: asyncio.TimerHandle | None = None
        self.connection: Connection | None = None
        self.opening: asyncio.Task[None] | None = None

    def answered(self, reply: Reply) -> None:
        self.connection = None
        self._pusher.answered(self, reply)

    def broken(self, reason: str, is_stale: bool) -> None:
        self.connection = None
        self._pusher.broken(self, reason, is_stale)

    def end(self) -> None:
        """Nobody waits for the answer any more."""
        if self.timer:
            self.timer.cancel()
        if self.connection:
            self.connection.close()
        if self.opening:
            self.opening.cancel()


def _range(first_seconds: float, longest_seconds: float) -> tuple[Nanos, Nanos]:
    return int(first_seconds * SECOND_NS), int(max(first_seconds, longest_seconds) * SECOND_NS)


def _told(error: Exception) -> str:
    """What happened while connecting, in a line."""
    return _cut("connecting took too long" if isinstance(error, TimeoutError) else str(error) or repr(error))


def _cut(text: str) -> str:
    return text[:PUSH_ERROR_CHARACTERS_MAX]


def _nothing(_: Answer) -> None:
    """Whether it was in time does not matter: if not, the message has come back, or is gone."""
