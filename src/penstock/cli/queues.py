"""`penstock queues`: create, change, empty and delete queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.assignments import Settings, texts, with_settings
from penstock.cli.jobs import run_with_progress
from penstock.cli.messages import duration
from penstock.cli.session import Session, Yes, complete_queue, verb
from penstock.renamed import SETTINGS, with_old_names

if TYPE_CHECKING:
    from penstock.client import Queue
    from penstock.client.blocking import Channels, Queues

app = typer.Typer(help="Create, change, empty and delete queues.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the queue.", autocompletion=complete_queue)]
_COUNTS = ("messages", "ready", "leased", "delayed", "kept", "damaged")


@app.command(name="list")
@verb
def list_(session: Session, watch: output.Watch = None) -> None:
    """List all queues, and how many messages are where. Channels are queues too."""
    with session.client() as client:
        output.repeat(watch, lambda: show_all(session, client.queues.list()))


def show_all(session: Session, queues: Iterable[Queue], columns: tuple[str, ...] = ()) -> None:
    """A table of queues or channels, or one JSON document a line."""
    if session.as_json:
        for queue in queues:
            output.emit(_document(queue))
        return
    output.table(
        ("name", *_COUNTS, "oldest", "ever", *columns),
        [
            (
                queue.name,
                *(getattr(queue.status, name) for name in _COUNTS),
                duration(queue.status.oldest_message_age),
                queue.status.last_sequence,
                *(getattr(queue, name) for name in columns),
            )
            for queue in queues
        ],
    )


@app.command()
@verb
def show(session: Session, name: Name, watch: output.Watch = None) -> None:
    """Show the settings of a queue, and how many messages are where."""
    with session.client() as client:
        output.repeat(watch, lambda: show_one(session, client.queues.get(name)))


def _document(queue: Queue) -> dict[str, Any]:
    return with_old_names(SETTINGS, {name: getattr(queue, name) for name in queue.__struct_fields__})


def show_one(session: Session, queue: Queue) -> None:
    """One queue or channel."""
    if session.as_json:
        output.emit(_document(queue))
        return
    others = {"status"} if queue.is_channel else {"status", "topics", "confirm", "push"}
    settings: dict[str, Any] = {name: getattr(queue, name) for name in queue.__struct_fields__ if name not in others}
    counts = {name: getattr(queue.status, name) for name in (*_COUNTS, "last_sequence")}
    output.facts(settings | counts | {"oldest_message": duration(queue.status.oldest_message_age)})


@app.command()
@verb
def create(session: Session, name: Name, settings: Settings = None) -> None:
    """Create a queue. It is no error if it is there with these very settings."""
    with session.client() as client:
        show_one(session, with_settings(client.queues.create, settings, name))


@app.command()
@verb
def change(session: Session, name: Name, settings: Settings = None) -> None:
    """Change settings of a queue; the others stay."""
    with session.client() as client:
        show_one(session, with_settings(client.queues.change, settings, name))


@app.command()
@verb
def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a queue with its messages."""
    with session.client() as client:
        remove(session, "queue", client.queues, name, yes)


def remove(session: Session, what: str, among: Queues | Channels, name: str, yes: bool) -> None:
    """Delete a queue or channel with its messages."""
    count = among.get(name).status.messages
    output.ask(f"Delete the {what} {name} with {count:,} messages?", yes)
    among.delete(name)
    output.done(session.as_json, {"removed": name, "messages": count}, f"{name} is deleted with {count:,} messages")


@app.command()
@verb
def purge(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete every message of a queue; the queue stays."""
    purge_with_progress(session, name, yes)


def purge_with_progress(session: Session, name: str, yes: bool) -> None:
    """Delete every message of a queue or channel."""
    with session.client() as client:
        count = client.queues.get(name).status.messages
        output.ask(f"Delete {count:,} messages of {name}?", yes)
        job = run_with_progress(client, name, "deleting", lambda: client.queues.purge(name))
    output.done(session.as_json, job, f"{job.deleted:,} messages deleted")


@app.command()
@verb
def redrive(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            help="The queue to take messages from, such as a dead-letter queue.", autocompletion=complete_queue
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(help="The queue to move them to [default: where each came from]", autocompletion=complete_queue),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME=VALUE",
            help="Which, as text: id, topic, state, object, key, origin, reason, text, since, until, ready_since,"
            " ready_until.",
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Messages a second at most.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
) -> None:
    """Move messages out of a dead-letter queue, or any other."""
    with session.client() as client:
        wanted = texts(filters) or None
        job = run_with_progress(
            *(client, name, "moving"),
            lambda: client.redrive(name, to, filter=wanted, rate=rate, dry_run=dry_run),
        )
    found = f"{job.matched:,} messages match" if dry_run else f"{job.moved:,} of {job.matched:,} messages moved"
    output.done(session.as_json, job, found)
