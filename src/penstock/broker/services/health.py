"""Whether a shard works."""

from __future__ import annotations

from penstock.broker.services.contract import Service
from penstock.model.access import NOBODY
from penstock.model.client import Client
from penstock.model.health import GREEN, RED, YELLOW, Health, ReadHealth


class HealthService(Service):
    async def health(self, client: Client, _: ReadHealth) -> Health:
        """The reason of a failure may name files: if there are tokens, only clients that show one see it."""
        if failure := self.writer.failure:
            return Health(RED, "the log cannot be written" + ("" if client.access is NOBODY else f": {failure}"))
        if damaged := self.writer.engine.damaged:
            return Health(YELLOW, f"{damaged} damaged messages are set aside: see /v1/search?state=damaged")
        return Health(GREEN)
