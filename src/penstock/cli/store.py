"""`penstock store`: make, upgrade and show the tables of a log in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.storage.postgres.connection import Connection

app = typer.Typer(help="Make, upgrade and show the tables of a log in PostgreSQL.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(metavar="URL", help="postgresql://USER@HOST:PORT/DATABASE")]


@app.command()
def init(url: Url) -> None:
    """Make the tables. The database must exist; everything goes into its schema penstock."""
    from penstock.storage.postgres.schema import VERSION, initialise

    with _connected(url) as connection:
        initialise(connection)
    print(f"The store is ready (version {VERSION}). Start a broker with it:\n  penstock serve --store URL --data DIR")


@app.command()
def upgrade(url: Url) -> None:
    """Bring the tables to the version of this Penstock. Stop its brokers first."""
    from penstock.storage.postgres import schema

    with _connected(url) as connection:
        before = schema.upgrade(connection)
    print(f"The store had version {before}; now it has version {max(before, schema.VERSION)}.")


@app.command()
def status(url: Url) -> None:
    """Show the owner, the lease and the size of the log, and what a commit waits for."""
    from penstock.storage.postgres.durability import read_durability
    from penstock.storage.postgres.schema import identity_of, version_of
    from penstock.storage.postgres.status import shards

    with _connected(url) as connection:
        identity_of(connection)
        durability = read_durability(connection)
        print(f"version  {version_of(connection)}")
        print(f"commit   {durability}")
        for warning in durability.warnings():
            print(f"warning  {warning}")
        for shard in shards(connection):
            print(f"shard    {shard}")


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    from penstock.storage.postgres.connection import Connection

    with closing(Connection(url)) as connection:
        yield connection
