"""Four dialects, one broker, kill -9 in between: what goes in by one comes out by any, exactly as promised.

Producers and consumers of every dialect share queues. A ledger writes down what was sent, acknowledged, delivered and
finished. The broker is killed after a drawn number of acknowledgements and started again on the same data; clients
come back by themselves. What was not acknowledged is sent again under another name, because the first may be stored
all the same: so every body exists once at most, and the ledger can be balanced exactly.

    TORTURE=long      1,000,000 messages and 20 kills instead of 4,000 and 2
    TORTURE_SEED=n    the choices of an earlier run (the kernel's scheduling is not ours to repeat)
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.dialect_clients import CLIENTS, LEASE_SECONDS, Client, MqsClient

LONG = os.environ.get("TORTURE") == "long"
MESSAGES = 1_000_000 if LONG else 4_000
KILLS = 20 if LONG else 2
SECONDS_MAX = 3 * 3600 if LONG else 300
STALL_SECONDS_MAX = 120
DRAIN_SECONDS_MAX = 300
EACH = 2  # Producers and as many consumers of each dialect.
ITEMS = MESSAGES // (EACH * len(CLIENTS))  # What each producer sends.
QUEUES = ("first", "second", "third")
BATCH_MAX = 40
LEFT_SHARE = 0.01  # Of what is taken: not finished, so that it comes back.
CLOCK_SECONDS = 0.1  # By how much our clock and the broker's may differ over a lease.
AGAIN_SHARE = 0.3  # Of the kills: followed by one more, while the broker recovers.

# Small segments and no retention, so that rolling, snapshots and reclaiming happen all the time.
SEGMENT_BYTES = 4 << 20 if LONG else 256 << 10
SETTINGS = (
    f"log.segment_bytes={SEGMENT_BYTES}",
    f"log.snapshot_bytes={2 * SEGMENT_BYTES}",
    "log.retention_seconds=0",
)


def body_of(name: str) -> str:
    """A body of 20 to 600 bytes that can be told from the name alone, with what JSON must escape in it."""
    digest = zlib.crc32(name.encode())
    return f'{name} "\\\n\tß☃' + f"{digest:08x}" * (digest % 70)


@dataclass
class Ledger:
    """What the clients know of each message, by its name."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    sent_to: dict[str, str] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    deliveries: int = 0
    taken_at: dict[str, float] = field(default_factory=dict)
    finishes_sent: dict[str, int] = field(default_factory=dict)
    finished_at: dict[str, float] = field(default_factory=dict)
    sent_again: int = 0
    wrongs: list[str] = field(default_factory=list)
    acknowledged: int = 0
    awaited: int = 0

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)

    def wrong(self, complaint: str) -> None:
        with self.lock:
            self.wrongs.append(complaint)
            self.changed.notify_all()

    def publishing(self, names: list[str], queue: str) -> None:
        with self.lock:
            self.sent_to.update(dict.fromkeys(names, queue))

    def published(self, name: str) -> None:
        with self.lock:
            self.stored.add(name)
            self._count()

    def doubted(self, names: list[str]) -> None:
        """Nobody said whether these were stored: others are sent in their place."""
        with self.lock:
            self.sent_again += len(names)

    def delivered(self, body: str, queue: str, asked_at: float) -> str:
        name = body.partition(" ")[0]
        with self.lock:
            self.deliveries += 1
            if self.sent_to.get(name) != queue:
                self.wrongs.append(f"{queue} delivered {body[:80]!r}, which nobody has sent there")
            elif body != body_of(name):
                self.wrongs.append(f"{queue} delivered {name} with another body than it was sent: {body!r}")
            if self.finished_at.get(name, asked_at) < asked_at:
                self.wrongs.append(f"{queue} delivered {name}, whose finish had been acknowledged: returned")
            # A lease is as durable as all else: it outlives the broker, and nobody else gets the message meanwhile.
            if time.monotonic() < self.taken_at.get(name, -LEASE_SECONDS) + LEASE_SECONDS - CLOCK_SECONDS:
                self.wrongs.append(f"{queue} delivered {name}, on which another had a lease")
            self.taken_at[name] = asked_at
        return name

    def finishing(self, names: list[str]) -> None:
        with self.lock:
            for name in names:
                self.finishes_sent[name] = self.finishes_sent.get(name, 0) + 1

    def finished(self, name: str, granted: bool, asked_at: float) -> None:
        """A finish is refused only where the lease may be over, or another finish may have come first."""
        now = time.monotonic()
        with self.lock:
            if granted:
                self.finished_at.setdefault(name, now)
            elif self.finishes_sent[name] == 1 and now - asked_at < LEASE_SECONDS * 0.8:
                self.wrongs.append(f"finishing {name}, just taken and finished by nobody else, was refused")
            self._count()

    def _count(self) -> None:
        self.acknowledged += 1
        if self.acknowledged >= self.awaited:
            self.changed.notify_all()

    def wait_until_acknowledged(self, count: int) -> bool:
        """False when something is wrong, or nothing has been acknowledged for long."""
        with self.changed:
            self.awaited = count
            while self.acknowledged < count and not self.wrongs:
                before = self.acknowledged
                self.changed.wait_for(lambda: self.acknowledged >= count or self.wrongs, STALL_SECONDS_MAX)
                if self.acknowledged == before:
                    return False
            return not self.wrongs

    def lost(self) -> list[str]:
        """Acknowledged, never asked to be finished, and not there any more once all queues are drained."""
        return sorted(self.stored - self.finishes_sent.keys())

    def unfinished(self, items: int) -> int:
        """Of so many things to send, those of which no copy was ever finished."""
        return items - len({name.rpartition("-")[0] for name in self.finishes_sent})


