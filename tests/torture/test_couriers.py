"""kill -9 of workers while messages cross shards: each channel and the dead-letter queue have each message once.

Publishers send lists of messages for all topics, each with an idempotency key, until they are acknowledged. One queue
has a dead-letter queue, and a consumer that finishes nothing. In the end the broker stops, and the queues are read
from the directories of the shards.

    TORTURE=long      1,000,000 messages, 8 shards and 20 kills instead of 2,000 messages, 4 shards and 2
    TORTURE_SEED=n    the choices of an earlier run
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.shard_contents import contents
from tests.support.waiting import wait_until

LONG = os.environ.get("TORTURE") == "long"
MESSAGES, SHARDS, KILLS = (1_000_000, 8, 20) if LONG else (2_000, 4, 2)
PER_REQUEST = 500 if LONG else 100
PUBLISHERS = 3
ROOTS = 8
FAILING_EACH = 50  # One message in so many is for the queue that has dead letters.
WAIT_SECONDS_MAX = 3600.0 if LONG else 120.0
CHANNELS = {"all": range(ROOTS), "odd": range(1, ROOTS, 2), "few": range(2)}
PATTERNS = {"all": ["*"], "odd": [f"root{each}.*" for each in range(1, ROOTS, 2)], "few": ["root0.*", "root1.*"]}
SEGMENT_BYTES = 1 << 20
SETTINGS = (f"log.segment_bytes={SEGMENT_BYTES}", "log.snapshot_bytes=8388608", "log.retention_seconds=0")


def topic_of(number: int) -> str:
    return "work.x" if number % FAILING_EACH == 0 else f"root{number % ROOTS}.x"


def expected(channel: str) -> Counter[int]:
    wanted = {f"root{each}.x" for each in CHANNELS[channel]} | ({"work.x"} if channel == "all" else set())
    return Counter(number for number in range(MESSAGES) if topic_of(number) in wanted)


DEAD = Counter(number for number in range(MESSAGES) if topic_of(number) == "work.x")


class Traffic:
    """Publishers, and a consumer that gives nothing back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._left = iter(range(0, MESSAGES, PER_REQUEST))
        self._lock = threading.Lock()
        self.acknowledged = 0
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self._publish) for _ in range(PUBLISHERS)]
        self._consumer = threading.Thread(target=self._consume)
        for each in (*self.threads, self._consumer):
            each.start()

    def _publish(self) -> None:
        while not self.is_over.is_set():
            with self._lock:
                first = next(self._left, None)
            if first is None:
                return
            numbers = range(first, min(first + PER_REQUEST, MESSAGES))
            body = json.dumps([{"message": str(each), "topics": [topic_of(each)]} for each in numbers]).encode()
            while not self.is_over.is_set() and self._status("POST", "/v1/publish", body, f"batch-{first}") != 201:
                self.is_over.wait(0.05)
            with self._lock:
                self.acknowledged += len(numbers)

    def _consume(self) -> None:
        while not self.is_over.is_set():
            if self._status("GET", "/v1/queues/work/messages?max=1000&wait=1&lease=1") != 200:
                self.is_over.wait(0.05)

    def _status(self, method: str, target: str, body: bytes | None = None, key: str = "") -> int:
        try:
            headers = {"Idempotency-Key": key} if key else None
            return self._broker.request(method, target, headers, body).status
        except OSError:
            return 0  # The worker was killed.

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self.acknowledged >= count, f"{count} messages are acknowledged", WAIT_SECONDS_MAX)

    def end(self) -> None:
        self.is_over.set()
        for each in (*self.threads, self._consumer):
            each.join()


def kill_one(broker: Broker, chance: random.Random) -> None:
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    if children:
        os.kill(int(chance.choice(children)), signal.SIGKILL)


def wait_for_messages(broker: Broker, queue: str, count: int) -> None:
    wait_until(lambda: messages_of(broker, queue) >= count, f"{queue} has {count}", WAIT_SECONDS_MAX)


def messages_of(broker: Broker, queue: str) -> int:
    try:
        answer = broker.request("GET", f"/v1/queues/{queue}")
        return int(answer.json()["status"]["messages"]) if answer.status == 200 else -1
    except OSError:
        return -1


@pytest.mark.torture
@pytest.mark.timeout(7200 if LONG else 600)
def test_each_channel_has_each_message_once_whatever_worker_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("TORTURE_SEED", secrets.randbelow(1 << 32)))
    print(f"TORTURE_SEED={seed}")
    chance = random.Random(seed)
    flags = ("--workers", "2", "--shards", str(SHARDS))
    broker = Broker(tmp_path / "data", *SETTINGS, flags=flags).start()
    broker.create_queue("dead")
    work = {"redrive_policy": {"max_receives": 1, "dead_letter_queue": "dead"}}
    assert broker.request("PUT", "/v1/queues/work", None, json.dumps(work).encode()).status in (200, 201)
    for name, patterns in PATTERNS.items():
        body = json.dumps({"topics": patterns}).encode()
        assert broker.request("PUT", f"/v1/channels/{name}", None, body).status in (200, 201)
    traffic = Traffic(broker)
    try:
        for kill in range(KILLS):
            traffic.wait_for(int(MESSAGES * (kill + chance.random()) / KILLS))
            kill_one(broker, chance)
        traffic.wait_for(MESSAGES)
        for name in CHANNELS:
            wait_for_messages(broker, name, expected(name).total())
        wait_for_messages(broker, "dead", DEAD.total())
    finally:
        traffic.end()
        broker.stop()
    found = contents(tmp_path / "data", SEGMENT_BYTES)
    for name in CHANNELS:
        assert found[name] == expected(name), name
    assert found["dead"] == DEAD
