"""Messages in tables and lines: how old, in which state, and the beginning of what they say."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.cli import output

if TYPE_CHECKING:
    from penstock.client import Event, Found, Message, Outcome

_PREVIEW_CHARACTERS = 60
COLUMNS = ("queue", "sequence", "id", "status", "age", "receives")
DEAD_LETTER_COLUMNS = ("came from", "reason")


def preview(body: bytes, characters: int = _PREVIEW_CHARACTERS) -> str:
    """The beginning of a message, on one line."""
    text = body[: 4 * characters].decode("utf-8", "replace")
    line = "".join(each if each.isprintable() else "·" for each in text)
    return line if len(line) <= characters and len(body) <= 4 * characters else line[: characters - 1] + "…"


def age(since: datetime | None) -> str:
    """How long ago that was."""
    return "" if since is None else duration((datetime.now(UTC) - since).total_seconds())


def duration(seconds: float | None) -> str:
    """A time span in its largest unit: 0.3s, 59s, 12m, 5h, 3d."""
    if seconds is None:
        return ""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0.0):.{0 if seconds >= 10 else 1}f}s"


def body_fields(body: bytes) -> dict[str, str]:
    """A body in a JSON document, to the byte."""
    try:
        return {"message": body.decode()}
    except UnicodeDecodeError:
        return {"message_base64": base64.b64encode(body).decode()}


def document(message: Found | Message | Event) -> dict[str, Any]:
    """A message or an event for `--json`: what it has, and its body to the byte."""
    names = [name for name in message.__struct_fields__ if not name.startswith("_")]
    found = {name: getattr(message, name) for name in names}
    return {name: value for name, value in found.items() if value not in (None, "", (), {})} | body_fields(
        message.body
    )


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """What became of a message, with its result to the byte."""
    result = {f"result{name.removeprefix('message')}": value for name, value in body_fields(outcome.body).items()}
    return {
        "state": outcome.state,
        "outcome": outcome.outcome,
        "consumer": outcome.consumer,
        **(result if outcome.body else {}),
    }


def outcome_words(outcome: Outcome) -> list[str]:
    """What became of a message, on the line of its id."""
    return [outcome.outcome or "taken", *([preview(outcome.body, 1000)] if outcome.body else [])]


def show(found: Iterable[Found], as_json: bool) -> int:
    """A table of messages, or one JSON document a line. Returns how many there were."""
    if as_json:
        count = 0
        for message in found:
            output.emit(document(message))
            count += 1
        return count
    messages = list(found)
    failed = any(each.origin or each.reason for each in messages)
    rows = [(*_row(each), *((each.origin, each.reason) if failed else ()), preview(each.body)) for each in messages]
    output.table((*COLUMNS, *(DEAD_LETTER_COLUMNS if failed else ()), "message"), rows)
    return len(rows)


def _row(found: Found) -> tuple[Any, ...]:
    """What is delivered again counts from 0, so for a dead letter that is not yet, the number says nothing."""
    receives = None if found.origin and not found.receives else found.receives
    return found.queue, found.sequence, found.id, found.status, age(found.created), receives
