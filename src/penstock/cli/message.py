"""`penstock message`: the life of one message, and what can be done with some."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.letters import STYLES
from penstock.cli.session import Session, Yes, complete_queue, verb
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client import Client, Found

_FACTS = ("state", "status", "topics", "object", "key", "mimeType", "sender", "priority", "receives")


app = typer.Typer(help="Show what happened to a message, delete some, or send them back.", no_args_is_help=True)

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of the messages.")]


@app.command()
@verb
def show(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    watch: output.Watch = None,
) -> None:
    """Show a message and everything that happened to it, also if it is gone. `penstock message ID` does the same."""
    with session.client() as client:
        output.repeat(watch, lambda: _show(session, client.message(name)))


@app.command()
@verb
def delete(session: Session, ids: Ids, yes: Yes = False) -> None:
    """Delete messages that no consumer holds."""
    with session.client() as client:
        found = _found(client, ids)
        output.ask(f"Delete {_number(len(found))}?", yes)
        kept: dict[str, str] = {}
        for each in found:
            try:
                client.delete_message(each.id)
            except PenstockError as error:
                kept[each.id] = str(error)
    count = len(found) - len(kept)
    output.done(session.as_json, {"removed": count, "kept": kept}, f"{_number(count)} deleted")
    if kept:
        raise CommandError(f"{_number(len(kept))} not deleted: {next(iter(kept.values()))}", Exit.REFUSED)


@app.command()
@verb
def redrive(
    session: Session,
    ids: Ids,
    to: Annotated[
        str | None,
        typer.Option(help="The queue to move them to [default: where each came from]", autocompletion=complete_queue),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
) -> None:
    """Send dead letters back to where they came from, or move any messages to another queue."""
    with session.client() as client:
        jobs = [
            client.redrive(queue, to, filter={"id": ",".join(each.id for each in some)}, dry_run=dry_run)
            for queue, some in groupby(_found(client, ids), lambda each: each.queue)
        ]
    matched, moved = sum(job.matched for job in jobs), sum(job.moved for job in jobs)
    words = f"{_number(matched)} can be moved" if dry_run else f"{moved:,} of {_number(matched)} moved"
    output.done(session.as_json, {"matched": matched, "moved": moved, "dry_run": dry_run}, words)


def _found(client: Client, ids: list[str]) -> list[Found]:
    """Those that are in a queue, by their queues. It is an error if none is."""
    found = sorted(client.search(id=ids, bodies=False), key=lambda each: each.queue)
    if not found:
        raise CommandError(
            "no queue has a message with this id; penstock message ID tells what became of it", Exit.NOT_FOUND
        )
    return found


def _number(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


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
