"""The message document: everything there is to know of a message, in the words of the topics dialect."""

from __future__ import annotations

import base64
from typing import Any

from penstock.dialects.times import rfc3339_nanos
from penstock.ids import MessageIds
from penstock.limits import NEVER_NS
from penstock.model import Held, Nanos

Document = dict[str, Any]

# By the number of a state, as `engine.lifecycle` has it.
STATUS = ("gone", "ready", "delayed", "leased", "kept")


def held_document(message: Held, queue: str, ids: MessageIds, *, bodies: bool) -> Document:
    """A message as its queue holds it. Who has had it, and when, is in its events alone."""
    status = STATUS[message.state]
    document: Document = {
        "id": ids.make(*message.id).decode(),
        "queue": queue,
        "sequence": message.sequence,
        "status": status,
        "state": _letter(status, message.receives),
        "queued": status != "kept",
        **payload(message.topics, message.object, message.content_type, message.sender, message.priority),
        "created": said(message.created),
        "visible_at": said(message.visible_at),
        "expires_at": said(message.expires_at),
        "receives": message.receives,
        "consumer": message.consumer or None,
    }
    if bodies:
        document |= text_or_base64("message", message.body)
        document |= text_or_base64("key", message.key) if message.key else {}
        document |= text_or_base64("headers", message.headers) if message.headers else {}
    return document


def _letter(status: str, receives: int) -> str | None:
    """What has happened to it last. Of a message that was kept, only its events know that."""
    if status == "kept":
        return None
    return "F" if status == "leased" else "R" if receives else "Q"


def payload(topics: str, about: str, content_type: str, sender: str, priority: int) -> Document:
    """What a producer has said of a message, but for the message itself."""
    names = topics.split("\n") if topics else []
    return {
        "topics": names,
        "topicCount": len(names),
        "object": about or None,
        "mimeType": content_type or None,
        "sender": sender or None,
        "priority": priority,
    }


def said(time: Nanos | None) -> str | None:
    return None if time is None or time == NEVER_NS else rfc3339_nanos(time).decode()


def text_or_base64(name: str, data: bytes) -> Document:
    """Bytes as text if they are text, else in base64 under a name that says so."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
