"""Searches over all shards that a store with one shard does not have: of a queue that each shard has."""

from __future__ import annotations

from pathlib import Path

from penstock.config.config import AuditConfig
from tests.support.sharded import a_store

QUEUES = {f"queue-{shard}": shard for shard in range(4)}


def test_records_of_all_shards_are_one_queue_in_the_order_of_time(tmp_path: Path) -> None:
    with a_store(tmp_path / "four", 4, 2, QUEUES, audit=AuditConfig()) as store:
        for _ in range(3):
            for name in QUEUES:
                assert store.request("PUT", f"/v1/queues/{name}", b"{}").status == 201
            for name in QUEUES:
                assert store.request("DELETE", f"/v1/queues/{name}").status == 204
        found, cursor = [], ""
        while True:
            page = store.request("GET", f"/v1/search?queue=_audit&limit=5{cursor}").json()
            found += page["messages"]
            cursor = f"&cursor={page['next']}"
            if not page["next"]:
                break
        acts = [(record["message"]["act"], record["message"]["target"]) for record in found]
        once = [("queue.create", name) for name in QUEUES] + [("queue.delete", name) for name in QUEUES]
        assert acts == once * 3
        rows = store.request("GET", "/v1/stats?name=_audit").json()
        assert [(row["name"], row["ready"]) for row in rows["queues"]] == [("_audit", 24)]
        assert (rows["total"], rows["totals"]["queues"]) == (1, 1)
        with store.connect() as connection:
            connection.begin("/v1/stats/stream?queue=_audit")
            assert connection.read_chunk().count(b'"name":"_audit"') == 1
