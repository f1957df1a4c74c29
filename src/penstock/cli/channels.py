"""`penstock channels`: queues that topics feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output, queues
from penstock.cli.assignments import Settings, parsed
from penstock.cli.session import Session, Yes, verb

if TYPE_CHECKING:
    from penstock.client import Queue

app = typer.Typer(help="Make, change, empty and remove channels.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the channel.")]
Topics = Annotated[
    list[str], typer.Option("--topic", help="A topic, or the beginning of topics: fruit.* (repeat it)")
]


@app.command()
@verb
def ls(session: Session, watch: output.Watch = None) -> None:
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
def add(session: Session, name: Name, topic: Topics, settings: Settings = None) -> None:
    """Make a channel: it gets a copy of every message with one of these topics."""
    with session.client() as client:
        queues.show_one(session, client.channels.create(name, topic, **parsed(settings)))


@app.command(name="set")
@verb
def set_(
    session: Session,
    name: Name,
    settings: Settings = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Its topics from now on.")] = None,
) -> None:
    """Change settings or topics of a channel; the others stay."""
    with session.client() as client:
        now = client.channels.get(name)
        changed = _settings(now) | parsed(settings)
        queues.show_one(session, client.channels.create(name, topic or now.topics, **changed))


def _settings(channel: Queue) -> dict[str, Any]:
    """All that a channel is made with, but its topics. `detect_unchanged` is always true."""
    others = {"name", "status", "topics", "detect_unchanged"}
    return {name: getattr(channel, name) for name in channel.__struct_fields__ if name not in others}


@app.command()
@verb
def rm(session: Session, name: Name, yes: Yes = False) -> None:
    """Remove a channel with its messages."""
    with session.client() as client:
        queues.remove(session, "channel", client.channels, name, yes)


@app.command()
@verb
def purge(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete every message of a channel; the channel stays."""
    queues.purge_with_progress(session, name, yes)
