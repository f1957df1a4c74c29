"""Recurring schedules: what a schedule publishes, and when."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos

CatchUp = Literal["one", "all", "none"]


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message that is published again and again, to a queue or to topics: by a cron expression, or at an
    interval."""

    queue: str = ""  # Empty: to the topics.
    topics: tuple[str, ...] = ()
    create: QueueSettings | None = None  # The settings of queues that are created for the topics.
    body: bytes = b""
    content_type: str = ""
    object: str = ""
    key: bytes = b""
    headers: bytes = b""
    priority: int = 0
    delay_ns: Nanos | None = None
    expires_ns: Nanos | None = None
    cron: str = ""  # Empty: at an interval.
    time_zone: str = "UTC"
    every_ns: Nanos = 0
    start: Nanos | None = None  # The interval is counted from here; absent: from when the schedule was set.
    catch_up: CatchUp = "one"  # What becomes of ticks that nobody was there for.
    paused: bool = False

    @property
    def timing(self) -> tuple[str, str, Nanos, Nanos | None]:
        """All that decides when it runs."""
        return self.cron, self.time_zone, self.every_ns, self.start

    @property
    def size(self) -> int:
        """About how many bytes of memory its texts take."""
        return len(self.body) + len(self.key) + len(self.headers) + sum(map(len, self.topics))

    def to_store(self) -> dict[str, Any]:
        """As it is written to the disk."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields | {"create": self.create.to_store()} if self.create else fields
