"""Backups of a broker with several shards under traffic that crosses them: each restored store is that of a moment.

Publishers send to queues in all shards, and every shard has a channel for all of it. Consumers finish some messages
and let the leases of others end, so that those leave for dead-letter queues of other shards; a redriver sends them on
to queues of any shard. Each round makes a backup, incremental after the first, and restores it. Then a broker serves
it, publishes and redrives more, and stops; the queues are read from the directories of its shards.

    TORTURE=long      20 rounds instead of 3
    TORTURE_SEED=n    the choices of an earlier run
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.broker.shard_map import ShardMap
from tests.support.broker import Broker
from tests.support.command_line import penstock
from tests.support.effort import LONG
from tests.support.fitting import misfits
from tests.support.shard_contents import contents
from tests.support.waiting import wait_until

ROUNDS = 20 if LONG else 3
SHARDS = 4
FLAGS = ("--workers", "2", "--shards", str(SHARDS))
SEGMENT_BYTES = 1 << 18
SETTINGS = (f"log.segment_bytes={SEGMENT_BYTES}", "log.snapshot_bytes=1048576", "log.retention_seconds=0")
PUBLISHED_EACH = 1_000  # Before and after each backup.
DEAD_EACH = 50
BATCH = 20
WAIT_SECONDS_MAX = 120.0
MARKERS = 1_000_000_000  # The numbers of messages that are published after a restore.


def name_in(shard: int, prefix: str) -> str:
    """The first name with this prefix that a shard has."""
    names = (f"{prefix}{number}" for number in count())
    return next(name for name in names if ShardMap(SHARDS).of_name(name) == shard % SHARDS)


WORK = [name_in(shard, "work") for shard in range(SHARDS)]
DEAD = [name_in(shard + 1, "dead") for shard in range(SHARDS)]
CHANNELS = [name_in(shard + 2, "channel") for shard in range(SHARDS)]


def ask(broker: Broker, method: str, target: str, value: Any = None) -> Any:
    body = None if value is None else json.dumps(value).encode()
    answer = broker.request(method, target, {"Content-Type": "application/json"}, body)
    assert answer.status in (200, 201, 202), answer
    return answer.json() if answer.body else None


class Known(NamedTuple):
    """What the clients knew at one moment."""

    sent: frozenset[int]
    acknowledged: frozenset[int]
    finish_sent: frozenset[int]
    finished: frozenset[int]


class Traffic:
    """Clients that work until they are stopped."""

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        self._broker = broker
        self._chance = chance
        self._numbers = count()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._sent, self._acknowledged = set[int](), set[int]()
        self._finish_sent, self._finished = set[int](), set[int]()
        self.redriven = 0
        works = [self._publish, self._publish, self._redrive, *[self._consumer(name) for name in WORK]]
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def known(self) -> Known:
        with self._lock:
            facts = (self._sent, self._acknowledged, self._finish_sent, self._finished)
            return Known(*map(frozenset, facts))

    def wait_for_more(self) -> None:
        published, redriven = len(self.known().acknowledged) + PUBLISHED_EACH, self.redriven + DEAD_EACH
        wait_until(
            lambda: self._failures or (len(self._acknowledged) >= published and self.redriven >= redriven),
            "there is more traffic",
            WAIT_SECONDS_MAX,
        )
        assert not self._failures, self._failures

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        assert not self._failures, self._failures

    def _work(self, work: Callable[[], None]) -> None:
        try:
            while not self._is_over.is_set():
                work()
        except BaseException as error:
            self._failures.append(error)

    def _publish(self) -> None:
        with self._lock:
            numbers = [next(self._numbers) for _ in range(BATCH)]
            self._sent.update(numbers)
        ask(self._broker, "POST", "/v1/publish", [message(number) for number in numbers])
        with self._lock:
            self._acknowledged.update(numbers)
        self._is_over.wait(0.02)  # So that consumers keep up.

    def _consumer(self, queue: str) -> Callable[[], None]:
        def consume() -> None:
            taken = ask(self._broker, "GET", f"/v1/queues/{queue}/messages?max={BATCH}&wait=1&lease=1")
            for each in taken:
                number = int(each["message"])
                if number % 3 == 0:
                    continue  # It becomes a dead letter.
                with self._lock:
                    self._finish_sent.add(number)
                confirmed = json.dumps({"id": each["id"]}).encode()
                if self._broker.request("POST", "/v1/confirm", None, confirmed).status == 200:
                    with self._lock:
                        self._finished.add(number)

        return consume

    def _redrive(self) -> None:
        order = {"from": self._chance.choice(DEAD), "to": self._chance.choice(WORK)}
        self.redriven += ask(self._broker, "POST", "/v1/redrive", order)["moved"]
        self._is_over.wait(0.05)


def message(number: int) -> dict[str, Any]:
    return {"message": str(number), "topics": [f"{WORK[number % SHARDS]}.x"]}


def backed_up(broker: Broker, directory: Path) -> Any:
    ended = penstock("backup", str(directory), "--json", PENSTOCK_URL=broker.url)
    assert ended.returncode == 0, ended
    return json.loads(ended.stdout)


# ── What a restored store does ────────────────────────────────────────────────────────────────────────────────


def serve_on(data: Path) -> None:
    """Serve a restored store for a while, with traffic that crosses shards in all directions."""
    broker = Broker(data, *SETTINGS, flags=FLAGS).start()
    try:
        assert broker.request("GET", "/health").body == b"green"
        ask(broker, "POST", "/v1/publish", [message(MARKERS + each) for each in range(2 * SHARDS)])
        wait_until(lambda: is_at_rest(broker), "everything has arrived", WAIT_SECONDS_MAX)
        for shard, queue in enumerate(DEAD):
            ask(broker, "POST", "/v1/redrive", {"from": queue, "to": WORK[(shard + 2) % SHARDS]})
        wait_until(lambda: is_at_rest(broker), "everything has arrived again", WAIT_SECONDS_MAX)
    finally:
        broker.stop()


def is_at_rest(broker: Broker) -> bool:
    """No lease can end any more, nothing is on its way, and all channels have the same messages."""
    lines = broker.request("GET", "/metrics").body.decode().splitlines()
    leased = [line for line in lines if line.startswith("penstock_queue_messages") and 'state="leased"' in line]
    waiting = [line for line in lines if line.startswith("penstock_courier_outbox_messages{")]
    assert leased
    assert waiting
    counts = {ask(broker, "GET", f"/v1/channels/{name}")["status"]["messages"] for name in CHANNELS}
    return all(float(line.split()[-1]) == 0 for line in (*leased, *waiting)) and len(counts) == 1


def check(found: dict[str, Counter[int]], before: Known, after: Known) -> None:
    """`before` and `after`: what was known when the backup began, and when it had ended."""
    markers = {MARKERS + each for each in range(2 * SHARDS)}
    there: Counter[int] = sum((found[name] for name in (*WORK, *DEAD)), Counter())
    assert [number for number, times in there.items() if times > 1] == [], "nothing is there twice"
    present = set(there)
    assert before.acknowledged - present <= after.finish_sent, "what was acknowledged is there, or finished"
    assert present & before.finished == set(), "what was finished does not return"
    assert present <= after.sent | markers, "what was sent later is not there"
    assert markers <= present
    for name in CHANNELS:
        copies = found[name]
        assert [number for number, times in copies.items() if times > 1] == [], f"nothing is in {name} twice"
        assert before.acknowledged | markers | present <= set(copies), f"{name} has all that was acknowledged"
        assert set(copies) <= after.sent | markers, f"{name} has nothing that was sent later"


@contextmanager
def under_traffic(data: Path, module: str = "penstock.cli") -> Iterator[tuple[Broker, Traffic]]:
    """A broker that a module starts, with clients."""
    seed = int(os.environ.get("TORTURE_SEED", secrets.randbelow(1 << 32)))
    print(f"TORTURE_SEED={seed}")
    broker = Broker(data, *SETTINGS, flags=FLAGS)
    broker.command[broker.command.index("penstock.cli")] = module
    broker.start()
    for work, dead, channel in zip(WORK, DEAD, CHANNELS, strict=True):
        broker.create_queue(dead)
        policy = {"max_receives": 1, "dead_letter_queue": dead}
        ask(broker, "PUT", f"/v1/queues/{work}", {"redrive_policy": policy})
        ask(broker, "PUT", f"/v1/channels/{channel}", {"topics": ["*"]})
    traffic = Traffic(broker, random.Random(seed))
    try:
        yield broker, traffic
    finally:
        traffic.end()
        broker.stop()


def restored(backup: Path, data: Path) -> Path:
    ended = penstock("restore", str(backup), str(data))
    assert ended.returncode == 0, ended
    return data


@pytest.mark.torture
@pytest.mark.timeout(ROUNDS * 300)
def test_each_backup_under_traffic_between_shards_is_the_store_of_one_moment(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with under_traffic(tmp_path / "data") as (broker, traffic):
        for number in range(ROUNDS):
            traffic.wait_for_more()
            before = traffic.known()
            facts = backed_up(broker, backup)
            after = traffic.known()
            assert len(facts["shards"]) == SHARDS
            assert number == 0 or facts["reused_bytes"] > 0
            assert penstock("backup", str(backup), "--verify").returncode == 0
            data = restored(backup, tmp_path / f"restored-{number}")
            assert misfits(data) == []
            serve_on(data)
            check(contents(data, SEGMENT_BYTES), before, after)


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_without_the_moment_the_shards_of_a_backup_do_not_fit(tmp_path: Path) -> None:
    """So the test above can fail."""
    with under_traffic(tmp_path / "data", "tests.support.no_pause") as (broker, traffic):
        for number in count():
            traffic.wait_for_more()
            backed_up(broker, tmp_path / "backup")
            if misfits(restored(tmp_path / "backup", tmp_path / f"restored-{number}")):
                return
