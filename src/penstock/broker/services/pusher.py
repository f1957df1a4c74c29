"""Pushes the messages of one channel to its HTTP endpoint.

A pusher is a consumer of the channel's queue: it fetches as many messages as it has room for, sends each in a request
of its own, and confirms or releases it depending on the answer. It fetches only while it has a connection, and opens
the first one when there is a message, so that an endpoint that cannot be reached uses up no retries. It never polls:
a pusher without work has a fetch, or a watch, that waits.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, cast

from penstock import __version__
from penstock.backoff import backoff_ns
from penstock.broker.services.circuit import Circuit, State
from penstock.broker.services.push_connections import Connection, Connections
from penstock.broker.services.push_messages import Reply, RequestWriter, parse_url, retry_after_ns
from penstock.broker.writer.port import Pending, ServicePort
from penstock.config.config import PushConfig
from penstock.errors import ProtocolError, Reason
from penstock.ids import MessageIds
from penstock.limits import (
    PUSH_ERROR_CHARACTERS_MAX,
    PUSH_LEASE_MARGIN_SECONDS,
    PUSH_PAUSE_SECONDS,
    PUSH_WAIT_SECONDS,
    REASON_BYTES_MAX,
    SECOND_NS,
)
from penstock.model.answers import Answer, Delivery, Refused
from penstock.model.client import Cancelable
from penstock.model.commands import Fetch, Outcome, Settle
from penstock.model.settings import Push
from penstock.model.times import in_seconds, rfc3339_nanos
from penstock.model.values import Nanos

logger = logging.getLogger(__name__)

CONSUMER = "push"


class PushTools:
    """What all pushers of a broker share."""

    def __init__(self, writer: ServicePort, ids: MessageIds, limits: PushConfig, chance: Callable[[], float]) -> None:
        self.writer = writer
        self.ids = ids
        self.limits = limits
        self.chance = chance
        self.outcomes: dict[Outcome, int] = {"success": 0, "invalid": 0, "not_interested": 0, "retry": 0}

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    @property
    def allow_private(self) -> bool:
        return self.limits.private_addresses == "allow"

    def retry_ns(self, receives: int) -> Nanos:
        """How long a message waits after its n-th delivery has failed."""
        return backoff_ns(receives, *_range(self.limits.retry_seconds, self.limits.retry_seconds_max), self.chance())

    def circuit(self) -> Circuit:
        bounds_ns = _range(self.limits.retry_seconds, self.limits.circuit_seconds_max)
        return Circuit(self.limits.circuit_failures, *bounds_ns)


class Pusher:
    """Fetches the messages of one channel, sends them, and settles them. `on_idle` is called when it was stopped and
    no message is in flight any more."""

    _connections: Connections
    _writer: RequestWriter
    _circuit: Circuit

    def __init__(
        self, tools: PushTools, channel: str, push: Push, confirm: bool, on_idle: Callable[[Pusher], None]
    ) -> None:
        self._tools = tools
        self._channel = channel
        self._push = push
        self._confirm = confirm
        self._on_idle = on_idle
        self._loop = tools.writer
        self._asyncio = asyncio.get_running_loop()
        self._last_error: str | None = None
        self._failing_since: Nanos | None = None
        self._attempts: set[_Attempt] = set()
        self._asked: _Asked | None = None
        self._pause: asyncio.TimerHandle | None = None  # Until it ends, the pusher fetches nothing.
        self._go_on_is_due = False
        self._stopped = False
        self._aim()
        self._go_on_soon()

    def set(self, push: Push, confirm: bool) -> None:
        """Use these settings from now on. Messages in flight are not affected, and count."""
        is_elsewhere = push.url != self._push.url
        self._push, self._confirm = push, confirm
        self._ask_no_more()
        if is_elsewhere:
            self._connections.close()
            self._aim()
        self._go_on_soon()

    def _aim(self) -> None:
        """Begin with a new endpoint: new connections, and a closed circuit."""
        endpoint, tools = parse_url(self._push.url), self._tools
        self._connections = Connections(endpoint, lambda: tools.tls, tools.allow_private, self._lost_the_last)
        self._writer = RequestWriter(tools.ids, self._channel, endpoint, __version__)
        self._circuit = tools.circuit()
        self._last_error = self._failing_since = None
        self._end_pause()

    def stop(self) -> None:
        self._stopped = True
        self._ask_no_more()
        self._end_pause()
        self._connections.close()
        if not self._attempts:
            self._on_idle(self)

    def close(self) -> None:
        for attempt in list(self._attempts):
            self._end(attempt)
            self._settle(attempt.delivery, "retry")

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
        return {
            "circuit": self._circuit.state,
            "in_flight": self.in_flight,
            "last_error": self._last_error,
            "failing_since": self._failing_since and rfc3339_nanos(self._failing_since).decode(),
        }

    # ── Asking for messages ─────────────────────────────────────────────────────────────────────────────────

    def _go_on_soon(self) -> None:
        """Continue when this turn ends, so that one fetch follows messages that are answered together."""
        if not self._go_on_is_due:
            self._go_on_is_due = True
            self._asyncio.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Fetch as many messages as there is room for. Without a connection, watch for a message first."""
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
                return  # Messages are about to arrive, and are counted then.
        if asked and asked.handle:
            asked.handle.cancel()
        self._asked = None

    def _lost_the_last(self) -> None:
        """Without any connection left, replace the waiting fetch by a watch."""
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
                attempt = _Attempt(self, delivery, confirm, self._connections, self._writer.write(delivery))
                self._attempts.add(attempt)
                attempt.begin(self._push.timeout_ns)

    def _refused(self, answer: Refused) -> None:
        if answer.reason is not Reason.NO_QUEUE and not self._pause:  # The pusher of a removed queue is removed too.
            self._last_error = _cut(answer.sentence)
            self._rest(PUSH_PAUSE_SECONDS * SECOND_NS)

    def _wake(self, asked: _Asked) -> None:
        """A message is ready: before fetching it, find out whether the endpoint can be reached."""
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
                self._note_failure(_described(error), self._circuit.trip(self._tools.chance()))
        else:
            if self._asked is asked:
                self._asked = None
            connections.keep(connection)
            self._go_on_soon()

    def _rest(self, nanos: Nanos) -> None:
        """Fetch nothing for a while."""
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

    # ── Messages in flight ──────────────────────────────────────────────────────────────────────────────────

    def answered(self, attempt: _Attempt, reply: Reply) -> None:
        if reply.outcome == "retry":
            self.failed(attempt, f"the endpoint answered {reply.status}", reply.retry_after)
            return
        self._end(attempt)
        self._tools.outcomes[reply.outcome] += 1
        if attempt.connections is self._connections:
            self._failing_since = None
            if self._circuit.succeed():
                self._end_pause()
                logger.info("push_resumed", extra={"channel": self._channel})
        if attempt.confirm:
            self._settle(attempt.delivery, reply.outcome)

    def failed(self, attempt: _Attempt, reason: str, retry_after: bytes = b"") -> None:
        """Deliver the message again later, and pause if enough messages have failed."""
        self._end(attempt)
        self._tools.outcomes["retry"] += 1
        asked_ns = retry_after_ns(retry_after, self._loop.wall())
        if attempt.confirm:
            delay_ns = max(self._tools.retry_ns(attempt.delivery.receives), asked_ns)
            self._settle(attempt.delivery, "retry", delay_ns, reason)
        if attempt.connections is self._connections:
            open_ns = self._circuit.fail(self._tools.chance())
            self._note_failure(reason, None if open_ns is None else max(open_ns, asked_ns))

    def _note_failure(self, reason: str, open_ns: Nanos | None) -> None:
        self._last_error = reason
        self._failing_since = self._failing_since or self._loop.now()
        if open_ns is not None:
            facts = {"channel": self._channel, "reason": reason, "seconds": open_ns / SECOND_NS}
            logger.warning("push_suspended", extra=facts)
            self._rest(open_ns)

    def _end(self, attempt: _Attempt) -> None:
        self._attempts.remove(attempt)
        attempt.end()
        self._go_on_soon()
        if self._stopped and not self._attempts:
            self._on_idle(self)

    def _settle(self, delivery: Delivery, outcome: Outcome, delay_ns: Nanos = 0, reason: str = "") -> None:
        facts = (delivery.queue, delivery.sequence, outcome, None, delivery.receives, delay_ns)
        cause = reason.encode(errors="replace")[:REASON_BYTES_MAX]
        self._loop.submit(Settle(*facts, reason=cause), _ignore)


