"""kill -9 of workers while keys are published through several of their queues: what has changed stays exact.

Each publisher has keys of its own, and sends its lists to queues of several shards. Every answer is held to what it
knows. A list whose answer was lost or refused was taken as a whole or not at all; the broker is asked for that when
the worker is back. In the end the versions of every key are counted, and all messages that were answered with Q are
taken from the queues: what was answered with U equals one of them.

    TORTURE=long      500 kills instead of 3
    TORTURE_KILLS=n   as many
    TORTURE_SEED=n    the choices of an earlier run (the kernel's scheduling is not ours to repeat)
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.broker import Broker, workers_of
from tests.support.http_client import Connection
from tests.support.waiting import wait_until
from tests.torture.test_objects import CONTENTS, DIGESTS, JSON, Known, body_of

LONG = os.environ.get("TORTURE") == "long"
KILLS = int(os.environ.get("TORTURE_KILLS") or (500 if LONG else 3))
PUBLISHERS = 3
KEYS = 60  # Of each.
ROOTS = [f"root{number}" for number in range(6)]
SECONDS_MAX = 60.0
QUEUE = {"detect_unchanged": True, "retention_timeout": 86_400}


class Publisher:
    def __init__(self, name: str, broker: Broker, seed: str) -> None:
        self.name = name
        self.broker = broker
        self.chance = random.Random(seed)
        self.known = [Known() for _ in range(KEYS)]
        self.queued: set[str] = set()  # Ids of messages that were answered with Q.
        self.states: Counter[str] = Counter()
        self.wrong = ""
        self.answers = self.doubts = 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self.is_over.is_set():
                try:
                    with self.broker.connect() as connection:
                        while not self.is_over.is_set():
                            self._publish(connection)
                except OSError:
                    self.is_over.wait(0.05)  # The worker was killed.
        except Exception as error:
            self.wrong = f"{self.name}: {error!r}"

    def _publish(self, connection: Connection) -> None:
        count = self.chance.choice((1, 1, 5, 40))
        items = [(self.chance.randrange(KEYS), self.chance.randrange(CONTENTS)) for _ in range(count)]
        root = self.chance.choice(ROOTS)
        documents = [
            {"topics": [f"{root}.x"], "object": "thing", "key": self._key(key), "message": body_of(content)}
            for key, content in items
        ]
        before = {key: self.known[key] for key, _ in items}
        after: dict[int, Known] = {}
        expected = ""
        for key, content in items:
            known = after.get(key, before[key])
            after[key] = known.after(content)
            expected += "U" if after[key] is known else "Q"
        try:
            answer = connection.request("POST", "/v1/publish", JSON, json.dumps(documents).encode())
        except OSError:
            self._find_out(before, after)
            raise
        if answer.status != 201:
            assert answer.status in (503, 504), answer
            self._find_out(before, after)
            return
        found = "".join(receipt["state"] for receipt in answer.json())
        assert found == expected, f"published {items} of {before}, which is {expected}, and was told {found}"
        self.answers += 1
        self.states.update(found)
        self.queued.update(each["id"] for each in answer.json() if each["state"] == "Q")
        self._take(after)

    def _take(self, after: dict[int, Known]) -> None:
        for key, known in after.items():
            self.known[key] = known

    def _find_out(self, before: dict[int, Known], after: dict[int, Known]) -> None:
        """Whether a list was taken, of which nobody knows."""
        self.doubts += 1
        found = {key: self.look(key) for key in before}
        assert found in (before, after), f"half taken: {before}, then {found}, not {after}"
        self._take(found)

    def look(self, key: int) -> Known:
        return wait_until(lambda: self._asked(key), f"what became of {self._key(key)}", SECONDS_MAX)

    def _asked(self, key: int) -> Known | None:
        try:
            answer = self.broker.request("GET", f"/v1/objects/thing/{self._key(key)}")
        except OSError:
            return None
        if answer.status == 404:
            return Known()
        told = answer.json()
        return Known(DIGESTS[told["digest"]], told["versions"]) if answer.status == 200 else None

    def _key(self, key: int) -> str:
        return f"{self.name}-{key}"

    def check(self) -> None:
        for key, known in enumerate(self.known):
            found = self.look(key)
            assert found == known, f"{self._key(key)}: {found}, not {known}"


def kill_one(broker: Broker, publishers: list[Publisher], chance: random.Random) -> None:
    """After some answers: the moment is what is tried."""
    wanted = sum(publisher.answers for publisher in publishers) + chance.randint(1, 40)
    wait_until(
        lambda: (
            sum(publisher.answers for publisher in publishers) >= wanted or any(each.wrong for each in publishers)
        ),
        "lists are published",
    )
    with contextlib.suppress(ProcessLookupError):  # It was killed before, and is not started again yet.
        os.kill(chance.choice(workers_of(broker)), signal.SIGKILL)


def delivered(broker: Broker) -> set[str]:
    """Everything in the queues."""
    found: set[str] = set()
    for root in ROOTS:
        while True:
            answer = broker.request("GET", f"/v1/queues/{root}/messages?max=1000&lease=3600")
            assert answer.status == 200, answer
            messages = answer.json()
            if not messages:
                break
            found.update(each["id"] for each in messages)
    return found


@pytest.mark.torture
@pytest.mark.timeout(7200 if LONG else 300)
def test_what_has_changed_stays_exact_whatever_worker_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = os.environ.get("TORTURE_SEED") or str(secrets.randbits(32))
    chance, began = random.Random(seed), time.monotonic()
    broker = Broker(tmp_path / "data", flags=("--workers", "2", "--shards", "4")).start()
    publishers = [Publisher(f"p{number}", broker, f"{seed}:{number}") for number in range(PUBLISHERS)]
    try:
        for root in ROOTS:
            assert broker.request("PUT", f"/v1/queues/{root}", JSON, json.dumps(QUEUE).encode()).status == 201
        for publisher in publishers:
            publisher.thread.start()
        for _ in range(KILLS):
            kill_one(broker, publishers, chance)
            assert not any(publisher.wrong for publisher in publishers)
        for publisher in publishers:
            publisher.is_over.set()
            publisher.thread.join()
            assert not publisher.wrong, f"seed {seed}: {publisher.wrong}"
        for publisher in publishers:
            publisher.check()
        lost = set().union(*(publisher.queued for publisher in publishers)) - delivered(broker)
        assert not lost, f"seed {seed}: {len(lost)} were answered with Q, and are in no queue"
    finally:
        for publisher in publishers:
            publisher.is_over.set()
        broker.stop()
    states = sum((publisher.states for publisher in publishers), Counter[str]())
    doubts = sum(publisher.doubts for publisher in publishers)
    with capsys.disabled():
        print(f"\ntorture: seed {seed}, {KILLS} kills, {dict(states)}, {doubts} lists in doubt", end="")
        print(f", {time.monotonic() - began:.0f} s", flush=True)
    assert min(states["Q"], states["U"]) > 10
