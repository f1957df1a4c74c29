"""`penstock restore`: make a data directory from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError

if TYPE_CHECKING:
    from penstock.engine.engine import Engine


def restore(
    backup: Annotated[Path, typer.Argument(help="The directory of the backup.", exists=True, file_okay=False)],
    data: Annotated[Path, typer.Argument(help="The data directory to make: a new path, or an empty directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
) -> None:
    """Make a data directory from a backup, and check that a broker starts on it."""
    from penstock.cli.backup import facts
    from penstock.storage.backup.manifest import contents_of
    from penstock.storage.backup.restoring import restore_backup

    with output.counting("copying") as progress:
        progress.expect(contents_of(backup).bytes)
        contents = restore_backup(backup, data, progress.advance)
    pairs = zip(contents.folders(data), contents.shards, strict=True)
    restored = [facts(folder, shard) | {"queues": queue_rows(_checked(folder))} for folder, shard in pairs]
    if as_json:
        output.emit({"directory": str(data), "shards": restored} if contents.store else restored[0])
        return
    for found in restored:
        _print(found)
    print(f"Start a broker on it: penstock serve --data {data}")


def _print(found: dict[str, Any]) -> None:
    queues = found["queues"]
    output.table(("queue", "messages", "last sequence"), [tuple(queue.values()) for queue in queues])
    print(
        f"{found['directory']} holds everything before offset {found['offset']:,} ({found['time']}):"
        f" {len(queues):,} queues, {sum(queue['messages'] for queue in queues):,} messages."
    )


def _checked(data: Path) -> Engine:
    from penstock.cli.log.report import line
    from penstock.cli.log.state import examine
    from penstock.storage.directory import DataDirectory

    report, engine = examine(DataDirectory(data))
    for problem in report.problems:
        output.say(line(problem))
    if engine is None or not report.starts:
        raise CommandError(
            f"{data} is a copy of the backup, but a broker does not start on it: the log was damaged when the backup"
            f" was made. Restore an older backup, or run `penstock log salvage {data} OUT`"
        )
    return engine


def queue_rows(engine: Engine) -> list[dict[str, Any]]:
    return [
        {"name": queue.name, "messages": queue.rows.count, "last_sequence": queue.last_sequence}
        for queue in engine.queues.values()
    ]
