"""`penstock store`: the tables of a log in PostgreSQL, made and shown from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg

from tests.support.broker import Broker, StartBroker, refused_start
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
    made = penstock("store", "init", url).stdout
    assert made.splitlines()[0].startswith("The store is ready (version 5).")
    assert made.splitlines()[1].strip() == "penstock serve --store URL --data DIR"
    assert "initialised already; nothing was changed" in penstock("store", "init", url).stderr
    assert penstock("store", "upgrade", url).stdout == "The store had version 5; now it has version 5.\n"
    broker = start_broker(flags=("--store", url))
    broker.create_queue("work")
    shown = penstock("store", "status", url).stdout
    assert "a commit waits for this server's disk only" in shown
    assert "warning  synchronous_standby_names is empty" in shown
    *_, names, row = shown.splitlines()
    assert names.split()[:6] == ["shard", "owner", "address", "lease", "epoch", "batches"]
    assert row.split()[2:6] == ["127.0.0.1:0", row.split()[3], "s", "1"]
    (shard,) = json.loads(penstock("store", "status", url, "--json").stdout)["shards"]
    assert (shard["number"], shard["epoch"], shard["batches"], shard["parts"]) == (0, 1, 1, 1)


def test_a_store_has_as_many_shards_as_it_was_made_with_and_one_broker_does_not_serve_several(
    postgres: Postgres, tmp_path: Path
) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as session:
        session.execute("CREATE DATABASE several")
    url = postgres.url("several")
    assert penstock("store", "init", url, "--shards", "3").stdout.endswith(" --data DIR --advertise HOST:PORT\n")
    shown = json.loads(penstock("store", "status", url, "--json").stdout)
    assert [shard["number"] for shard in shown["shards"]] == [0, 1, 2]
    code, complaint = refused_start(tmp_path, flags=("--store", url))
    assert code == 1
    assert "the store has 3 shards, which brokers share: give each of them the address" in complaint


def test_a_log_is_moved_into_a_store_and_back_with_its_ids_and_objects(
    postgres: Postgres, start_broker: StartBroker, tmp_path: Path
) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as session:
        session.execute("CREATE DATABASE imported")
    url, settings = postgres.url("imported"), ("log.segment_bytes=65536", "log.snapshot_bytes=1048576")
    files = start_broker(*settings, data=tmp_path / "files")
    files.create_queue("work")
    ids = [publish(files, f"{number}" + "x" * 20_000) for number in range(10)]
    assert change(files, "a") == "Q"
    files.stop()
    done = penstock("store", "import", url, str(files.data))
    assert done.stdout.startswith("The store has everything before offset "), done
    assert penstock("store", "import", url, str(files.data)).returncode == 1  # It is a copy now.
    stored = start_broker(*settings, data=tmp_path / "empty", flags=("--store", url))
    assert [state(stored, each) for each in ids] == [200] * 10
    assert [change(stored, "a"), change(stored, "b")] == ["U", "Q"]
    ids.append(publish(stored, "later"))
    refused = penstock("store", "export", url, str(tmp_path / "early"))
    assert "is served by" in refused.stderr
    stored.stop()
    copy = start_broker(*settings, data=files.data, flags=("--store", url))
    assert [state(copy, each) for each in ids] == [200] * 11
    copy.stop()
    done = penstock("store", "export", url, str(tmp_path / "back"))
    assert "is a store of its own" in done.stdout, done
    back = start_broker(data=tmp_path / "back")
    assert [state(back, each) for each in ids] == [200] * 11
    assert change(back, "b") == "U"
    assert len(back.request("GET", "/v1/search?queue=work&limit=100").json()["messages"]) == 11


def test_a_store_that_was_used_takes_no_other_log(postgres: Postgres, start_broker: StartBroker) -> None:
    url = postgres.new_store()
    start_broker(flags=("--store", url)).stop()
    files = start_broker()
    files.stop()
    refused = penstock("store", "import", url, str(files.data))
    assert refused.stderr == (
        "penstock: the store has a log of its own already; import into a database without a store\n"
    )
    files.start()  # Nothing has changed.


def publish(broker: Broker, body: str) -> str:
    """The id of a message."""
    return str(published(broker, {"topics": ["work"], "message": body})["id"])


def published(broker: Broker, document: dict[str, Any]) -> dict[str, Any]:
    given = {"Content-Type": "application/json"}
    answer = broker.request("POST", "/v1/publish", given, json.dumps(document).encode())
    assert answer.status == 201, answer
    return dict(answer.json())


def state(broker: Broker, message: str) -> int:
    return broker.request("GET", f"/v1/messages/{message}").status


def change(broker: Broker, content: str) -> str:
    """Publish an object; was it queued (Q) or unchanged (U)?"""
    return str(published(broker, {"topics": ["things"], "object": "thing", "key": "1", "message": content})["state"])


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    refused = penstock("store", "status", "postgresql://me:secret@127.0.0.1:1/shop")
    assert refused.returncode == 1
    assert refused.stderr.startswith("penstock: cannot connect to postgresql://127.0.0.1:1/shop: ")
    assert "secret" not in refused.stderr
