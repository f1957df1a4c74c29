"""`penstock consumers`: who takes messages, and how fast."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.messages import duration
from penstock.cli.session import QueueName, Session, verb

if TYPE_CHECKING:
    from penstock.client.results import ConsumerState

COLUMNS = (
    "consumer",
    "queue",
    "time for one",
    "99 % within",
    "taken/min",
    "holds",
    "longest",
    "waits",
    "back/min",
    "fails/min",
)


class Order(StrEnum):
    """What consumers are sorted by."""

    TIME = "time"
    CONSUMER = "consumer"
    QUEUE = "queue"
    TAKEN = "taken"
    HOLDS = "leases"
    LONGEST = "oldest_lease"
    BACK = "retried"
    FAILS = "failed"


@verb
def consumers(
    session: Session,
    queue: QueueName = None,
    name: Annotated[
        str | None, typer.Option(help="Only those with this in their name, or that of their queue.")
    ] = None,
    sort: Annotated[Order, typer.Option(help="What comes first: the highest, or the first name.")] = Order.TIME,
    seconds: Annotated[float, typer.Option("--measure", min=0, help="Count for so long before showing.")] = 0.0,
    watch: output.Watch = None,
) -> None:
    """Show who takes messages: how long each takes for one, what it holds and since when, and what it gives back.

    The broker counts while somebody asks: --measure 10 or --watch tells more than the first look.
    """
    with session.client() as client:
        if seconds:
            client.consumers(queue, name=name, sort=sort)
            time.sleep(seconds)
        output.repeat(watch, lambda: _show(session, client.consumers(queue, name=name, sort=sort)))


def _show(session: Session, found: list[ConsumerState]) -> None:
    if session.as_json:
        for each in found:
            output.emit(each)
    else:
        output.table(COLUMNS, map(_row, found))


def _row(each: ConsumerState) -> tuple[Any, ...]:
    return (
        each.consumer or "(no name)",
        each.queue,
        duration(each.seconds_p50),
        duration(each.seconds_p99),
        round(each.taken_per_minute, 1),
        each.leases,
        duration(time.time() - each.oldest_lease) if each.oldest_lease else None,
        each.waiting,
        round(each.retried_per_minute, 1),
        round(each.failed_per_minute, 1),
    )
