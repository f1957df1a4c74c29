"""kill -9 while objects are published again and again: exactly what has not changed is unchanged.

Each publisher has keys of its own, and knows what it said last of each. It publishes lists of messages about them,
some as they were and some changed, back and forth between few contents, and holds every answer to what it knows. A
list that was under way when the broker was killed was taken as a whole or not at all: what the broker says of its
keys tells which, and from there on everything is exact again. In the end the versions of every key are counted.

    TORTURE=long      150 rounds instead of 4
    TORTURE_SEED=n    the choices of an earlier run (the kernel's scheduling is not ours to repeat)
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.http_client import Connection

LONG = os.environ.get("TORTURE") == "long"
ROUNDS = 150 if LONG else 4
SECONDS_MAX = 3600 if LONG else 60
ANSWERS_PER_ROUND = (20, 1500)
STALL_SECONDS_MAX = 120
PUBLISHERS = 4
KEYS = 500  # Of each.
CONTENTS = 3
STOPPED_SHARE = 0.2  # Of the rounds: ended by SIGTERM.
AGAIN_SHARE = 0.3  # Of the kills: followed by one more, while the broker recovers.

# Small segments, and messages that do not live long, so that snapshots, reclaiming and writing happen all the time.
SETTINGS = ("log.segment_bytes=262144", "log.snapshot_bytes=524288", "log.retention_seconds=0")
QUEUE = {"detect_unchanged": True, "retention_timeout": 3}
JSON = {"Content-Type": "application/json"}

Item = tuple[int, int]  # A key and a content, both by number.


@dataclass
class Known:
    """What a publisher knows of one of its keys."""

    content: int | None = None
    versions: int = 0

    def after(self, content: int) -> Known:
        return self if content == self.content else Known(content, self.versions + 1)


@dataclass
class Publisher:
    name: str
    known: list[Known] = field(default_factory=lambda: [Known() for _ in range(KEYS)])
    open: list[Item] = field(default_factory=list)  # Sent, and not answered.
    taken: int = 0  # Messages that the broker has taken.
    maybe: int = 0  # Those that it may have taken: nothing would have changed.
    unchanged: int = 0
    wrongs: list[str] = field(default_factory=list)

    def run(self, broker: Broker, chance: random.Random, progress: threading.Semaphore) -> None:
        try:
            with broker.connect() as connection:
                self._resolve(connection)
                while True:
                    self._publish(connection, chance)
                    progress.release()
        except OSError:
            pass  # The broker was killed, as planned.
        except Exception as error:
            self.wrongs.append(f"{self.name}: {error!r}")
            progress.release(ANSWERS_PER_ROUND[1])

    def _publish(self, connection: Connection, chance: random.Random) -> None:
        count = chance.choice((1, 1, 5, 40))
        items = [(chance.randrange(KEYS), chance.randrange(CONTENTS)) for _ in range(count)]
        self.open = items
        documents = [self._document(key, content) for key, content in items]
        answer = connection.request("POST", "/v1/publish", JSON, json.dumps(documents).encode())
        assert answer.status == 201, f"publishing answered {answer.status} {answer.body[:200]!r}"
        states = "".join(receipt["state"] for receipt in answer.json())
        expected = self._take(items)
        assert states == expected, f"published {items}, which is {expected}, and was told {states}"

    def _document(self, key: int, content: int) -> dict[str, Any]:
        return {"topics": ["things.said"], "object": "thing", "key": self._key(key), "message": body_of(content)}

    def _key(self, key: int) -> str:
        return f"{self.name}/{key}"

    def _take(self, items: Sequence[Item]) -> str:
        """The broker has taken these; what each must have been."""
        states = ""
        for key, content in items:
            known = self.known[key].after(content)
            states += "U" if known is self.known[key] else "Q"
            self.known[key] = known
        self.taken += len(items)
        self.unchanged += states.count("U")
        self.open = []
        return states

    def _resolve(self, connection: Connection) -> None:
        """What was under way at the kill was taken as a whole, or not at all."""
        items = self.open  # Still open if the broker is killed before all of its keys are looked at.
        before = {key: self.known[key] for key, _ in items}
        after = dict(before)
        for key, content in items:
            after[key] = after[key].after(content)
        found = {key: self._look(connection, key) for key in before}
        assert found in (before, after), f"{items} was half taken: {before}, then {found}, not {after}"
        self.open = []
        if before == after:
            self.maybe += len(items)
        elif found == after:
            self._take(items)

    def _look(self, connection: Connection, key: int) -> Known:
        answer = connection.request("GET", f"/v1/objects/thing/{self.name}%2F{key}")
        if answer.status == 404:
            return Known()
        assert answer.status == 200, answer
        told = answer.json()
        assert told["key"] == self._key(key)
        return Known(DIGESTS[told["digest"]], told["versions"])

    def check(self, connection: Connection) -> None:
        self._resolve(connection)
        for key, known in enumerate(self.known):
            found = self._look(connection, key)
            assert found == known, f"{self._key(key)}: {found}, not {known}"


def body_of(content: int) -> str:
    return f"content {content} " * 20


DIGESTS = {blake2b(body_of(number).encode(), digest_size=16).hexdigest(): number for number in range(CONTENTS)}


def play_round(broker: Broker, publishers: list[Publisher], chance: random.Random, seed: str) -> None:
    """Load until a drawn number of answers, then an end, then sometimes a kill while it recovers."""
    progress = threading.Semaphore(0)
    workers = [
        threading.Thread(target=publisher.run, args=(broker, random.Random(f"{seed}:{publisher.name}"), progress))
        for publisher in publishers
    ]
    for worker in workers:
        worker.start()
    answers = chance.randint(*ANSWERS_PER_ROUND)
    stalled = not all(progress.acquire(timeout=STALL_SECONDS_MAX) for _ in range(answers))
    if chance.random() < STOPPED_SHARE:
        broker.stop()
    else:
        broker.kill()
    for worker in workers:
        worker.join()
    wrongs = [wrong for publisher in publishers for wrong in publisher.wrongs]
    assert not wrongs, "\n".join([seed, *wrongs, broker.log()])
    assert not stalled, f"{seed}: no answer for {STALL_SECONDS_MAX} s\n{broker.log()}"
    while chance.random() < AGAIN_SHARE:
        broker.spawn()
        assert not broker.ended_within(chance.uniform(0, 0.6)), f"{seed}: it ended while recovering\n{broker.log()}"
        broker.kill()


@pytest.mark.torture
@pytest.mark.timeout(SECONDS_MAX + 300)
def test_kills_leave_exactly_what_has_not_changed_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = os.environ.get("TORTURE_SEED") or str(secrets.randbits(32))
    chance = random.Random(seed)
    publishers = [Publisher(f"p{number}") for number in range(PUBLISHERS)]
    broker = Broker(tmp_path / "data", *SETTINGS)
    started_at = time.monotonic()
    try:
        for number in range(ROUNDS):
            if time.monotonic() - started_at > SECONDS_MAX:
                break
            broker.start()
            if number == 0:
                made = broker.request("PUT", "/v1/queues/things", JSON, json.dumps(QUEUE).encode())
                assert made.status == 201, made
            play_round(broker, publishers, chance, f"{seed}:{number}")
        broker.start()
        with broker.connect() as connection:
            for publisher in publishers:
                publisher.check(connection)
            last = connection.request("GET", "/v1/queues/things").json()["status"]["last_sequence"]
        broker.stop()
    finally:
        if broker.running:
            broker.kill()
    taken, maybe, unchanged = (
        sum(getattr(publisher, name) for publisher in publishers) for name in ("taken", "maybe", "unchanged")
    )
    removed = broker.times_logged("segment_removed")
    with capsys.disabled():
        seconds = time.monotonic() - started_at
        print(f"\ntorture: seed {seed}, {taken} messages, {unchanged} unchanged, {removed} segments removed")
        print(f"torture: {number + 1} rounds in {seconds:.0f} s", flush=True)
    assert taken <= last <= taken + maybe, f"seed {seed}: {last} messages, and {taken} to {taken + maybe} were taken"
    assert unchanged > taken // 10
    assert removed or not LONG, "no segment was ever removed: the settings do not try what they are meant to try"
