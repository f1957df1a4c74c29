"""`penstock store`: the tables of a log in PostgreSQL, made and shown from the command line."""

from __future__ import annotations

import psycopg

from tests.support.broker import StartBroker
from tests.support.command_line import penstock
from tests.support.postgres import Postgres


def test_a_store_is_made_once_and_shown(postgres: Postgres, start_broker: StartBroker) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as session:
        session.execute("CREATE DATABASE made_by_hand")
    url = postgres.url("made_by_hand")
    refused = penstock("store", "status", url)
    assert (refused.returncode, refused.stderr) == (
        1,
        "penstock: the database has no store; run: penstock store init URL\n",
    )
    assert penstock("store", "init", url).stdout.startswith("The store is ready (version 1).")
    assert "initialised already; nothing was changed" in penstock("store", "init", url).stderr
    assert penstock("store", "upgrade", url).stdout == "The store had version 1; now it has version 1.\n"
    broker = start_broker(flags=("--store", url))
    broker.create_queue("work")
    shown = penstock("store", "status", url).stdout
    assert "a commit waits for this server's disk only" in shown
    assert "warning  synchronous_standby_names is empty" in shown
    assert " at 127.0.0.1:0 (for " in shown
    assert ", epoch 1, 1 batches in 1 parts, " in shown


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    refused = penstock("store", "status", "postgresql://me:secret@127.0.0.1:1/shop")
    assert refused.returncode == 1
    assert refused.stderr.startswith("penstock: cannot connect to postgresql://127.0.0.1:1/shop: ")
    assert "secret" not in refused.stderr
