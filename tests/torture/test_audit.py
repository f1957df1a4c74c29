"""kill -9 under administration: no acknowledged act is without its record.

TORTURE=long      100 rounds instead of 3
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
from pathlib import Path

import pytest

from tests.support.audit_records import AUDIT, audited
from tests.support.broker import Broker
from tests.support.http_client import Connection

ROUNDS = 100 if os.environ.get("TORTURE") == "long" else 3
ACTS_PER_ROUND = (20, 200)
CLIENTS = 3
READ_SECONDS_MAX = 60.0

Act = tuple[str, str]  # What was done, and to which queue.


class Administrator(threading.Thread):
    """Creates, changes, purges and removes queues until the broker dies, and remembers what was acknowledged."""

    def __init__(self, address: tuple[str, int], names: itertools.count[int], done: threading.Semaphore) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._names = names
        self._done = done
        self.acknowledged: list[Act] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        try:
            with Connection(self._address, READ_SECONDS_MAX) as connection:
                while True:
                    self._live(connection, f"queue-{next(self._names)}")
        except (OSError, EOFError, AssertionError) as error:
            self.wrong += [str(error)] if "answered" in str(error) else []

    def _live(self, connection: Connection, name: str) -> None:
        path = f"/v1/queues/{name}"
        for act, method, target, body in (
            ("queue.create", "PUT", path, b"{}"),
            ("queue.update", "PATCH", path, b'{"retries": 3}'),
            ("queue.purge", "DELETE", f"{path}/messages", None),
            ("queue.delete", "DELETE", path, None),
        ):
            answer = connection.request(method, target, body=body)
            assert answer.status < 300, f"{act} of {name} answered {answer}"
            self.acknowledged.append((act, name))
            self._done.release()


@pytest.mark.torture
@pytest.mark.timeout(4 * 3600)
def test_no_acknowledged_act_is_without_its_record(tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("TORTURE_SEED", "audit"))
    broker = Broker(tmp_path / "data", AUDIT, "log.segment_bytes=262144", "log.snapshot_bytes=524288")
    names, acknowledged = itertools.count(1), []
    for _ in range(ROUNDS):
        broker.start()
        done = threading.Semaphore(0)
        administrators = [Administrator(broker.http, names, done) for _ in range(CLIENTS)]
        for each in administrators:
            each.start()
        for _ in range(chance.randint(*ACTS_PER_ROUND)):
            assert done.acquire(timeout=READ_SECONDS_MAX), [each.wrong for each in administrators]
        broker.kill()
        for each in administrators:
            each.join(READ_SECONDS_MAX)
            assert not each.wrong
            acknowledged += each.acknowledged
    broker.start()
    recorded = {(record["act"], record["target"]) for record in audited(broker, outcome="done")}
    assert set(acknowledged) - recorded == set()
    listed = {queue["name"] for queue in json.loads(broker.request("GET", "/v1/queues?limit=1000").body)["queues"]}
    assert {name for name in listed if name != "_audit"} <= {name for act, name in recorded if act == "queue.create"}
    broker.stop()
