"""`penstock workers`: the workers of tasks that have reported, and those that are missing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.messages import duration
from penstock.cli.session import Session, verb

if TYPE_CHECKING:
    from penstock.client.results import WorkerState

app = typer.Typer(help="Show the workers of tasks, and those that are missing.", no_args_is_help=True)

COLUMNS = ("worker", "state", "runs", "of", "heard", "there for", "queues")


@app.command(name="list")
@verb
def list_(session: Session, watch: output.Watch = None) -> None:
    """List the workers that have reported in the last day, the one that was heard longest ago first."""
    with session.client() as client:
        output.repeat(watch, lambda: _show(session, client.workers.list()))


def _show(session: Session, workers: list[WorkerState]) -> None:
    if session.as_json:
        for each in workers:
            output.emit(each)
        return
    now = time.time()
    output.table(
        COLUMNS,
        [
            (
                each.name,
                "missing" if each.missing else "working",
                each.running,
                each.concurrency,
                f"{duration(now - each.heard)} ago",
                duration(now - each.since),
                each.queues,
            )
            for each in workers
        ],
    )


@app.command()
@verb
def delete(session: Session, name: Annotated[str, typer.Argument(help="The name of the worker.")]) -> None:
    """Forget a worker that is missing and will not come back."""
    with session.client() as client:
        client.workers.delete(name)
    output.done(session.as_json, {"removed": name}, f"{name} is forgotten")
