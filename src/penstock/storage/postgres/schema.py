"""The tables of a store, and how an older store becomes one of this version.

The tables that grow are not here: each part of a log and each snapshot has a table of its own, so that dropping one
gives its space back at once.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from penstock.decoding import decode_json
from penstock.errors import StoreError
from penstock.limits import SHARD_MAX
from penstock.storage.directory import Identity, new_identity
from penstock.storage.postgres.connection import Connection

_FIRST = """
CREATE SCHEMA penstock;
CREATE TABLE penstock.store (version int NOT NULL, identity text NOT NULL);
CREATE TABLE penstock.shard (
    id int PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 0,
    owner text,
    address text,
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    last_batch bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
CREATE TABLE penstock.part (
    shard int REFERENCES penstock.shard,
    base_offset bigint,
    base_position bigint NOT NULL,
    created bigint NOT NULL,
    first_batch bigint NOT NULL,
    end_position bigint,
    PRIMARY KEY (shard, base_offset)
);
CREATE TABLE penstock.snapshot (
    shard int REFERENCES penstock.shard,
    base_offset bigint,
    epoch bigint,
    bytes bigint NOT NULL,
    counts boolean NOT NULL DEFAULT false,
    PRIMARY KEY (shard, base_offset, epoch)
);
"""
_SECOND = """
ALTER TABLE penstock.shard ADD identity text;
CREATE TABLE penstock.elsewhere (queue text PRIMARY KEY, shard int NOT NULL REFERENCES penstock.shard);
"""
_THIRD = """
ALTER TABLE penstock.shard ADD pinned text;
CREATE TABLE penstock.node (
    name text PRIMARY KEY,
    address text NOT NULL,
    seen timestamptz NOT NULL,
    lease_seconds float NOT NULL,
    is_draining boolean NOT NULL DEFAULT false
);
"""
_FOURTH = """
ALTER TABLE penstock.node ADD number int UNIQUE, ADD links text NOT NULL DEFAULT '';
UPDATE penstock.node SET number = counted.number
FROM (SELECT name, row_number() OVER (ORDER BY name) - 1 AS number FROM penstock.node) AS counted
WHERE node.name = counted.name;
ALTER TABLE penstock.node ALTER number SET NOT NULL
"""
_FIFTH = "ALTER TABLE penstock.shard ADD lag_seconds float"
MIGRATIONS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH)  # The n-th makes version n of the one before it.
VERSION = len(MIGRATIONS)
_ANEW = "to begin anew, drop the schema penstock of the database"


def initialise(connection: Connection, shards: int = 1) -> None:
    """Make the tables, with this many shards. The number stays."""
    if not 1 <= shards <= SHARD_MAX + 1:
        raise StoreError(f"a store has 1 to {SHARD_MAX + 1} shards, not {shards}")
    if version_of(connection):
        raise StoreError("the store is initialised already; nothing was changed")
    with connection.transaction():
        for migration in MIGRATIONS:
            _run(connection, migration)
        identity = replace(new_identity(), shards=shards)
        connection.execute("INSERT INTO penstock.store VALUES (%s, %s)", (VERSION, _encoded(identity)))
        connection.execute("INSERT INTO penstock.shard (id) SELECT generate_series(0, %s - 1)", (shards,))


def upgrade(connection: Connection) -> int:
    """Bring the tables to this version. Returns the version they had."""
    with connection.transaction():
        found = _existing(connection)
        for migration in MIGRATIONS[found:]:
            _run(connection, migration)
        connection.execute("UPDATE penstock.store SET version = %s", (max(found, VERSION),))
    return found


def identity_of(connection: Connection, shard: int = 0) -> Identity:
    """The identity of a shard. Raises `StoreError` unless the store has it, and this version."""
    found = _existing(connection)
    if found != VERSION:
        remedy = "run: penstock store upgrade URL" if found < VERSION else "use a newer Penstock"
        raise StoreError(f"the store has version {found}, and this Penstock needs version {VERSION}; {remedy}")
    row = connection.row(
        "SELECT store.identity, shard.identity FROM penstock.store, penstock.shard WHERE id = %s", (shard,)
    )
    if row is None:
        raise StoreError(f"the store has no shard {shard}")
    of_store, of_shard = row
    if of_shard:
        return decode_json(of_shard, Identity)
    return replace(decode_json(of_store, Identity), shard=shard)


def begin_import(connection: Connection, identities: list[Identity], elsewhere: dict[str, int]) -> None:
    """Make or take a store that was never used, for logs with these identities, one a shard. Until `end_import`, it
    has no version that a broker could use. If an import of the same logs was begun before, it goes on."""
    with connection.transaction():
        if not version_of(connection):
            initialise(connection, len(identities))
        connection.execute("LOCK TABLE penstock.shard IN EXCLUSIVE MODE")
        if version_of(connection) < 0:
            _check_begun(connection, identities[0])
            return
        _check_unused(connection, identities)
        facts = (-VERSION, _encoded(replace(identities[0], ancestors=[])))
        connection.execute("UPDATE penstock.store SET version = %s, identity = %s", facts)
        for queue, shard in elsewhere.items():
            connection.execute("INSERT INTO penstock.elsewhere VALUES (%s, %s)", (queue, shard))


def end_import(connection: Connection) -> None:
    """Let brokers use the store."""
    connection.execute("UPDATE penstock.store SET version = %s", (VERSION,))


def imported(connection: Connection, shard: int) -> Identity | None:
    """The identity of the log that a shard was given."""
    (found,) = connection.row("SELECT identity FROM penstock.shard WHERE id = %s", (shard,)) or (None,)
    return decode_json(found, Identity) if found else None


def _check_begun(connection: Connection, identity: Identity) -> None:
    (found,) = connection.row("SELECT identity FROM penstock.store") or ("",)
    begun = decode_json(found, Identity)
    if (begun.id_key, begun.shards) != (identity.id_key, identity.shards):
        raise StoreError(f"the import of another directory into the store has not ended; {_ANEW}")


def _check_unused(connection: Connection, identities: list[Identity]) -> None:
    shards = identity_of(connection).shards
    if shards != len(identities):
        raise StoreError(
            f"the store has {shards} shards and the directory has {len(identities)}; import into a database without"
            " a store"
        )
    if imported(connection, 0) == identities[0]:
        raise StoreError("the store has this log already; start a broker with it: penstock serve --store URL")
    if connection.row("SELECT 1 FROM penstock.shard WHERE epoch > 0 OR identity IS NOT NULL LIMIT 1"):
        raise StoreError("the store has a log of its own already; import into a database without a store")


def set_identity(connection: Connection, identity: Identity) -> None:
    """Give a shard the identity of a log that was made elsewhere."""
    facts = (_encoded(identity), identity.shard)
    connection.execute("UPDATE penstock.shard SET identity = %s WHERE id = %s", facts)


def _encoded(identity: Identity) -> str:
    return msgspec.json.encode(identity).decode()


def version_of(connection: Connection) -> int:
    """The version of the store; 0 if it is not initialised, negative while logs are imported."""
    if connection.row("SELECT to_regclass('penstock.store') IS NULL") == (True,):
        return 0
    (found,) = connection.row("SELECT version FROM penstock.store") or (0,)
    return int(found)


def _existing(connection: Connection) -> int:
    found = version_of(connection)
    if not found:
        raise StoreError("the database has no store; run: penstock store init URL")
    if found < 0:
        raise StoreError(
            f"an import into the store has not ended; run it again: penstock store import URL DIR; {_ANEW}"
        )
    return found


def _run(connection: Connection, migration: str) -> None:
    for statement in migration.split(";"):
        if statement.strip():
            connection.execute(statement)
