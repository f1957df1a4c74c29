"""`penstock store`: make, upgrade and show the tables of a log in PostgreSQL, and move logs into it and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from penstock.storage.postgres.connection import Connection
    from penstock.storage.postgres.status import ShardState

app = typer.Typer(help="Make, upgrade and show the tables of a log in PostgreSQL.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(metavar="URL", help="postgresql://USER@HOST:PORT/DATABASE")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.", file_okay=False)]


@app.command()
def init(
    url: Url,
    shards: Annotated[int, typer.Option(help="How many shards the store has. It stays.")] = 1,
) -> None:
    """Make the tables. The database must exist; everything goes into its schema penstock."""
    from penstock.storage.postgres.schema import VERSION, initialise

    with connected(url) as connection:
        initialise(connection, shards)
    start = "penstock serve --store URL --data DIR" + (" --advertise HOST:PORT" if shards > 1 else "")
    print(f"The store is ready (version {VERSION}). Start a broker with it:\n  {start}")


@app.command()
def upgrade(url: Url) -> None:
    """Bring the tables to the version of this Penstock. Stop its brokers first."""
    from penstock.storage.postgres import schema

    with connected(url) as connection:
        before = schema.upgrade(connection)
    print(f"The store had version {before}; now it has version {max(before, schema.VERSION)}.")


@app.command()
def status(
    url: Url, as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False
) -> None:
    """Show the owner, the lease and the size of the log, and what a commit waits for."""
    from penstock.cli import output
    from penstock.storage.postgres.durability import read_durability
    from penstock.storage.postgres.schema import identity_of, version_of
    from penstock.storage.postgres.status import shards

    with connected(url) as connection:
        identity_of(connection)
        durability, version, found = read_durability(connection), version_of(connection), shards(connection)
    if as_json:
        rows = [shard._asdict() for shard in found]
        warnings = list(durability.warnings())
        output.emit({"version": version, "durability": str(durability), "warnings": warnings, "shards": rows})
        return
    print(f"version  {version}")
    print(f"commit   {durability}")
    for warning in durability.warnings():
        print(f"warning  {warning}")
    output.table(_COLUMNS, [_row(shard) for shard in found])


_COLUMNS = ("shard", "owner", "address", "lease", "epoch", "batches", "parts", "MiB", "snapshot at offset")


def _row(shard: ShardState) -> tuple[Any, ...]:
    lease = f"{shard.lease_seconds:.0f} s" if shard.is_owned else "over"
    owner = (shard.owner, shard.address, lease) if shard.owner else ("nobody", "", "")
    size = round(shard.bytes / (1 << 20), 1)
    return shard.number, *owner, shard.epoch, shard.batches, shard.parts, size, shard.snapshot


@app.command("import")
def import_(url: Url, directory: Directory) -> None:
    """Copy the logs of a data directory into a new store. Stop its broker first. Message ids stay valid."""
    from penstock.cli import output
    from penstock.storage.postgres.moving import import_store, log_paths

    with connected(url) as connection, output.counting("copying") as progress:
        progress.expect(sum(path.stat().st_size for path in log_paths(directory)))
        ends = import_store(connection, directory, progress.advance)
    has = f"everything before offset {ends[0].offset:,}" if len(ends) == 1 else f"all of the {len(ends)} shards"
    advertise = " --advertise HOST:PORT" if len(ends) > 1 else ""
    print(
        f"The store has {has}. {directory} is now a copy of it, and is not served without it:\n"
        f"  penstock serve --store URL --data {directory}{advertise}"
    )


@app.command()
def export(url: Url, directory: Directory) -> None:
    """Copy the logs of a store into a new data directory. Stop its brokers first. Message ids stay valid."""
    from penstock.cli import output
    from penstock.cli.store_export import export_store

    with output.counting("copying") as progress:
        ends = export_store(url, directory, progress)
    has = f"everything before offset {ends[0]:,}" if len(ends) == 1 else f"all of the {len(ends)} shards"
    workers = " --workers auto" if len(ends) > 1 else ""
    print(
        f"{directory} has {has}, and is a store of its own:\n  penstock serve --data {directory}{workers}\n"
        "The store in PostgreSQL was not changed. What is published to it from now on is not in the directory."
    )


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    from penstock.storage.postgres.connection import Connection

    with closing(Connection(url)) as connection:
        yield connection
