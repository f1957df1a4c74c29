"""The settings of a queue, each declared once: its default, and how documents of the APIs write it.

A new setting is a line here, and its effect in the engine. The documents of the native API and their description in
OpenAPI follow from it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from penstock import limits
from penstock.backoff import Growth
from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model.values import Nanos
from penstock.renamed import RENAMED, SETTINGS, Renamed


class Setting(Struct, frozen=True):
    """How documents write a setting. One whose field ends in `_ns` is written in seconds."""

    written: Any  # Its type in a document, with bounds. They do not hold for what is read from the disk.
    description: str = ""
    name: str = ""  # Empty: as the field.
    of_channels: bool = False  # Only channels have it.
    before: Any = None  # Its type under its old name, if it differs.
    no_limit: int | None = None  # What a null in a document stands for, if it is not written in seconds.
    renamed: Renamed | None = None  # Its old name, from the table of those.

    @property
    def old_spelling(self) -> dict[str, Any]:
        """Its old name and type, if it has one. mqs and glovebox keep it in their documents."""
        return {self.renamed.old: self.before or self.written} if self.renamed else {}


@cache
def settings_of(kind: type[Struct]) -> dict[str, Setting]:
    """How the fields of these settings are written, by their names."""
    found = {}
    renamed = {row.new: row for row in RENAMED[SETTINGS]}
    for field in msgspec.structs.fields(kind):
        setting = next(
            meta.extra["setting"] for meta in get_args(field.type) if isinstance(meta, Meta) and meta.extra
        )
        name = setting.name or field.name
        found[field.name] = msgspec.structs.replace(setting, name=name, renamed=renamed.get(name))
    return found


def _written(
    written: Any,
    description: str = "",
    name: str = "",
    *,
    of_channels: bool = False,
    before: Any = None,
    no_limit: int | None = None,
) -> Meta:
    return Meta(extra={"setting": Setting(written, description, name, of_channels, before, no_limit)})


_Count = Annotated[int, Meta(ge=1, le=limits.INT32_MAX)]
_Seconds = Annotated[float, Meta(ge=0, le=limits.INT32_MAX)]
_Lifetime = Annotated[float, Meta(gt=0, le=limits.INT32_MAX)]
_Keep = Literal["finished", "all"]


class RedrivePolicy(Struct, frozen=True):
    """After `max_receives` deliveries a message moves to the dead-letter queue."""

    max_receives: Annotated[int, _written(_Count)]
    dead_letter_queue: Annotated[str, _written(str)]


class Push(Struct, frozen=True):
    """Where the broker sends a channel's messages, instead of waiting for consumers to fetch them."""

    url: Annotated[str, _written(Annotated[str, Meta(max_length=limits.PUSH_URL_BYTES_MAX)])]
    max_in_flight: Annotated[int, _written(Annotated[int, Meta(ge=1, le=limits.PUSH_IN_FLIGHT_MAX)])] = (
        limits.PUSH_IN_FLIGHT_DEFAULT
    )
    timeout_ns: Annotated[
        Nanos, _written(Annotated[float, Meta(gt=0, le=limits.PUSH_SECONDS_MAX)], name="timeout")
    ] = limits.PUSH_SECONDS_DEFAULT * limits.SECOND_NS


