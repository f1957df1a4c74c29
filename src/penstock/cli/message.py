"""`penstock message`: the life of one message."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.letters import STYLES
from penstock.cli.session import Session, verb

_FACTS = ("state", "status", "topics", "object", "key", "mimeType", "sender", "priority", "receives")


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
    body = document.get("message", document.get("message_base64"))
    known = {name: document[name] for name in _FACTS if document.get(name)}
    output.facts(_places(document) | known | {"message": body if isinstance(body, str) else output.json_text(body)})
    reasons = _reasons(document)
    for at, event in enumerate(document["events"]):
        output.styled(*_line(event | {"reason": reasons.get(at)}))
    if not document["complete"]:
        output.say("Some of its events are past the retention of the Event Log, or damaged.")


def _places(document: dict[str, Any]) -> dict[str, Any]:
    """Where it is now, or was last, and where it came from if that is another queue."""
    queued = [place for place in document["places"] if place["queued"]]
    there = [place["queue"] for place in queued or document["places"][-1:]] or [document["queue"]]
    came_from = {} if document["queue"] in there else {"came from": document["queue"]}
    return {"id": document["id"], "queue" if queued else "was in": there, **came_from}


def _reasons(document: dict[str, Any]) -> dict[int, str]:
    """Why, by the number of an event. The end of a delivery has the reason that the consumer gave with it."""
    events = document["events"]
    given = {at: event["reason"] for at, event in enumerate(events) if event.get("reason")}
    last = next((each["reason"] for each in reversed(document["consumed"]) if each.get("reason")), None)
    failures = [at for at, event in enumerate(events) if event["state"] == "E" and event.get("to_queue")]
    return ({failures[-1]: last} if failures and last else {}) | given


def _line(event: dict[str, Any]) -> list[tuple[str, str]]:
    letter = event["state"]
    more = " ".join(
        f"{name}={_quoted(event[name])}"
        for name in ("consumer", "receives", "to_queue", "reason", "result")
        if event.get(name)
    )
    return [
        (f"{event['time'][:23]}  ", "dim"),
        (f"{letter:<2}", STYLES.get(letter, "")),
        (f" {event['event']:<14} {event.get('queue') or ''}", ""),
        (f"  {more}", "dim"),
    ]


def _quoted(value: Any) -> str:
    """Text of several words, or lines, and documents as JSON has them, so that a line stays one."""
    return output.json_text(value) if not isinstance(value, str | int) or " " in str(value) else str(value)
