"""Queues and channels as documents of the native API: their settings as they are given, and as they are shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.dialects.native.parameters import number, parameters
from penstock.dialects.wire.http import (
    Request,
    Work,
    checked_name,
    decoded,
    has_control_characters,
    refusal,
)
from penstock.dialects.wire.listing import listing
from penstock.errors import ProtocolError
from penstock.limits import (
    CHANNEL_RETRIES_MAX,
    CONFIRMATIONS_MAX,
    INT32_MAX,
    NAME_BYTES_MAX,
    NEVER_NS,
    PUSH_IN_FLIGHT_MAX,
    PUSH_SECONDS_MAX,
    PUSH_URL_BYTES_MAX,
    SECOND_NS,
    TOPICS_MAX,
)
from penstock.model.answers import QueueDescription
from penstock.model.commands import ListQueues
from penstock.model.settings import Push, QueueSettings, RedrivePolicy
from penstock.model.values import Nanos

_PAGE_DEFAULT, _PAGE_MAX = 100, 1000

_Seconds = Annotated[float, Meta(ge=0, le=INT32_MAX)]
_Lifetime = Annotated[float, Meta(gt=0, le=INT32_MAX)]
_Count = Annotated[int, Meta(ge=1, le=INT32_MAX)]


class _Policy(Struct, forbid_unknown_fields=True):
    max_receives: _Count
    dead_letter_queue: str


class QueueDocument(Struct, forbid_unknown_fields=True):
    """All of them may be absent: then a new queue has the default, and a queue that is changed what it had."""

    redrive_policy: _Policy | UnsetType | None = UNSET
    retention_timeout: _Lifetime | UnsetType | None = UNSET
    visibility_timeout: _Seconds | UnsetType = UNSET
    message_delay: _Seconds | UnsetType = UNSET
    message_deduplication: bool | UnsetType = UNSET
    retries: Annotated[int, Meta(ge=0, le=INT32_MAX)] | UnsetType = UNSET
    confirmations: Annotated[int, Meta(ge=1, le=CONFIRMATIONS_MAX)] | UnsetType = UNSET
    detect_unchanged: bool | UnsetType = UNSET
    keep: Literal["finished", "all"] | UnsetType = UNSET


class _Push(Struct, forbid_unknown_fields=True):
    url: Annotated[str, Meta(max_length=PUSH_URL_BYTES_MAX)]
    max_in_flight: Annotated[int, Meta(ge=1, le=PUSH_IN_FLIGHT_MAX)] | UnsetType = UNSET
    timeout: Annotated[float, Meta(gt=0, le=PUSH_SECONDS_MAX)] | UnsetType = UNSET


class ChannelDocument(QueueDocument, forbid_unknown_fields=True):
    retries: Annotated[int, Meta(ge=1, le=CHANNEL_RETRIES_MAX)] | UnsetType = UNSET
    topics: Annotated[list[str], Meta(min_length=1, max_length=TOPICS_MAX)] | UnsetType = UNSET
    confirm: bool | UnsetType = UNSET
    push: _Push | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        if self.detect_unchanged is False:
            raise ValueError("a channel always detects what has not changed - at `$.detect_unchanged`")


_FIELDS = {
    "redrive_policy": "redrive_policy",
    "retention_timeout": "retention_ns",
    "visibility_timeout": "visibility_ns",
    "message_delay": "delay_ns",
    "message_deduplication": "deduplication",
    "retries": "retries",
    "confirmations": "confirmations",
    "detect_unchanged": "detect_unchanged",
    "keep": "keep",
}
_CHANNEL_FIELDS = {name: name for name in ("topics", "confirm", "push")}
assert tuple(_FIELDS) == QueueDocument.__struct_fields__
assert {*_FIELDS, *_CHANNEL_FIELDS} == set(ChannelDocument.__struct_fields__)
assert {*_FIELDS.values(), *_CHANNEL_FIELDS.values()} == set(QueueSettings.__struct_fields__)

_DECODE = {kind: msgspec.json.Decoder(kind).decode for kind in (QueueDocument, ChannelDocument)}


def changed(settings: QueueSettings, body: bytes, kind: type[QueueDocument] = QueueDocument) -> QueueSettings:
    """The settings with those that a body names. Raises `ProtocolError`."""
    given = decoded(_DECODE[kind], body)
    changes: dict[str, Any] = {}
    for name, field in (_FIELDS | _CHANNEL_FIELDS).items():
        value = getattr(given, name, UNSET)
        if value is UNSET:
            continue
        if isinstance(value, _Policy):
            value = RedrivePolicy(value.max_receives, value.dead_letter_queue)
        elif isinstance(value, _Push):
            value = _push(value)
        elif field == "topics":
            value = tuple(dict.fromkeys(map(_checked_pattern, value)))
        elif field.endswith("_ns"):
            value = _nanos(value)
        changes[field] = value
    return msgspec.structs.replace(settings, **changes)


def _nanos(value: float | None) -> Nanos:
    return NEVER_NS if value is None else round(value * SECOND_NS) or int(value > 0)


def _push(given: _Push) -> Push:
    chosen: dict[str, Any] = {"url": given.url}
    if given.max_in_flight is not UNSET:
        chosen["max_in_flight"] = given.max_in_flight
    if given.timeout is not UNSET:
        chosen["timeout_ns"] = _nanos(given.timeout)
    return Push(**chosen)


def _checked_pattern(pattern: str) -> str:
    if pattern == "*":
        return pattern
    return checked_topic(pattern.removesuffix("*") or pattern) and pattern


@lru_cache(maxsize=4096)
def checked_topic(topic: str) -> str:
    """A topic whose root can name a queue. Raises `ProtocolError` for anything else."""
    if len(topic.encode()) > NAME_BYTES_MAX or has_control_characters(topic):
        raise ProtocolError(f"a topic has 1 to {NAME_BYTES_MAX} bytes without control characters")
    try:
        checked_name(topic.partition(".")[0].encode())
    except ProtocolError:
        raise ProtocolError("a topic begins with the name of a queue, which is not empty") from None
    return topic


def listed(
    request: Request, word: str, shown: Callable[[QueueDescription], dict[str, Any]], *, channels: bool = False
) -> Work:
    """A page of all queues, or of the channels alone, under this word."""
    given = parameters(request, "offset", "limit")
    offset = number(given, "offset", 0, INT32_MAX, 0)
    limit = number(given, "limit", 1, _PAGE_MAX, _PAGE_DEFAULT)
    return Work(listing(ListQueues(offset, limit, channels), word, shown, refusal, pages=True))


def view(queue: QueueDescription) -> dict[str, Any]:
    settings = {name: _shown(field, getattr(queue.settings, field)) for name, field in _FIELDS.items()}
    if queue.settings.topics:
        settings |= {"topics": queue.settings.topics, "confirm": queue.settings.confirm, "detect_unchanged": True}
        settings["push"] = _shown_push(queue.settings.push)
    status = {
        "messages": queue.messages,
        "ready": queue.ready,
        "leased": queue.leased,
        "delayed": queue.delayed,
        "kept": queue.kept,
        "damaged": queue.damaged,
        "oldest_message_age": seconds(queue.oldest_age_ns),
        "last_sequence": queue.last_sequence,
    }
    return {"name": queue.name, **settings, "status": status}


def _shown(field: str, value: Any) -> Any:
    return seconds(value) if field.endswith("_ns") else value


def _shown_push(push: Push | None) -> dict[str, Any] | None:
    if push is None:
        return None
    return {"url": push.url, "max_in_flight": push.max_in_flight, "timeout": seconds(push.timeout_ns)}


def seconds(nanos: Nanos) -> float | None:
    """Whole seconds without a fraction; what has no end is null."""
    if nanos == NEVER_NS:
        return None
    return nanos // SECOND_NS if nanos % SECOND_NS == 0 else nanos / SECOND_NS