class Stage:
    """The broker and its lives. Clients wait here while it is dead."""

    def __init__(self, broker: Broker, ledger: Ledger, seed: str) -> None:
        self.broker = broker
        self.ledger = ledger
        self.seed = seed
        self.lives = 0
        self.alive = threading.Event()
        self.over = threading.Event()

    def start(self) -> None:
        self.broker.start()
        self.lives += 1
        self.alive.set()

    def kill(self) -> None:
        self.alive.clear()
        self.broker.kill()

    def visit(self, dialect: str, work: Callable[[Client], None]) -> None:
        """Work on a connection until the work is done, on a new one whenever the broker has been killed."""
        while self.alive.wait() and not self.over.is_set():
            life = self.lives
            try:
                client = CLIENTS[dialect](self.broker)
                try:
                    work(client)
                    return
                finally:
                    client.close()
            except OSError as error:
                if self.alive.is_set() and self.lives == life and not self.over.is_set():
                    self.ledger.wrong(f"{dialect}: the connection broke while the broker was alive: {error!r}")
                    return


def produce(stage: Stage, dialect: str, producer: str) -> None:
    chance, ledger = random.Random(f"{stage.seed}:{producer}"), stage.ledger
    # Each with the number of times that it has been sent before.
    waiting = [(number, 0) for number in range(ITEMS)]

    def work(client: Client) -> None:
        while waiting:
            queue, size = chance.choice(QUEUES), chance.randint(1, BATCH_MAX)
            batch = {f"{producer}:{number}-{again}": (number, again) for number, again in waiting[-size:]}
            del waiting[-size:]
            ledger.publishing(list(batch), queue)
            bodies = {body_of(name): name for name in batch}
            try:
                for body in client.publish(queue, list(bodies)):
                    ledger.published(bodies[body])
                    del batch[bodies[body]]
            finally:
                ledger.doubted(list(batch))
                waiting.extend((number, again + 1) for number, again in batch.values())

    stage.visit(dialect, work)


def consume(stage: Stage, dialect: str, consumer: str) -> None:
    chance = random.Random(f"{stage.seed}:{consumer}")

    def work(client: Client) -> None:
        while not stage.over.is_set():
            take_and_finish(stage.ledger, client, chance.choice(QUEUES), chance.randint(1, BATCH_MAX), chance)

    stage.visit(dialect, work)


def take_and_finish(
    ledger: Ledger, client: Client, queue: str, count: int, chance: random.Random, left_share: float = LEFT_SHARE
) -> None:
    asked_at = time.monotonic()
    names = {each: ledger.delivered(each.body, queue, asked_at) for each in client.take(queue, count)}
    done = [each for each in names if chance.random() >= left_share]
    if done:
        ledger.finishing([names[each] for each in done])
        for each, granted in client.finish(queue, done):
            ledger.finished(names[each], granted, asked_at)


