"""Queues and channels as JSON documents of the native API: settings in, settings and status out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.dialects.native.parameters import number, parameters
from penstock.dialects.wire.http import (
    Request,
    Work,
    checked_name,
    checked_text,
    decoded,
    refusal,
)
from penstock.dialects.wire.listing import listing
from penstock.dialects.wire.setting_documents import as_written, document_type, seconds, settings_in
from penstock.errors import ProtocolError
from penstock.limits import (
    CHANNEL_RETRIES_MAX,
    INT32_MAX,
)
from penstock.model.answers import QueueDescription
from penstock.model.commands import ListQueues
from penstock.model.settings import QueueSettings, Setting, settings_of
from penstock.remembering import remembered

_PAGE_DEFAULT, _PAGE_MAX = 100, 1000

_OF_QUEUES = {field: setting for field, setting in settings_of(QueueSettings).items() if not setting.of_channels}
QueueDocument = document_type("Queue", QueueSettings, _OF_QUEUES)
ChannelDocument = document_type("Channel", QueueSettings, retries=Annotated[int, Meta(ge=1, le=CHANNEL_RETRIES_MAX)])
_DECODE = {kind: msgspec.json.Decoder(kind).decode for kind in (QueueDocument, ChannelDocument)}


def changed(settings: QueueSettings, body: bytes, kind: type[Any] = QueueDocument) -> QueueSettings:
    """The settings with those that a body names. Raises `ProtocolError`."""
    changes = settings_in(decoded(_DECODE[kind], body), QueueSettings)
    if kind is ChannelDocument and changes.get("detect_unchanged") is False:
        raise ProtocolError("a channel always detects unchanged messages - at `$.detect_unchanged`")
    if "topics" in changes:
        changes["topics"] = tuple(dict.fromkeys(map(_checked_pattern, changes["topics"])))
    return msgspec.structs.replace(settings, **changes)


def _checked_pattern(pattern: str) -> str:
    if pattern == "*":
        return pattern
    return checked_topic(pattern.removesuffix("*") or pattern) and pattern


@remembered(4096)
def checked_topic(topic: str) -> str:
    """A topic whose root can name a queue. Raises `ProtocolError` for anything else."""
    checked_text(topic, "a topic", 0)
    try:
        checked_name(topic.partition(".")[0].encode())
    except ProtocolError:
        raise ProtocolError("a topic begins with the name of a queue, which is not empty") from None
    return topic


def listed(
    request: Request, word: str, shown: Callable[[QueueDescription], dict[str, Any]], *, channels: bool = False
) -> Work:
    """A page of all queues, or only of the channels, in the field `word`."""
    given = parameters(request, "offset", "limit")
    offset = number(given, "offset", 0, INT32_MAX, 0)
    limit = number(given, "limit", 1, _PAGE_MAX, _PAGE_DEFAULT)
    return Work(listing(ListQueues(offset, limit, channels), word, shown, refusal, pages=True))


def view(queue: QueueDescription) -> dict[str, Any]:
    if queue.settings.topics:
        settings = as_written(queue.settings) | {"detect_unchanged": True}
    else:
        settings = as_written(queue.settings, _OF_QUEUES)
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


def describe(schemas: dict[str, Any]) -> None:
    """Complete the schemas of OpenAPI with the settings."""
    for name in ("NativeQueueSettings", "NativeQueueChanges", "NativeQueue", "ChannelSettings"):
        schema = schemas[name]
        written = {each.name: _schema(field, each) for field, each in _OF_QUEUES.items()}
        if name == "NativeQueueSettings":
            for field, default in as_written(QueueSettings(), _OF_QUEUES).items():
                written[field]["default"] = default
        schema["properties"] = written | schema.get("properties", {})
    schemas["NativeQueue"]["required"] += [each.name for each in _OF_QUEUES.values()]


def _schema(field: str, setting: Setting) -> dict[str, Any]:
    if field == "redrive_policy":
        written: dict[str, Any] = {"anyOf": [{"$ref": "#/components/schemas/RedrivePolicy"}, {"type": "null"}]}
    else:
        written = msgspec.json.schema(setting.written)
    return {"description": setting.description, **written}
