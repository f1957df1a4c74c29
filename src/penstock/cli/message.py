"""`penstock message`: the life of one message."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.letters import STYLES
from penstock.cli.session import Session, verb

_FACTS = ("id", "queue", "state", "status", "topics", "object", "key", "mimeType", "sender", "priority", "receives")


@verb
def message(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    watch: output.Watch = None,
) -> None:
    """Show a message and everything that happened to it, also if it is gone."""
    with session.client() as client:
        output.repeat(watch, lambda: _show(session, client.message(name)))


def _show(session: Session, document: dict[str, Any]) -> None:
    if session.as_json:
        output.emit(document)
        return
    said = {name: document[name] for name in _FACTS if document.get(name)}
    output.facts(said | {"message": document.get("message", document.get("message_base64"))})
    for event in document["events"]:
        output.styled(*_line(event))
    if not document["complete"]:
        output.say("Some of its events are past the retention of the Event Log, or damaged.")


def _line(event: dict[str, Any]) -> list[tuple[str, str]]:
    letter = event["state"]
    more = " ".join(
        f"{name}={event[name]}"
        for name in ("consumer", "receives", "reason", "to_queue", "result")
        if event.get(name)
    )
    return [
        (f"{event['time'][:23]}  ", "dim"),
        (f"{letter:<2}", STYLES.get(letter, "")),
        (f" {event['event']:<14} {event.get('queue') or ''}", ""),
        (f"  {more}", "dim"),
    ]
