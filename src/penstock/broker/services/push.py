"""Pushes the messages of channels to HTTP endpoints.

Each channel with a `push` has a `Pusher`. The connections that a pusher may open, and so the messages that it may
hold in memory, are reserved for it: a channel for which there is no room is not pushed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from penstock.broker.figures.measures import Samples, one
from penstock.broker.services.circuit import State
from penstock.broker.services.contract import Service
from penstock.broker.services.push_connections import known_refusal
from penstock.broker.services.push_messages import parse_url
from penstock.broker.services.pusher import Pusher, PushTools
from penstock.broker.services.questions import Answers
from penstock.broker.writer.port import ServicePort
from penstock.config.config import PushConfig
from penstock.errors import ProtocolError
from penstock.ids import MessageIds
from penstock.model.client import Client
from penstock.model.pushes import CheckPush, PushChecked, PushStates, ReadPushes
from penstock.model.settings import Push

logger = logging.getLogger(__name__)


class PushChannels(Service):
    """All channels that are pushed."""

    def __init__(self, writer: ServicePort, ids: MessageIds, limits: PushConfig, chance: Callable[[], float]) -> None:
        super().__init__(writer)
        self._tools = PushTools(writer, ids, limits, chance)
        self._by_queue: dict[int, Pusher] = {}
        self._refused: dict[int, str] = {}  # By queue: why it is not pushed, although it has a `push`.
        self._leaving: set[Pusher] = set()  # No longer needed; some of their messages are still in flight.
        self._stopping = False
        self._drained = asyncio.Event()
        self.answers: Answers = {CheckPush: self.check, ReadPushes: self.states}
        writer.on_queue.append(self._look_at)

    def start(self) -> None:
        for number in dict.fromkeys([*self._by_queue, *self._refused, *self.writer.engine.queues]):
            self._follow(number)

    async def stop(self) -> None:
        """Fetch nothing more, and wait for the messages in flight."""
        self._stopping = True
        for pusher in self._all():
            pusher.stop()
        if self.in_flight:
            await self._drained.wait()

    async def close(self) -> None:
        """Give back the messages in flight."""
        for pusher in self._all():
            pusher.close()

    def state(self) -> Iterable[tuple[str, Samples]]:
        circuits: dict[State, int] = {"closed": 0, "open": len(self._refused), "half-open": 0}
        for pusher in self._by_queue.values():
            circuits[pusher.circuit_state] += 1
        yield "penstock_push_channels", [((state,), count) for state, count in circuits.items()]
        yield "penstock_push_connections", one(sum(pusher.connections for pusher in self._all()))
        yield "penstock_push_in_flight", one(self.in_flight)
        yield "penstock_push_outcomes_total", [((name,), count) for name, count in self._tools.outcomes.items()]

    # ── For the dialect ─────────────────────────────────────────────────────────────────────────────────────

    async def check(self, _: Client, query: CheckPush) -> PushChecked:
        return PushChecked(self._refusal(self.writer.engine.numbers.get(query.queue, 0), query.push) or "")

    def describe(self, channel: str) -> dict[str, Any]:
        """The state of a channel's push; empty if it is not pushed."""
        number = self.writer.engine.numbers.get(channel, 0)
        if number in self._refused:
            return {"circuit": "open", "in_flight": 0, "last_error": self._refused[number], "failing_since": None}
        return self._by_queue[number].describe() if number in self._by_queue else {}

    async def states(self, client: Client, query: ReadPushes) -> PushStates:
        found = {name: self.describe(name) for name in query.channels if client.access.sees(name)}
        return PushStates({name: state for name, state in found.items() if state})

    def error(self, channel: str) -> str:
        """Why messages of the channel cannot be pushed now; empty if they can."""
        described = self.describe(channel)
        return described.get("last_error") or "" if described.get("circuit", "closed") != "closed" else ""

    @property
    def in_flight(self) -> int:
        return sum(pusher.in_flight for pusher in self._all())

    # ── Channels ────────────────────────────────────────────────────────────────────────────────────────────

    def _look_at(self, number: int) -> None:
        """React to a queue that was created, changed or removed."""
        room = self._room(0)
        self._follow(number)
        if self._room(0) > room:
            self._follow_refused()

    def _follow_refused(self) -> None:
        for number in list(self._refused):
            self._follow(number)

    def _follow(self, number: int) -> None:
        queue = self.writer.engine.queues.get(number)
        push = queue.settings.push if queue and not self._stopping else None
        refusal = self._refusal(number, push) if push else None
        self._note_refusal(number, refusal)
        pusher = self._by_queue.get(number)
        if queue and push and not refusal:
            if pusher:
                pusher.set(push, queue.settings.confirm)
            else:
                self._by_queue[number] = Pusher(self._tools, queue.name, push, queue.settings.confirm, self._gone)
        elif pusher:
            self._let_go(self._by_queue.pop(number))

    def _refusal(self, number: int, push: Push) -> str | None:
        """Why the channel cannot be pushed with these settings. A host name is only checked for each connection."""
        try:
            endpoint = parse_url(push.url)
        except ProtocolError as error:
            return str(error)
        if self._tools.limits.private_addresses == "refuse" and (reason := known_refusal(endpoint)):
            return f"{endpoint.host} {reason}"
        room = self._room(number)
        if push.max_in_flight > room:
            most = self._tools.limits.connections_max
            return f"max_in_flight is {push.max_in_flight}, but push.connections_max ({most}) leaves room for {room}"
        return None

    def _note_refusal(self, number: int, refusal: str | None) -> None:
        if refusal is None:
            self._refused.pop(number, None)
        elif self._refused.get(number) != refusal:
            self._refused[number] = refusal
            channel = self.writer.engine.queues[number].name
            logger.warning("push_refused", extra={"channel": channel, "reason": refusal})

    def _room(self, number: int) -> int:
        """How many connections this queue may have: those not reserved for others."""
        others = [pusher for other, pusher in self._by_queue.items() if other != number]
        return max(
            0, self._tools.limits.connections_max - sum(each.max_in_flight for each in [*others, *self._leaving])
        )

    def _let_go(self, pusher: Pusher) -> None:
        self._leaving.add(pusher)
        pusher.stop()

    def _gone(self, pusher: Pusher) -> None:
        """Forget a pusher that has stopped and has no message in flight."""
        self._leaving.discard(pusher)
        if not self._stopping:
            self._follow_refused()
        elif not self.in_flight:
            self._drained.set()

    def _all(self) -> list[Pusher]:
        return [*self._by_queue.values(), *self._leaving]
