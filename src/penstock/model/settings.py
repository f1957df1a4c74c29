"""The settings of a queue."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from penstock.limits import NEVER_NS, PUSH_IN_FLIGHT_DEFAULT, PUSH_SECONDS_DEFAULT, SECOND_NS
from penstock.model.values import Nanos


class RedrivePolicy(Struct, frozen=True):
    """After `max_receives` deliveries a message moves to the dead-letter queue."""

    max_receives: int
    dead_letter_queue: str


class Push(Struct, frozen=True):
    """Where the broker takes a channel's messages, instead of waiting for somebody to fetch them."""

    url: str
    max_in_flight: int = PUSH_IN_FLIGHT_DEFAULT
    timeout_ns: Nanos = PUSH_SECONDS_DEFAULT * SECOND_NS


class QueueSettings(Struct, frozen=True, kw_only=True):
    """Everything that can be set on a queue: the union of what the five dialects know. One with topics is a channel:
    it is fed by what is published to them."""

    redrive_policy: RedrivePolicy | None = None
    retention_ns: Nanos = NEVER_NS
    visibility_ns: Nanos = 30_000_000_000
    delay_ns: Nanos = 0
    deduplication: bool = False
    retries: int = 0  # Deliveries in all before a message is dropped; 0: no limit.
    confirmations: int = 1  # Consumers that must confirm before a message is completed.
    detect_unchanged: bool = False
    keep: Literal["finished", "all"] = "finished"  # "finished": confirmed messages leave. "all": they stay.
    topics: tuple[str, ...] = ()  # Names, or beginnings of names with a star at the end.
    confirm: bool = True  # False: each message is handed over and gone, no confirmation awaited.
    push: Push | None = None

    @property
    def keeps(self) -> bool:
        """Does a message stay when its worker is done with it? It does where others want it too."""
        return self.keep == "all" or self.confirmations > 1

    @property
    def deliveries(self) -> int:
        """After how many a message has failed when its lease ends without a confirmation; 0: it never has. Where one
        confirmation is enough, `max_receives` counts when a message is delivered, not when a lease ends."""
        most = self.redrive_policy.max_receives if self.redrive_policy and self.confirmations > 1 else 0
        return min(self.retries, most) if self.retries and most else self.retries or most

    def to_store(self) -> dict[str, Any]:
        """As they are written to the disk: a setting that came with a later version only if it says something."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in fields.items() if name not in _LATER or value != _LATER[name]}


_LATER: dict[str, Any] = {"topics": (), "confirm": True, "push": None}
