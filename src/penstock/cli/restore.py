"""`penstock restore`: make a data directory from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError
from penstock.cli.shards import check_empty, shards_in

if TYPE_CHECKING:
    from penstock.engine.engine import Engine


def restore(
    backup: Annotated[Path, typer.Argument(help="The directory of the backup.", exists=True, file_okay=False)],
    data: Annotated[Path, typer.Argument(help="The data directory to make: a new path, or an empty directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
) -> None:
    """Make a data directory from a backup, and check that a broker starts on it."""
    from penstock.storage.shards import shard_directory, write_shards

    stored = shards_in(backup)
    if stored is None:
        restored = [_restored(backup, data)]
    else:
        check_empty(data)
        pairs = [
            (shard_directory(backup, each).path, shard_directory(data, each).path) for each in range(stored.shards)
        ]
        restored = [_restored(*pair) for pair in pairs]
        write_shards(data, stored)
    if as_json:
        output.emit(restored[0] if stored is None else {"directory": str(data), "shards": restored})
        return
    for found in restored:
        _print(found)
    if stored is None:
        print(f"Start a broker on it: penstock serve --data {data}")


def _restored(backup: Path, data: Path) -> dict[str, Any]:
    from penstock.cli.backup import facts
    from penstock.storage.backup.manifest import manifest_of
    from penstock.storage.backup.restoring import restore_backup

    with output.counting("copying") as progress:
        progress.expect(manifest_of(backup).bytes)
        manifest = restore_backup(backup, data, progress.advance)
    return facts(backup, manifest) | {"directory": str(data), "queues": queue_rows(_checked(data))}


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
