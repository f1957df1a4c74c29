"""`penstock cluster status`: all brokers of a store, and their shards, on a page that can be read."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import penstock
from tests.support.nodes import nodes_on, tables, until
from tests.support.postgres import Postgres

SHARDS = 24  # As many connections as the PostgreSQL of the tests has room for.
WIDTH = 100


def test_the_shards_of_each_node_are_together_with_the_size_of_their_logs(postgres: Postgres, tmp_path: Path) -> None:
    store = postgres.new_store(SHARDS)
    with nodes_on(store, tmp_path, 2, "store_lease_seconds=30") as nodes:
        nodes[0].create_queue("work")
        first = "{}:{}".format(*nodes[0].http)
        assert penstock("cluster", "move", store, "work", first).returncode == 0
        until(lambda: any(each.pinned == each.owner for each in tables(store).shards))
        until(lambda: all(each.lag_seconds is not None for each in tables(store).shards))  # With the next renewal.
        answer = penstock("cluster", "status", store)
        shown = json.loads(penstock("cluster", "status", store, "--json").stdout)
    of_nodes, of_shards = (part.splitlines() for part in answer.stdout.split("\n\n"))
    assert max(map(len, of_nodes + of_shards)) <= WIDTH
    assert [line.split()[2:4] for line in of_nodes[1:]] == [["serves", str(SHARDS // 2)]] * 2
    names, *rows = of_shards
    assert names.split() == ["node", "shard", "epoch", "batches", "MiB", "lag", "moved", "to"]
    named = [at for at, row in enumerate(rows) if not row.startswith(" ")]
    assert named == [0, SHARDS // 2], "each node is named once, before its shards"
    assert [rows[at].split()[0] for at in named] == sorted(node["node"] for node in shown["nodes"])
    assert [row.split()[-1] for row in rows].count("here") == 1
    (written,) = [shard for shard in shown["shards"] if shard["last_batch"]]
    assert written["bytes"] > 0
    assert all(shard["lag_seconds"] == 0.0 for shard in shown["shards"])
    assert all(" 0.0 s" in row for row in rows)
