"""Commands whose link was lost before they were answered. Whoever has their shard next is asked what became of them.

It has the shard only when it is fenced in and has recovered, so what it does not know was not done: it is done then.
Commands keep their numbers and their order. They wait for a limited time; after that it is not known what became of
them, and the client is told so.

What would break it: a command that is answered as refused here, and is still decided by the process of the lost link.
So nothing that may change something is refused before it was asked again, or its outcome is said to be unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from penstock.broker.writer.port import OwnedPort
from penstock.cluster.links.calls import Asking, Call
from penstock.cluster.links.codec import Hurry
from penstock.limits import ASK_AGAIN_LOOK_SECONDS, SECOND_NS
from penstock.model.values import Stage


class Successor(Protocol):
    """A link to the process that has a shard now."""

    def ask_again(self, call: Call) -> None: ...

    def end_asking(self, shard: int) -> None: ...


class AskingAgain:
    def __init__(
        self, seconds: float, own: Mapping[int, OwnedPort], link_to: Callable[[int], Successor | None]
    ) -> None:
        """`seconds`: how long a command waits. `own`: the shards of this process. `link_to`: who has another one."""
        self.asking = Asking(self.take)
        self.calls: dict[int, Call] = {}  # By number.
        self._seconds = seconds
        self._own = own
        self._link_to = link_to
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def take(self, calls: Iterable[Call]) -> None:
        """Commands that were not answered. One that comes again has no more time than it had."""
        now = asyncio.get_running_loop().time()
        for call in calls:
            call.until = call.until or now + self._seconds
            call.place = self
            self.calls[call.number] = call
        self._look_soon()

    def send(self, entry: Any) -> None:
        """As a link has it: a command that is canceled is gone already, and one that is hurried waits no more."""
        if type(entry) is Hurry and (call := self.calls.pop(entry.number, None)):
            call.lose()

    def ask(self, shard: int) -> None:
        """Somebody may have the shard now."""
        own = self._own.get(shard)
        link = None if own else self._link_to(shard)
        if own is None and link is None:
            return
        numbers = sorted(number for number, call in self.calls.items() if call.sent and call.sent.shard == shard)
        for call in [self._shortened(self.calls.pop(number)) for number in numbers]:
            if own:
                self._ask_here(own, call)
            elif link:
                link.ask_again(call)
        if own:
            own.origin(self.asking.origin).ended_asking(self)
        elif link:
            link.end_asking(shard)

    def close(self) -> None:
        """The process stops."""
        self._is_closed = True
        calls, self.calls = list(self.calls.values()), {}
        for call in calls:
            call.lose()

    def _ask_here(self, port: OwnedPort, call: Call) -> None:
        """The shard has come to this process. What its clients get from it needs no record."""
        assert call.sent
        client, command, stage = call.client, call.sent.command, Stage(call.sent.stage)
        if not port.answer_again(port.origin(self.asking.origin), call.number, call.reply, stage):
            pending = (
                port.submit_as(client, command, call.reply, stage)
                if client
                else port.submit(command, call.reply, stage)
            )
            call.forward(pending)

    def _shortened(self, call: Call) -> Call:
        """A command that waits has the rest of its time."""
        waits_ns = getattr(call.sent.command, "wait_ns", 0) if call.sent else 0
        if call.sent and waits_ns:
            passed = round((asyncio.get_running_loop().time() - call.since) * SECOND_NS)
            shorter = replace(call.sent.command, wait_ns=max(0, waits_ns - passed))
            call.sent = replace(call.sent, command=shorter)
            call.since = asyncio.get_running_loop().time()
        return call

    # ── Until somebody has the shard ────────────────────────────────────────────────────────────────────────

    def _look_soon(self) -> None:
        if self._is_closed:
            self.close()
        elif self.calls and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ASK_AGAIN_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for call in [call for call in self.calls.values() if call.until <= now]:
            del self.calls[call.number]
            call.lose()
        for shard in {call.sent.shard for call in self.calls.values() if call.sent}:
            self.ask(shard)
        self._look_soon()
