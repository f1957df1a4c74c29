"""`penstock schedules`: messages that the broker publishes again and again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.assignments import Settings, with_settings
from penstock.cli.exits import CommandError, Exit
from penstock.cli.session import Session, Yes, complete_queue, verb

if TYPE_CHECKING:
    from penstock.client.results import Schedule

app = typer.Typer(help="Publish messages by the calendar or at an interval.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the schedule.")]
_TIME = "%Y-%m-%d %H:%M:%S"


@app.command(name="list")
@verb
def list_(session: Session, watch: output.Watch = None) -> None:
    """List all schedules, with their last and next run."""
    with session.client() as client:
        output.repeat(watch, lambda: _show_all(session, client.schedules.list()))


def _show_all(session: Session, schedules: Iterable[Schedule]) -> None:
    if session.as_json:
        for schedule in schedules:
            output.emit(schedule)
        return
    output.table(
        ("name", "to", "when", "last run", "next run", "runs", "missed"),
        [
            (
                each.name,
                each.queue or each.topics,
                _when(each),
                f"{each.last_run:{_TIME}}" if each.last_run else None,
                "paused" if each.paused else f"{each.next_run:{_TIME}}" if each.next_run else None,
                each.runs,
                each.missed,
            )
            for each in schedules
        ],
    )


def _when(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {schedule.every:g} s"
    return f"{schedule.cron} {schedule.time_zone}".strip()


@app.command()
@verb
def show(session: Session, name: Name, watch: output.Watch = None) -> None:
    """Show a schedule."""
    with session.client() as client:
        output.repeat(watch, lambda: _show(session, client.schedules.get(name)))


def _show(session: Session, schedule: Schedule) -> None:
    if session.as_json:
        output.emit(schedule)
    else:
        found = {name: getattr(schedule, name) for name in schedule.__struct_fields__}
        output.facts({name: value for name, value in found.items() if value not in (None, "", (), {})})


@app.command()
@verb
def create(
    session: Session,
    name: Name,
    settings: Settings = None,
    queue: Annotated[str | None, typer.Option(help="The queue to publish to.", autocompletion=complete_queue)] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Or a topic. May be repeated.")] = None,
    message: Annotated[str, typer.Option(help="The message.")] = "",
    cron: Annotated[str | None, typer.Option(help="Five fields: '30 2 * * mon-fri'")] = None,
    zone: Annotated[str | None, typer.Option(help="Of the cron: Europe/Berlin")] = None,
    every: Annotated[float | None, typer.Option(min=1, help="Instead of --cron: seconds.")] = None,
) -> None:
    """Create a schedule, or replace one. Settings such as catch_up=all are listed in docs/schedules.md."""
    if (cron is None) == (every is None):
        raise CommandError("say when: --cron or --every", Exit.USAGE)
    given: dict[str, Any] = {"queue": queue, "topics": topic, "cron": cron, "time_zone": zone, "every": every}
    definition = {key: value for key, value in given.items() if value is not None}
    with session.client() as client:
        _show(session, with_settings(client.schedules.create, settings, name, message, **definition))


@app.command()
@verb
def change(session: Session, name: Name, settings: Settings = None) -> None:
    """Change a schedule: every=60, cron='0 8 * * *', message=…; what is not named stays."""
    with session.client() as client:
        _show(session, with_settings(client.schedules.change, settings, name))


@app.command()
@verb
def pause(session: Session, name: Name) -> None:
    """Publish nothing until it is resumed."""
    _pause(session, name, True)


@app.command()
@verb
def resume(session: Session, name: Name) -> None:
    """Go on after a pause."""
    _pause(session, name, False)


def _pause(session: Session, name: str, paused: bool) -> None:
    with session.client() as client:
        _show(session, client.schedules.change(name, paused=paused))


@app.command()
@verb
def run(session: Session, name: Name) -> None:
    """Publish its message now, out of turn, and print the id."""
    with session.client() as client:
        message = client.schedules.run(name)
    output.done(session.as_json, {"id": message}, message)


@app.command()
@verb
def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a schedule. The messages that it has published stay."""
    with session.client() as client:
        client.schedules.get(name)
        output.ask(f"Delete the schedule {name}?", yes)
        client.schedules.delete(name)
    output.done(session.as_json, {"removed": name}, f"{name} is deleted")
