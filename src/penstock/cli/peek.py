"""`penstock peek`: look at the messages of a queue, and touch nothing."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from penstock.cli import messages, output
from penstock.cli.session import Session, complete_queue, verb


@verb
def peek(
    session: Session,
    queue: Annotated[str, typer.Argument(help="The queue or channel.", autocompletion=complete_queue)],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many at most.")] = 10,
    state: Annotated[str | None, typer.Option(help="ready, delayed, leased, kept or damaged.")] = None,
    watch: output.Watch = None,
) -> None:
    """Look at the messages of a queue. None is taken, and no delivery is counted."""
    with session.client() as client:
        output.repeat(
            watch,
            lambda: messages.show(islice(client.search(queue=queue, state=state), count), session.as_json),
        )
