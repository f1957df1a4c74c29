"""Delivering messages in the way that the settings of a queue ask for: see `commands`."""

from __future__ import annotations

from penstock.limits import FETCH_BYTES_MAX
from penstock.model.commands import Command, Fetch, Receive
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos


class Consume(Command, frozen=True, gc=False):
    """`Receive` for a consumer of a queue that asks for several confirmations, else `Fetch`. Only the shard of the
    queue knows its settings. `channel`: only from a channel."""

    queue: str
    count: int = 1
    wait_ns: Nanos = 0
    lease_ns: Nanos | None = None
    consumer: str = ""
    channel: bool = False
    ahead: bool = False
    bytes_max: int = FETCH_BYTES_MAX

    def of(self, settings: QueueSettings | None) -> Fetch | Receive | None:
        """From a queue with these settings; None if it is no channel, but has to be one."""
        if self.channel and not (settings and settings.topics):
            return None
        if self.consumer and settings and settings.confirmations > 1:
            receiver = (self.queue, self.consumer, self.count, self.wait_ns, self.lease_ns)
            return Receive(*receiver, bytes_max=self.bytes_max)
        worker = (self.queue, self.count, self.wait_ns, self.lease_ns, self.consumer)
        return Fetch(*worker, bytes_max=self.bytes_max, ahead=self.ahead)
