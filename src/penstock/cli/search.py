"""`penstock search`: find messages that queues hold."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from penstock.cli import messages
from penstock.cli.exits import Exit
from penstock.cli.session import Session, complete_queue, verb


@verb
def search(
    session: Session,
    text: Annotated[str | None, typer.Argument(help="What the message contains.")] = None,
    queue: Annotated[
        str | None, typer.Option(help="Only this queue or channel.", autocompletion=complete_queue)
    ] = None,
    topic: Annotated[str | None, typer.Option(help="A topic, or the beginning of one: fruit.*")] = None,
    state: Annotated[str | None, typer.Option(help="ready, delayed, leased, kept, damaged, or letters.")] = None,
    object_: Annotated[str | None, typer.Option("--object", help="What it is about.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of the object.")] = None,
    since: Annotated[str | None, typer.Option(help="Logged at this time or later: 2026-11-16T12:00:00Z")] = None,
    until: Annotated[str | None, typer.Option(help="Logged before this time.")] = None,
    ready_since: Annotated[
        str | None, typer.Option(help="Ready, or a dead letter, since this time or later.")
    ] = None,
    ready_until: Annotated[str | None, typer.Option(help="Ready, or a dead letter, since before this time.")] = None,
    origin: Annotated[str | None, typer.Option(help="Published to this queue, wherever it was moved.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why it is a dead letter; * stands for anything.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many at most.")] = 100,
) -> None:
    """Find messages that queues hold now. Exit code 4 if there are none."""
    with session.client() as client:
        found = client.search(
            queue=queue,
            topic=topic,
            state=state,
            object=object_,
            key=key,
            since=since,
            until=until,
            ready_since=ready_since,
            ready_until=ready_until,
            origin=origin,
            reason=reason,
            text=text,
        )
        if not messages.show(islice(found, count), session.as_json):
            raise typer.Exit(Exit.NOT_FOUND)
