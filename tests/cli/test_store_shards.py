"""A store with several shards is moved from a data directory into PostgreSQL and back, and goes on there."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from penstock.cli.reshard.making import reshard
from penstock.pipeline.source.files import FileLog
from penstock.storage.backup.making import Progress
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.moving import import_store
from penstock.storage.postgres.schema import imported
from penstock.storage.shards import read_shards, shard_directory
from tests.cli.reshard.test_served import QUEUES, SHARDS, ask, fill, timeless, without_place
from tests.support.broker import Broker, StartBroker, refused_start
from tests.support.command_line import penstock
from tests.support.nodes import is_balanced, node_on, serves_all, until
from tests.support.postgres import Postgres

WORKERS = ("--workers", "2")


class CutOffError(Exception):
    pass


def test_everything_is_the_same_in_postgresql_and_back_in_files(
    postgres: Postgres, start_broker: StartBroker, tmp_path: Path
) -> None:
    url, data = postgres.new_database(), tmp_path / "data"
    small = ("log.segment_bytes=65536",)
    broker = start_broker(*small, data=data)
    ids = fill(partial(ask, broker))
    channel = {"topics": ["orders.*"]}
    assert ask(broker, "PUT", "/v1/channels/copies", channel).status == 201
    broker.stop()
    reshard(data, SHARDS, None, Progress())
    workers = start_broker(*small, data=data, flags=WORKERS)
    ids += [ask(workers, "POST", "/v1/publish", {"message": "1", "topics": ["orders.1"]}).json()["id"]]
    until(lambda: ask(workers, "GET", "/v1/search?queue=copies").json()["messages"] != [])
    documents = {each: ask(workers, "GET", f"/v1/messages/{each}").json() for each in ids}
    queues = {name: timeless(ask(workers, "GET", f"/v1/queues/{name}").json()) for name in QUEUES}
    events = ask(workers, "GET", "/v1/events").body.splitlines()
    workers.stop()
    stored = read_shards(data)
    assert stored
    assert stored.elsewhere
    before = [FileLog(shard_directory(data, shard).path).extent() for shard in range(SHARDS)]

    done = penstock("store", "import", url, str(data))
    assert done.stdout.startswith(f"The store has all of the {SHARDS} shards."), done
    code, complaint = refused_start(data, flags=WORKERS)
    assert (code, "is a copy of a log in a store" in complaint) == (1, True)
    assert "is a copy of a log in a store" in penstock("store", "import", url, str(data)).stderr
    nodes = [node_on(url, folder).start() for folder in (data, tmp_path / "empty")]
    until(lambda: is_balanced(url, 2))
    until(lambda: all(map(serves_all, nodes)))
    logs = ask(nodes[1], "GET", "/v1/log").json()["logs"]
    assert [(log["log"], log["earliest"]) for log in logs] == [(log.id, log.earliest) for log in before]
    assert {each: ask(nodes[1], "GET", f"/v1/messages/{each}").json() for each in ids} == documents
    assert {name: timeless(ask(nodes[0], "GET", f"/v1/queues/{name}").json()) for name in QUEUES} == queues
    seen = ask(nodes[1], "GET", "/v1/events").body.splitlines()
    assert list(map(without_place, seen))[: len(events)] == list(map(without_place, events))
    ids += [ask(nodes[0], "POST", "/v1/publish", {"message": "2", "topics": ["orders.2"]}).json()["id"]]

    def copied(broker: Broker) -> list[str]:
        found = ask(broker, "GET", "/v1/search?queue=copies").json()["messages"]
        return sorted(message["message"] for message in found)

    until(lambda: copied(nodes[0]) == ["1", "2"])
    assert "is served by" in penstock("store", "export", url, str(tmp_path / "early")).stderr
    for node in nodes:
        node.stop()

    back = tmp_path / "back"
    done = penstock("store", "export", url, str(back))
    assert f"has all of the {SHARDS} shards" in done.stdout, done
    assert read_shards(back) == stored
    files = start_broker(data=back, flags=WORKERS)
    assert [ask(files, "GET", f"/v1/messages/{each}").status for each in ids] == [200] * len(ids)
    assert ask(files, "DELETE", f"/v1/messages/{ids[4]}").status == 204
    assert copied(files) == ["1", "2"]


def test_an_import_that_was_cut_off_is_run_again_and_has_what_was_published_since(
    postgres: Postgres, start_broker: StartBroker, tmp_path: Path
) -> None:
    url, data = postgres.new_database(), tmp_path / "data"
    workers = start_broker(data=data, flags=(*WORKERS, "--shards", str(SHARDS)))
    for name in QUEUES:
        assert ask(workers, "PUT", f"/v1/queues/{name}", {}).status == 201
        assert ask(workers, "POST", f"/v1/queues/{name}/messages", {"message": "early"}).status == 201
    workers.stop()
    cut_off(url, data)
    assert "an import into the store has not ended; run it again" in penstock("store", "status", url).stderr
    other = start_broker(flags=(*WORKERS, "--shards", str(SHARDS)))
    other.stop()
    assert "the import of another directory" in penstock("store", "import", url, str(other.data)).stderr
    workers.start()  # It is a store in files still.
    for name in QUEUES:
        assert ask(workers, "POST", f"/v1/queues/{name}/messages", {"message": "late"}).status == 201
    workers.stop()
    assert penstock("store", "import", url, str(data)).returncode == 0
    node = node_on(url, data).start()
    found = ask(node, "GET", "/v1/search?limit=100").json()["messages"]
    assert sorted(each["message"] for each in found) == ["early"] * len(QUEUES) + ["late"] * len(QUEUES)
    node.stop()


def cut_off(url: str, data: Path) -> None:
    """Import until some shards are in the store, and others are not."""
    with closing(Connection(url)) as connection, closing(Connection(url)) as beside:

        def advance(_: int) -> None:
            if imported(beside, 1):
                raise CutOffError

        with pytest.raises(CutOffError):
            import_store(connection, data, advance)
        assert [bool(imported(beside, shard)) for shard in range(SHARDS)] == [True, True, False]


def test_what_cannot_be_imported_is_named(postgres: Postgres, start_broker: StartBroker) -> None:
    workers = start_broker(flags=(*WORKERS, "--shards", str(SHARDS)))
    url, other = postgres.new_database(), postgres.new_store(SHARDS + 1)
    assert "in use by process" in penstock("store", "import", url, str(workers.data)).stderr
    assert "the database has no store" in penstock("store", "status", url).stderr, "nothing was begun"
    workers.stop()
    refused = penstock("store", "import", other, str(workers.data)).stderr
    assert f"the store has {SHARDS + 1} shards and the directory has {SHARDS}" in refused
    one = shard_directory(workers.data, 1).path
    assert f"is one of {SHARDS} shards" in penstock("store", "import", url, str(one)).stderr
