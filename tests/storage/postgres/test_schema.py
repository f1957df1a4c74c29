"""The tables of a store: made once, of one version, and refused otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from penstock.errors import StoreError
from penstock.storage.postgres.connection import Connection, display
from penstock.storage.postgres.durability import Durability
from penstock.storage.postgres.schema import MIGRATIONS, VERSION, identity_of, initialise, upgrade, version_of
from tests.support.postgres import Postgres


@pytest.fixture
def connection(postgres: Postgres) -> Iterator[Connection]:
    with closing(Connection(postgres.new_store())) as made:
        yield made


def test_a_store_keeps_its_identity_and_is_not_made_twice(connection: Connection) -> None:
    identity = identity_of(connection)
    with pytest.raises(StoreError, match="initialised already"):
        initialise(connection)
    assert identity_of(connection) == identity
    assert upgrade(connection) == version_of(connection) == VERSION


def test_a_store_of_another_version_is_refused(connection: Connection) -> None:
    connection.execute("UPDATE penstock.store SET version = 99")
    with pytest.raises(StoreError, match="has version 99, and this Penstock needs"):
        identity_of(connection)


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_older_store_is_refused_until_it_is_upgraded_and_has_the_same_tables_then(
    connection: Connection, version: int
) -> None:
    identity, columns = identity_of(connection), columns_of(connection)
    connection.execute("DROP SCHEMA penstock CASCADE")
    for migration in MIGRATIONS[:version]:
        for statement in filter(str.strip, migration.split(";")):
            connection.execute(statement)
    text = msgspec.json.encode(identity).decode()
    connection.execute("INSERT INTO penstock.store VALUES (%s, %s)", (version, text))
    connection.execute("INSERT INTO penstock.shard (id) VALUES (0)")
    with pytest.raises(StoreError, match="run: penstock store upgrade URL"):
        identity_of(connection)
    assert upgrade(connection) == version
    assert identity_of(connection) == identity
    assert columns_of(connection) == columns


def columns_of(connection: Connection) -> list[tuple[object, ...]]:
    return connection.rows(
        "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns"
        " WHERE table_schema = 'penstock' ORDER BY 1, ordinal_position"
    )


def test_a_database_without_a_store_is_refused_with_the_command_that_makes_one(connection: Connection) -> None:
    connection.execute("DROP SCHEMA penstock CASCADE")
    assert version_of(connection) == 0
    with pytest.raises(StoreError, match="run: penstock store init"):
        identity_of(connection)


def test_commits_wait_for_the_disk_whatever_the_default_is(postgres: Postgres) -> None:
    with closing(Connection(postgres.url() + "?options=-csynchronous_commit%3Doff")) as connection:
        assert connection.row("SHOW synchronous_commit") == ("on",)


def test_a_password_is_not_shown() -> None:
    assert display("postgresql://me:secret@db.example/shop") == "postgresql://db.example:5432/shop"


def test_settings_that_can_lose_messages_are_named() -> None:
    safe = Durability("on", "on", "on", "ANY 1 (a, b)", False, 2)
    assert not list(safe.warnings())
    assert len(list(Durability("off", "off", "on", "", True, 0).warnings())) == 4