class QueueSettings(Struct, frozen=True, kw_only=True):
    """Everything that can be set on a queue: the union of what the five dialects know. A queue with topics is a
    channel: it gets what is published to them."""

    redrive_policy: Annotated[
        RedrivePolicy | None,
        _written(
            RedrivePolicy,
            "After `max_receives` deliveries a message moves to the dead-letter queue, which must exist.",
        ),
    ] = None
    retention_ns: Annotated[
        Nanos,
        _written(_Lifetime | None, "Seconds after which a message expires; null: never.", "retention_timeout"),
    ] = limits.NEVER_NS
    visibility_ns: Annotated[
        Nanos,
        _written(_Seconds, "Seconds for which a delivered message belongs to its consumer.", "lease"),
    ] = 30 * limits.SECOND_NS
    delay_ns: Annotated[Nanos, _written(_Seconds, "Seconds for which a new message is hidden.", "message_delay")] = 0
    deduplication: Annotated[
        bool, _written(bool, "A body that is in the queue already is not stored again.", "message_deduplication")
    ] = False
    retries: Annotated[
        int,
        _written(
            _Count | None,
            "Deliveries in all before a message is dropped; null: no limit.",
            "max_attempts",
            before=Annotated[int, Meta(ge=0, le=limits.INT32_MAX)],
            no_limit=0,
        ),
    ] = 0
    retry_delay_ns: Annotated[
        Nanos,
        _written(
            _Seconds,
            "Seconds before another delivery, after a lease ran out or a message was given back without a delay.",
            "retry_delay",
        ),
    ] = 0
    retry_backoff: Annotated[
        Growth, _written(Growth, "How `retry_delay` grows with each delivery: not, by itself, or twofold.")
    ] = "fixed"
    retry_delay_max_ns: Annotated[
        Nanos,
        _written(_Lifetime | None, "The longest that `retry_delay` grows to; null: no limit.", "retry_delay_max"),
    ] = limits.NEVER_NS
    retry_jitter: Annotated[
        float,
        _written(
            Annotated[float, Meta(ge=0, le=1)],
            "The share of the delay that is taken off at random, so that messages do not all come back together.",
        ),
    ] = 0.0
    confirmations: Annotated[
        int,
        _written(
            Annotated[int, Meta(ge=1, le=limits.CONFIRMATIONS_MAX)],
            "Consumers that must confirm a message before it is completed.",
        ),
    ] = 1
    detect_unchanged: Annotated[
        bool,
        _written(
            bool,
            "A message with the same object, key and content as the last one is logged, and not delivered.",
        ),
    ] = False
    keep: Annotated[
        _Keep,
        _written(_Keep, "`finished`: messages leave when they are confirmed. `all`: they stay until retention."),
    ] = "finished"
    topics: Annotated[
        tuple[str, ...],
        _written(
            Annotated[list[str], Meta(min_length=1, max_length=limits.TOPICS_MAX)],
            "Topics, or beginnings of topics with a star at the end.",
            of_channels=True,
        ),
    ] = ()
    confirm: Annotated[bool, _written(bool, "False: messages are handed over and gone.", of_channels=True)] = True
    push: Annotated[
        Push | None, _written(Push, "Where messages are sent; null: consumers fetch them.", of_channels=True)
    ] = None

    @property
    def keeps(self) -> bool:
        """Whether a message stays when its worker is done with it. It does where others want it too."""
        return self.keep == "all" or self.confirmations > 1

    @property
    def deliveries(self) -> int:
        """After how many deliveries a message has failed when its lease ends without a confirmation; 0: never. Where
        one confirmation is enough, `max_receives` counts when a message is delivered, not when a lease ends."""
        most = self.redrive_policy.max_receives if self.redrive_policy and self.confirmations > 1 else 0
        return min(self.retries, most) if self.retries and most else self.retries or most

    def to_store(self) -> dict[str, Any]:
        """As they are written to the disk: a setting that came with a later version only if it is not the default."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in fields.items() if name not in _LATER or value != _LATER[name]}


_RETRY = {"retry_delay_ns": 0, "retry_backoff": "fixed", "retry_delay_max_ns": limits.NEVER_NS, "retry_jitter": 0.0}
_LATER: dict[str, Any] = {"topics": (), "confirm": True, "push": None, **_RETRY}


def as_written(settings: Struct, only: Collection[str] | None = None) -> dict[str, Any]:
    """Settings as a document shows them. `only`: names of fields."""
    shown = {}
    for field, setting in settings_of(type(settings)).items():
        if only is None or field in only:
            value = getattr(settings, field)
            if isinstance(value, Struct):
                value = as_written(value)
            value = seconds(value) if field.endswith("_ns") else None if value == setting.no_limit else value
            shown[setting.name] = value
    return shown


def seconds(nanos: Nanos) -> float | None:
    """Whole seconds without a fraction; what has no end is null."""
    if nanos == NEVER_NS:
        return None
    return nanos // SECOND_NS if nanos % SECOND_NS == 0 else nanos / SECOND_NS