def start_worker(
    stage: Stage, work: Callable[[Stage, str, str], None], dialect: str, number: int
) -> threading.Thread:
    name = f"{work.__name__}-{dialect}-{number}"

    def run() -> None:
        try:
            work(stage, dialect, name)
        except Exception as error:
            stage.ledger.wrong(f"{name}: {error!r}")

    worker = threading.Thread(target=run, name=name, daemon=True)
    worker.start()
    return worker


def kill_now_and_then(stage: Stage, chance: random.Random, tell: Callable[[str], None]) -> bool:
    """False when something went wrong in between."""
    for number in range(KILLS):
        share = (number + chance.uniform(0.5, 1.2)) / (KILLS + 1)
        if not stage.ledger.wait_until_acknowledged(int(2 * MESSAGES * share)):
            return False
        stage.kill()
        while chance.random() < AGAIN_SHARE:
            stage.broker.spawn()
            assert not stage.broker.ended_within(chance.uniform(0, 0.6)), "the broker ended while recovering"
            stage.broker.kill()
        stage.start()
        if LONG:
            tell(f"kill {number + 1}, {summary(stage.ledger)}")
    return True


def drain(stage: Stage) -> None:
    """Help the consumers until nothing is left."""
    chance, deadline = random.Random(stage.seed), time.monotonic() + DRAIN_SECONDS_MAX
    client = MqsClient(stage.broker)
    try:
        while left := [queue for queue in QUEUES if messages_in(stage.broker, queue)]:
            assert time.monotonic() < deadline, f"{left} cannot be drained"
            for queue in left:
                take_and_finish(stage.ledger, client, queue, BATCH_MAX, chance, left_share=0)
    finally:
        client.close()


def messages_in(broker: Broker, queue: str) -> int:
    count = broker.request("GET", f"/queues/{queue}").json()["status"]["messages"]
    assert isinstance(count, int)
    return count


@pytest.mark.torture
@pytest.mark.timeout(SECONDS_MAX + DRAIN_SECONDS_MAX + 60)
def test_kills_lose_nothing_and_return_nothing_across_the_dialects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = os.environ.get("TORTURE_SEED") or str(secrets.randbits(32))

    def tell(text: str) -> None:
        with capsys.disabled():
            print(f"\ntorture: {text}", end="", flush=True)

    tell(f"seed {seed}, {MESSAGES} messages and {KILLS} kills, four dialects")
    ledger = Ledger()
    stage = Stage(Broker(tmp_path / "data", *SETTINGS), ledger, seed)
    started_at = time.monotonic()
    workers: list[threading.Thread] = []
    try:
        stage.start()
        for queue in QUEUES:
            stage.broker.create_queue(queue, visibility_timeout=LEASE_SECONDS)
        plan = [(dialect, number) for dialect in CLIENTS for number in range(EACH)]
        producers = [start_worker(stage, produce, dialect, number) for dialect, number in plan]
        workers = producers + [start_worker(stage, consume, dialect, number) for dialect, number in plan]
        calm = kill_now_and_then(stage, random.Random(seed), tell)
        assert calm, report(seed, ledger, stage.broker)
        for producer in producers:
            producer.join()
        drain(stage)
        stage.over.set()
        for worker in workers:
            worker.join()
        stage.broker.stop()
    finally:
        stage.over.set()
        if stage.broker.running:
            stage.broker.kill()
        stage.alive.set()  # Nobody waits any more.
    tell(f"{summary(ledger)}, {time.monotonic() - started_at:.0f} s\n")
    assert not ledger.wrongs, report(seed, ledger, stage.broker)
    lost = ledger.lost()
    assert not lost, f"seed {seed}: {len(lost)} acknowledged messages are lost: {lost[:20]}\n{stage.broker.log()}"
    assert not ledger.unfinished(ITEMS * len(producers)), report(seed, ledger, stage.broker)


def summary(ledger: Ledger) -> str:
    with ledger.lock:
        return (
            f"{len(ledger.stored)} messages acknowledged, {ledger.sent_again} in doubt, "
            f"{ledger.deliveries} deliveries, {ledger.deliveries - len(ledger.taken_at)} of them repeated, "
            f"{len(ledger.finished_at)} finishes acknowledged"
        )


def report(seed: str, ledger: Ledger, broker: Broker) -> str:
    return "\n".join([f"seed {seed}, {summary(ledger)}", *ledger.wrongs[:20], broker.log()])
