"""Messages, results and parameters as the native API takes them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.limits import REASON_BYTES_MAX

OutcomeName = Literal["success", "invalid", "not_interested", "retry", "failed"]

_JSON = "application/json"
encode = msgspec.json.Encoder().encode


class PublishDocument(Struct, omit_defaults=True):
    """One message of a publish. Fields that are left out have the broker's defaults."""

    message: str | Raw | UnsetType = UNSET
    message_base64: str | UnsetType = UNSET
    mimeType: str = ""  # noqa: N815 - As the API has it.
    topics: Sequence[str] = ()
    object: str = ""
    key: str = ""
    headers: Mapping[str, str] | None = None
    sender: str = ""
    priority: int = 0
    delay: float | None = None
    expires: float | None = None


def content_of(message: object, content_type: str | None) -> tuple[str | Raw | UnsetType, str | UnsetType, str]:
    """`message`, `message_base64` and `mimeType` of a document: text is text, bytes are bytes, the rest is JSON."""
    if type(message) is str:
        return message, UNSET, content_type or ""
    if isinstance(message, bytes | bytearray | memoryview):
        return UNSET, b64encode(message).decode("ascii"), content_type or ""
    if isinstance(message, str):  # Such as an enumeration of strings.
        return str.__str__(message), UNSET, content_type or ""
    raw = encode(message)
    if raw.startswith(b'"'):
        # The broker stores a JSON string as plain text. A text with these very quotes is stored as it is.
        return raw.decode(), UNSET, content_type or _JSON
    return Raw(raw), UNSET, content_type or ""


def list_of(topics: str | Sequence[str]) -> Sequence[str]:
    return (topics,) if isinstance(topics, str) else topics


def refuse_nowhere(queue: str | None, topics: Sequence[str], about: str | None) -> None:
    """The broker would make a queue called `default`."""
    if queue is None and not topics and not about:
        raise TypeError("publish_to needs a topic, or an object; publish is for queues")


def result_fields(result: object) -> dict[str, str]:
    """A result as the broker takes it: text is text, bytes are bytes, anything else is JSON. None is none."""
    if result is None:
        return {}
    if isinstance(result, bytes | bytearray | memoryview):
        return {"result_base64": b64encode(result).decode("ascii")}
    return {"result": result if isinstance(result, str) else encode(result).decode()}


def reason_field(reason: str) -> dict[str, str]:
    """Why a message is given back or invalid, cut to what the broker stores."""
    if not reason:
        return {}
    cut = reason[:REASON_BYTES_MAX].encode(errors="replace")[:REASON_BYTES_MAX]
    return {"reason": cut.decode(errors="ignore")}


def body_of(text: str | UnsetType, in_base64: str | UnsetType) -> bytes:
    """The bytes of a body that was asked for with `raw=true`."""
    if in_base64 is not UNSET:
        return b64decode(in_base64)
    return b"" if text is UNSET else text.encode()


def path(*segments: str) -> str:
    """A path of the native API."""
    return "/v1/" + "/".join([quote(segment, safe="") for segment in segments])


def query(**given: Any) -> str:
    """The query string, without what is not given. A trailing underscore keeps a name from being a keyword."""
    pairs: list[tuple[str, str]] = []
    for name, value in given.items():
        several = value if isinstance(value, list | tuple) else [value]
        pairs += [(name.rstrip("_"), _as_text(each)) for each in several if each is not None]
    return "?" + urlencode(pairs) if pairs else ""


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
