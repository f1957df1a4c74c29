"""Backups under load, kill -9, restore: everything acknowledged before the backup's offset is there, nothing later.

Producers and consumers of several dialects share queues of a broker that takes snapshots and removes segments all
the time. Each round makes a backup, incremental after the first, kills the broker later, and restores the backup into
a new directory. What was acknowledged before the backup began is there unless a consumer has finished it, what was
first sent after it ended is not, the log ends at its offset, and the Object History answers as before.

    TORTURE=long      20 rounds instead of 2
"""

from __future__ import annotations

import json
import threading
from contextlib import closing, suppress
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, structured
from tests.support.command_line import penstock
from tests.support.dialect_clients import CLIENTS, MqsClient
from tests.support.effort import LONG

ROUNDS = 20 if LONG else 2
QUEUES = ("first", "second")
MESSAGES_EACH = 2000 if LONG else 300
BATCH = 20
JSON = {"Content-Type": "application/json"}
SETTINGS = ("log.segment_bytes=262144", "log.snapshot_bytes=524288", "log.retention_seconds=0")
SECONDS_MAX = 300


class Load:
    """Clients of every dialect, which publish and finish until they are stopped or the broker is gone."""

    def __init__(self, broker: Broker, number: int) -> None:
        self._broker = broker
        self.number = number
        self.changed = threading.Condition()
        self.sent: set[str] = set()
        self.acknowledged: set[str] = set()
        self.finish_sent: set[str] = set()
        self._threads = [threading.Thread(target=self._produce, args=(name,)) for name in CLIENTS]
        self._threads.append(threading.Thread(target=self._consume))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_for_more(self) -> set[str]:
        """Everything acknowledged, when some more is."""
        with self.changed:
            wanted = len(self.acknowledged) + MESSAGES_EACH
            assert self.changed.wait_for(lambda: len(self.acknowledged) >= wanted, SECONDS_MAX)
            return set(self.acknowledged)

    def end(self) -> None:
        """Wait until all have noticed that the broker is gone."""
        for thread in self._threads:
            thread.join(SECONDS_MAX)

    def _produce(self, name: str) -> None:
        # The broker is killed.
        with suppress(OSError, AssertionError), closing(CLIENTS[name](self._broker)) as client:
            for batch in count():
                bodies = [f"{self.number}-{name}-{batch}-{each}" + "x" * 200 for each in range(BATCH)]
                with self.changed:
                    self.sent |= set(bodies)
                for body in client.publish(QUEUES[batch % 2], bodies):
                    with self.changed:
                        self.acknowledged.add(body)
                        self.changed.notify_all()

    def _consume(self) -> None:
        # The broker is killed.
        with suppress(OSError, AssertionError), closing(MqsClient(self._broker)) as client:
            for queue in cycle(QUEUES):
                taken = client.take(queue, BATCH // 2)
                with self.changed:
                    self.finish_sent |= {each.body for each in taken}
                list(client.finish(queue, taken))


def bodies_in(broker: Broker) -> set[str]:
    """The messages of all queues."""
    found: set[str] = set()
    for queue in QUEUES:
        after = ""
        while True:
            page = broker.request("GET", f"/v1/search?queue={queue}&limit=1000{after}").json()
            found |= {each["message"] for each in page["messages"]}
            if not page.get("next"):
                break
            after = f"&cursor={page['next']}"
    return found


Contents = dict[str, str]  # By key.


def publish_objects(broker: Broker, contents: Contents) -> list[str]:
    messages = [
        {"topics": ["objects"], "object": "thing", "key": key, "message": text} for key, text in contents.items()
    ]
    with broker.connect() as connection:
        answers = [connection.request("POST", "/v1/publish", JSON, json.dumps(each).encode()) for each in messages]
    return [answer.json()["state"] for answer in answers]


def made(broker: Broker, directory: Path) -> Any:
    ended = penstock("backup", str(directory), "--json", PENSTOCK_URL=broker.url)
    assert ended.returncode == 0, ended
    return json.loads(ended.stdout)


def check_restored(data: Path, load: Load, offset: int, before: set[str], sent: set[str], contents: Contents) -> None:
    broker = Broker(data, *SETTINGS).start()
    try:
        assert broker.request("GET", "/health").body == b"green"
        recovered = [
            each for line in broker.log().splitlines() if (each := structured(line)).get("event") == "recovered"
        ]
        assert recovered[-1]["offset"] == offset  # Since then, leases may have run out.
        there = {body for body in bodies_in(broker) if body.startswith(f"{load.number}-")}
        assert there <= sent, "what was sent later is not there"
        assert before - there <= load.finish_sent, "what was acknowledged is there, or finished"
        assert publish_objects(broker, contents) == ["U"] * len(contents), "the history is that of the backup"
    finally:
        broker.stop()


@pytest.mark.torture
@pytest.mark.timeout(ROUNDS * SECONDS_MAX)
def test_a_restored_backup_has_what_was_acknowledged_and_nothing_later(tmp_path: Path) -> None:
    broker, backup = Broker(tmp_path / "data", *SETTINGS), tmp_path / "backup"
    for number in range(ROUNDS):
        broker.start()
        for queue in QUEUES if not number else ():
            broker.create_queue(queue)
        contents = {str(key): f"round {number if key < 50 else 0}" for key in range(100)}
        publish_objects(broker, contents)
        load = Load(broker, number)
        load.start()
        before = load.wait_for_more()
        facts = made(broker, backup)
        with load.changed:
            sent = set(load.sent)
        load.wait_for_more()
        publish_objects(broker, {"0": f"later than round {number}"})
        broker.kill()
        load.end()
        restored = tmp_path / f"restored-{number}"
        assert penstock("restore", str(backup), str(restored)).returncode == 0
        check_restored(restored, load, facts["offset"], before, sent, contents)
        assert penstock("backup", str(backup), "--verify").returncode == 0
        assert number == 0 or facts["reused_bytes"] > 0, "segments that are still there are not copied again"
