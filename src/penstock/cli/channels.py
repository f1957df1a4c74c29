"""`penstock channels`: queues that topics feed."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import output, queues
from penstock.cli.assignments import Settings, with_settings
from penstock.cli.session import Session, Yes, complete_queue, verb

app = typer.Typer(help="Create, change, empty and delete channels.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the channel.", autocompletion=complete_queue)]
Topics = Annotated[
    list[str], typer.Option("--topic", help="A topic, or the beginning of topics: fruit.* (repeat it)")
]


@app.command(name="list")
@verb
def list_(session: Session, watch: output.Watch = None) -> None:
    """List all channels, and how many messages are where."""
    with session.client() as client:
        output.repeat(watch, lambda: queues.show_all(session, client.channels.list(), ("topics",)))


@app.command()
@verb
def show(session: Session, name: Name, watch: output.Watch = None) -> None:
    """Show the settings of a channel, and how many messages are where."""
    with session.client() as client:
        output.repeat(watch, lambda: queues.show_one(session, client.channels.get(name)))


@app.command()
@verb
def create(session: Session, name: Name, topic: Topics, settings: Settings = None) -> None:
    """Create a channel: it gets a copy of every message with one of these topics."""
    with session.client() as client:
        queues.show_one(session, with_settings(client.channels.create, settings, name, topic))


@app.command()
@verb
def change(
    session: Session,
    name: Name,
    settings: Settings = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Its topics from now on.")] = None,
) -> None:
    """Change settings or topics of a channel; the others stay."""
    with session.client() as client:
        queues.show_one(session, with_settings(client.channels.change, settings, name, topic))


@app.command()
@verb
def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a channel with its messages."""
    with session.client() as client:
        queues.remove(session, "channel", client.channels, name, yes)


@app.command()
@verb
def purge(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete every message of a channel; the channel stays."""
    queues.purge_with_progress(session, name, yes)
