"""`penstock tail`: watch what happens to messages."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import messages, output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.letters import STYLES, WORDS
from penstock.cli.session import Session, complete_queue, verb

if TYPE_CHECKING:
    from penstock.client import Event


@verb
def tail(
    session: Session,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", help="Only this queue. May be repeated.", autocompletion=complete_queue),
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Only messages with this topic: fruit.*")] = None,
    state: Annotated[str | None, typer.Option(help="Only events with one of these letters, such as SXE.")] = None,
    text: Annotated[str | None, typer.Option(help="Only messages, as they arrive, whose body contains this.")] = None,
    start: Annotated[str, typer.Option("--from", help="now, earliest, or the offset of an event.")] = "now",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many.")] = None,
    follow: Annotated[bool, typer.Option(help="Go on with what happens next.")] = True,
    bodies: Annotated[bool, typer.Option(help="Show the beginning of each message.")] = True,
) -> None:
    """Show events as they happen, until Ctrl-C. With --from earliest also those before."""
    _check_letters(state or "")
    with session.client() as client:
        events = client.events(
            from_=start, queue=queue, topic=topic, state=state, text=text, bodies=bodies, follow=follow
        )
        for event in islice(events, count):
            if session.as_json:
                output.emit(messages.document(event))
            else:
                output.styled(*line(event))


def _check_letters(given: str) -> None:
    """Letters that no event has, or that are there twice, would be waited for in silence."""
    wrong = next((each for at, each in enumerate(given) if each not in WORDS or each in given[:at]), None)
    if wrong:
        known = ", ".join(f"{letter} {word}" for letter, word in WORDS.items())
        found = "twice" if wrong in WORDS else "but no event has it"
        raise CommandError(f"--state has {wrong}, {found}; letters are {known}", Exit.USAGE)


def line(event: Event) -> list[tuple[str, str]]:
    """One event: when, its letter, what happened, to which message, and details."""
    details = {"consumer": event.consumer, "receives": event.receives, "reason": event.reason, "to": event.to_queue}
    said = " ".join(f"{name}={value}" for name, value in details.items() if value)
    return [
        (f"{event.time:%H:%M:%S.%f}"[:12] + "  ", "dim"),
        (event.state, STYLES.get(event.state, "")),
        (f"  {event.event:<14} {event.queue or '':<16} {event.id}", ""),
        (f"  {said}" if said else "", "dim"),
        (f"  {messages.preview(event.body)}" if event.body else "", ""),
    ]
