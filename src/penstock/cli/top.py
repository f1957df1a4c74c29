"""`penstock top`: queues as they fill and empty."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.messages import duration
from penstock.cli.session import Session, verb

if TYPE_CHECKING:
    from penstock.client import Client, Queue

COLUMNS = ("queue", "in/s", "out/s", "messages", "ready", "leased", "delayed", "oldest", "why")
_NO_REASONS: Mapping[str, str] = MappingProxyType({})


class Rate(NamedTuple):
    """A queue, how many messages entered and left it a second, and why it needs a person, if it does."""

    queue: Queue
    entered: float
    left: float
    why: str = ""


@verb
def top(
    session: Session,
    seconds: Annotated[float, typer.Option("--every", min=0.1, help="Seconds from look to look.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one look more, and end.")] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many queues at most.")] = 40,
) -> None:
    """Show the busiest queues, live. Press q to quit."""
    if not (once or session.as_json or sys.stdout.isatty()):
        raise CommandError("this is not a terminal; add --once or --json", Exit.USAGE)
    with session.client() as client:
        looks = _looks(client, seconds)
        if session.as_json:
            _stream(looks, count, once)
        elif once:
            output.table(COLUMNS, [row(rate) for rate in next(looks)[:count]])
        else:
            _live(session.target.url.text, looks, count)


def _looks(client: Client, seconds: float) -> Iterator[list[Rate]]:
    """Rates, from one look to the next. Between two of them a key may end it."""
    before, at = client.queues.list(), time.monotonic()
    while not _quit_pressed(seconds):
        now, then = client.queues.list(), time.monotonic()
        yield rates(before, now, then - at, {trouble.queue: trouble.text for trouble in client.troubles()})
        before, at = now, then


def rates(before: list[Queue], now: list[Queue], seconds: float, why: Mapping[str, str] = _NO_REASONS) -> list[Rate]:
    """The busiest queues first, then the fullest. `why`: the reasons of those that need a person."""
    known = {queue.name: queue for queue in before}
    found = [
        Rate(
            queue,
            (entered(queue) - entered(old)) / seconds,
            (left(queue) - left(old)) / seconds,
            why.get(queue.name, ""),
        )
        for queue in now
        for old in (known.get(queue.name, queue),)
    ]
    return sorted(found, key=lambda rate: (-(rate.entered + rate.left), -rate.queue.status.messages))


def entered(queue: Queue) -> int:
    return queue.status.last_sequence


def left(queue: Queue) -> int:
    return queue.status.last_sequence - queue.status.messages


def row(rate: Rate) -> tuple[Any, ...]:
    """A queue in the table."""
    status = rate.queue.status
    counts = (status.messages, status.ready, status.leased, status.delayed)
    return (
        rate.queue.name,
        round(rate.entered),
        round(rate.left),
        *counts,
        duration(status.oldest_message_age),
        rate.why,
    )


def _stream(looks: Iterator[list[Rate]], count: int, once: bool) -> None:
    for found in looks:
        output.emit([dict(zip(COLUMNS, row(rate), strict=True)) for rate in found[:count]])
        if once:
            return


def _live(url: str, looks: Iterator[list[Rate]], count: int) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    numbers = [False] + [True] * 6 + [False, False]
    waiting = Text(f"{url}   looking …", style="dim")
    with _keys(), Live(waiting, console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        for found in looks:
            rows = [list(row(rate)) for rate in found[: min(count, live.console.height - 5)]]
            table = output.drawn(COLUMNS, rows, numbers)
            table.title = f"{url}   {len(found)} queues   q quits"
            live.update(table, refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Keys arrive one by one, and are not shown."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quit_pressed(seconds: float) -> bool:
    """Wait for the next look, or until q is pressed."""
    end = time.monotonic() + seconds
    while sys.stdin.isatty() and (left := end - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    time.sleep(max(0.0, end - time.monotonic()))
    return False
