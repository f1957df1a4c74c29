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
from penstock.dialects.wire.listing import Before, listing
from penstock.dialects.wire.setting_documents import document_type, settings_in
from penstock.errors import ProtocolError
from penstock.limits import (
    CHANNEL_RETRIES_MAX,
    INT32_MAX,
    PAGE_DEFAULT,
    PAGE_MAX,
)
from penstock.model.answers import QueueDescription
from penstock.model.commands import ListQueues
from penstock.model.settings import QueueSettings, Setting, as_written, seconds, settings_of
from penstock.remembering import remembered
from penstock.renamed import SETTINGS, with_old_names

_OF_QUEUES = {field: setting for field, setting in settings_of(QueueSettings).items() if not setting.of_channels}
QueueDocument = document_type("Queue", QueueSettings, _OF_QUEUES)
_OfChannel = Annotated[int, Meta(ge=1, le=CHANNEL_RETRIES_MAX)]
ChannelDocument = document_type("Channel", QueueSettings, max_attempts=_OfChannel, retries=_OfChannel)
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
    request: Request, word: str, shown: Callable[[QueueDescription], dict[str, Any]], before: Before | None = None
) -> Work:
    """A page of all queues, in the field `word`. `before`: as `listing` has it; then only of the channels."""
    given = parameters(request, "offset", "limit")
    offset = number(given, "offset", 0, INT32_MAX, 0)
    limit = number(given, "limit", 1, PAGE_MAX, PAGE_DEFAULT)
    if before is None:
        return Work(listing(ListQueues(offset, limit), word, shown, refusal, pages=True))
    return Work(listing(ListQueues(offset, limit, channels=True), word, shown, refusal, pages=True, before=before))


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
    return {"name": queue.name, **with_old_names(SETTINGS, settings), "status": status}


def describe(schemas: dict[str, Any]) -> None:
    """Complete the schemas of OpenAPI with the settings."""
    for name in ("NativeQueueSettings", "NativeQueueChanges", "NativeQueue", "ChannelSettings"):
        schema = schemas[name]
        written = {each.name: _schema(field, each) for field, each in _OF_QUEUES.items()}
        written |= {old: schema for each in _OF_QUEUES.values() for old, schema in _old_schema(each).items()}
        if name == "NativeQueueSettings":
            for field, default in as_written(QueueSettings(), _OF_QUEUES).items():
                written[field]["default"] = default
        schema["properties"] = written | schema.get("properties", {})
    schemas["NativeQueue"]["required"] += [each.name for each in _OF_QUEUES.values()]


def _old_schema(setting: Setting) -> dict[str, Any]:
    """A setting under its old name."""
    return {
        old: {**msgspec.json.schema(written), "description": f"The old name of `{setting.name}`.", "deprecated": True}
        for old, written in setting.old_spelling.items()
    }


def _schema(field: str, setting: Setting) -> dict[str, Any]:
    if field == "redrive_policy":
        written: dict[str, Any] = {"anyOf": [{"$ref": "#/components/schemas/RedrivePolicy"}, {"type": "null"}]}
    else:
        written = msgspec.json.schema(setting.written)
    return {"description": setting.description, **written}