class _Asked:
    """What a pusher waits for: messages, a reason to connect, or the first connection."""

    __slots__ = ("fetch", "handle")

    def __init__(self) -> None:
        self.fetch: Pending | None = None
        self.handle: Cancelable | asyncio.Task[None] | None = None


class _Attempt:
    """One message in flight: a request on a connection, with a time-out."""

    __slots__ = ("_connection", "_head", "_opening", "_pusher", "_timer", "confirm", "connections", "delivery")

    def __init__(
        self, pusher: Pusher, delivery: Delivery, confirm: bool, connections: Connections, head: bytes
    ) -> None:
        self._pusher = pusher
        self._head = head
        self._timer: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self.delivery = delivery
        self.confirm = confirm
        self.connections = connections

    def begin(self, timeout_ns: Nanos) -> None:
        reason = f"no answer within {in_seconds(timeout_ns)}"
        running = asyncio.get_running_loop()
        self._timer = running.call_later(timeout_ns / SECOND_NS, self._pusher.failed, self, reason)
        if connection := self.connections.take():
            self._send(connection)
        else:
            self._send_anew()

    def _send_anew(self) -> None:
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            connection = await self.connections.connect()
        except (OSError, ProtocolError) as error:
            self._opening = None
            self._pusher.failed(self, _described(error))
        else:
            self._opening = None
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(self._head, self.delivery.body, self)

    def answered(self, reply: Reply) -> None:
        self._connection = None
        self._pusher.answered(self, reply)

    def broken(self, reason: str, is_stale: bool) -> None:
        self._connection = None
        if is_stale:
            self._send_anew()  # This is not a failure: an endpoint may close an idle connection.
        else:
            self._pusher.failed(self, reason)

    def end(self) -> None:
        """Abandon the request, if it is still waiting for an answer."""
        if self._timer:
            self._timer.cancel()
        if self._connection:
            self._connection.close()
        if self._opening:
            self._opening.cancel()


def _range(first_seconds: float, longest_seconds: float) -> tuple[Nanos, Nanos]:
    return int(first_seconds * SECOND_NS), int(max(first_seconds, longest_seconds) * SECOND_NS)


def _described(error: Exception) -> str:
    """A connection error in one line."""
    return _cut("connecting took too long" if isinstance(error, TimeoutError) else str(error) or repr(error))


def _cut(text: str) -> str:
    return text[:PUSH_ERROR_CHARACTERS_MAX]


def _ignore(_: Answer) -> None:
    """Ignore a refused settlement: the answer came too late, and the message is back in its queue or gone."""
