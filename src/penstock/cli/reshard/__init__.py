"""`penstock reshard`: move a store with one shard to several, while no broker serves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output

if TYPE_CHECKING:
    from penstock.cli.reshard.making import Resharded


def reshard(
    directory: Annotated[Path, typer.Argument(help="The data directory.", exists=True, file_okay=False)],
    shards: Annotated[int, typer.Option("--shards", min=2, max=4096, help="How many shards it will have.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="Make the shards in this new directory, and leave the old one alone.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
) -> None:
    """Move a store with one shard to several. Stop its broker first. Message ids stay valid."""
    from penstock.cli.reshard.making import reshard

    with output.counting("moving", "messages") as progress:
        moved = reshard(directory, shards, to, progress)
    if as_json:
        output.emit(moved)
    else:
        _print(moved)


def _print(moved: Resharded) -> None:
    from penstock.storage.resharding import Attempt

    if moved.earlier is Attempt.MADE:
        left = "What an earlier run left of the old log, if anything, is removed."
        print(f"{moved.directory} has these shards already. {left}")
        return
    if moved.earlier is Attempt.UNFINISHED:
        output.say("An earlier run was cut off. What it left was removed, and everything was done anew.")
    rows = [(each.shard, each.queues, each.messages, each.bytes) for each in moved.shards]
    output.table(("shard", "queues", "messages", "bytes"), rows)
    queues, messages = sum(row[1] for row in rows), sum(row[2] for row in rows)
    print(
        f"{moved.directory} has {len(rows)} shards: {queues:,} queues, {messages:,} messages."
        f" Shard 0 has the events before offset {moved.offset:,}; each shard goes on from there."
    )
