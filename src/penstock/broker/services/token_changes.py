"""Keeps the identities of a broker up to date: tokens that are set and revoked, and secrets whose time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.broker.identities import Identities
from penstock.broker.services.contract import Service
from penstock.broker.writer.port import ServicePort
from penstock.limits import SECOND_NS

_LOOK_SECONDS_MAX = 3600.0  # Timers of many days are not exact.


class TokenChanges(Service):
    """A change counts as soon as it is durable, after the client that asked for it was answered."""

    def __init__(self, writer: ServicePort, identities: Identities, *, has_tokens: bool = True) -> None:
        """`has_tokens`: the shard has those of its store. Otherwise only secrets whose time is over are ended."""
        super().__init__(writer)
        self._identities = identities
        self._has_tokens = has_tokens
        self._changed: set[str] = set()
        self.on_change: Callable[[], None] = lambda: None
        if has_tokens:
            identities.load(writer.engine.tokens.by_name)
            writer.on_token.append(self._changed.add)
            writer.on_commit.append(self._after_commit)

    def start(self) -> None:
        """After a failure of the log, tokens that were not durable are gone."""
        if self._has_tokens:
            self._identities.load(self.writer.engine.tokens.by_name)
            self.on_change()
        super().start()

    async def run(self) -> None:
        while True:
            left = self._identities.expire()
            await self.rest(min(max(left, 0) / SECOND_NS + 0.001, _LOOK_SECONDS_MAX))
            await asyncio.sleep(0)

    def _after_commit(self) -> None:
        if self._changed:
            tokens = self.writer.engine.tokens.by_name
            changes = {name: tokens.get(name) for name in self._changed}
            self._changed.clear()
            self._identities.update(changes)
            self.on_change()
            self.wake()
