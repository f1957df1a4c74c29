"""kill -9, again and again, under load: nothing acknowledged is lost, nothing deleted returns.

Publishers and receivers work a real broker over real sockets. A ledger in this process writes down what was
sent and what was acknowledged. The broker is killed at moments drawn from a seed, sometimes while it is still
recovering, and started again on the same data. In the end the queues are drained and the ledger is balanced.

    TORTURE=long      500 rounds instead of 5
    TORTURE_SEED=n    the choices of an earlier run (the kernel's scheduling is not ours to repeat)
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.http_client import Connection, encode_multipart, encode_request

LONG = os.environ.get("TORTURE") == "long"
ROUNDS = 500 if LONG else 5
SECONDS_MAX = 3 * 3600 if LONG else 60
ACKNOWLEDGEMENTS_PER_ROUND = (100, 4000)
STALL_SECONDS_MAX = 120
DRAIN_SECONDS_MAX = 300
PUBLISHERS = 4
RECEIVERS = 3

# Small segments and no retention, so that rolling, snapshots and reclaiming happen all the time.
SETTINGS = ("log.segment_bytes=262144", "log.snapshot_bytes=524288", "log.retention_seconds=0")
BATCH = {"Content-Type": "multipart/mixed; boundary=penstock-test"}
FED = ("work", "delayed", "flaky")
ALL = (*FED, "dead")
DELETED_SHARE = {"work": 0.9, "delayed": 0.9, "flaky": 0.4, "dead": 0.3}


@dataclass
class Ledger:
    """What the clients know. A message goes by its name, which is in its body."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    sent_to: dict[str, str] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    deletes_sent: dict[str, int] = field(default_factory=dict)
    deleted_at: dict[str, float] = field(default_factory=dict)
    deliveries: int = 0
    wrongs: list[str] = field(default_factory=list)
    progress: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def publishing(self, names: list[str], queue: str) -> None:
        with self.lock:
            self.sent_to.update(dict.fromkeys(names, queue))

    def published(self, names: list[str]) -> None:
        with self.lock:
            self.stored.update(names)
        self.progress.release()

    def delivered(self, body: bytes, queue: str, asked_at: float) -> str:
        name = body.split(b"\n", 1)[0].decode("utf-8", "replace")
        with self.lock:
            self.deliveries += 1
            if name not in self.sent_to:
                self.wrongs.append(f"{queue} delivered {body[:80]!r}, which nobody has sent")
            elif body != body_of(name):
                self.wrongs.append(f"{queue} delivered {name} with another body than it was sent")
            deleted_at = self.deleted_at.get(name)
            if deleted_at is not None and deleted_at < asked_at:
                self.wrongs.append(f"{queue} delivered {name}, whose deletion had been acknowledged: returned")
        return name

    def deleting(self, name: str) -> None:
        with self.lock:
            self.deletes_sent[name] = self.deletes_sent.get(name, 0) + 1

    def deleted(self, name: str, status: int) -> None:
        with self.lock:
            if status == 204:
                if name in self.deleted_at:
                    self.wrongs.append(f"{name} could be deleted twice")
                self.deleted_at[name] = time.monotonic()
            elif status != 404 or self.deletes_sent[name] == 1:
                self.wrongs.append(f"deleting {name}, delivered and deleted by nobody else, answered {status}")
        self.progress.release()

    def lost(self) -> list[str]:
        """Acknowledged, never asked to be deleted, and not there any more once all queues are drained."""
        return sorted(self.stored - self.deletes_sent.keys())


def body_of(name: str) -> bytes:
    """A body of a size between 50 bytes and 100 KB that can be told from the name alone."""
    chance = random.Random(name)
    size = 100_000 if chance.random() < 0.01 else chance.randrange(50, 4000)
    return f"{name}\n".encode() + chance.randbytes(16).hex().encode() * (size // 32 + 1)


def publish(connection: Connection, ledger: Ledger, chance: random.Random, prefix: str) -> None:
    """Publishes without end; the end is the broker's death."""
    number = 0
    while True:
        count = chance.choice((1, 1, 1, 2, 8))
        names = [f"{prefix}-{number + each}" for each in range(count)]
        number += count
        queue = chance.choice(FED)
        ledger.publishing(names, queue)
        if count == 1:
            answer = connection.request("POST", f"/messages/{queue}", body=body_of(names[0]))
        else:
            parts = encode_multipart([({}, body_of(name)) for name in names])
            answer = connection.request("POST", f"/messages/{queue}", BATCH, parts)
        assert answer.status == 201, f"publishing {names} answered {answer.status} {answer.body[:200]!r}"
        ledger.published(names)


def receive(connection: Connection, ledger: Ledger, chance: random.Random, _prefix: str) -> None:
    """Receives and deletes without end, leaving some messages to come back."""
    while True:
        queue = chance.choice(ALL)
        receive_batch(connection, ledger, queue, chance.randint(1, 10), lambda q: chance.random() < DELETED_SHARE[q])


def receive_batch(
    connection: Connection, ledger: Ledger, queue: str, count: int, wanted: Callable[[str], bool], wait: int = 0
) -> None:
    headers = {"X-MQS-MAX-MESSAGES": str(count)} | ({"X-MQS-MAX-WAIT-TIME": str(wait)} if wait else {})
    asked_at = time.monotonic()
    answer = connection.request("GET", f"/messages/{queue}", headers)
    assert answer.status in (200, 204), f"receiving answered {answer.status} {answer.body[:200]!r}"
    messages = [(ledger.delivered(each.body, queue, asked_at), each) for each in answer.messages()]
    finished = [(name, each.header("X-MQS-MESSAGE-ID")) for name, each in messages if wanted(queue)]
    for name, _ in finished:
        ledger.deleting(name)
    connection.send(b"".join(encode_request("DELETE", f"/messages/{message_id}") for _, message_id in finished))
    for name, _ in finished:
        ledger.deleted(name, connection.read_response(to="DELETE").status)


Work = Callable[[Connection, Ledger, random.Random, str], None]


def start_worker(broker: Broker, ledger: Ledger, work: Work, seed: str) -> threading.Thread:
    def run() -> None:
        try:
            with broker.connect() as connection:
                work(connection, ledger, random.Random(seed), seed.replace(":", "-"))
        except OSError:
            pass  # The broker was killed, as planned.
        except Exception as error:
            with ledger.lock:
                ledger.wrongs.append(f"{work.__name__} {seed}: {error!r}")

    worker = threading.Thread(target=run, name=seed)
    worker.start()
    return worker


def make_queues(broker: Broker) -> None:
    broker.create_queue("dead", visibility_timeout=2)
    broker.create_queue("work", visibility_timeout=2)
    broker.create_queue("delayed", visibility_timeout=2, message_delay=1)
    policy = {"max_receives": 2, "dead_letter_queue": "dead"}
    broker.create_queue("flaky", visibility_timeout=1, redrive_policy=policy)


def play_round(broker: Broker, ledger: Ledger, chance: random.Random, seed: str) -> None:
    """Load until a drawn number of acknowledgements, then SIGKILL, then sometimes one more while it recovers."""
    ledger.progress = threading.Semaphore(0)
    plan: list[tuple[Work, str]] = [(publish, f"{seed}:p{n}") for n in range(PUBLISHERS)]
    plan += [(receive, f"{seed}:r{n}") for n in range(RECEIVERS)]
    workers = [start_worker(broker, ledger, work, name) for work, name in plan]
    stalled = False
    for _ in range(chance.randint(*ACKNOWLEDGEMENTS_PER_ROUND)):
        if not ledger.progress.acquire(timeout=STALL_SECONDS_MAX):
            stalled = True
            break
    broker.kill()
    for worker in workers:
        worker.join()
    wrongs = "\n".join(ledger.wrongs[:20])
    assert not stalled, f"no acknowledgement for {STALL_SECONDS_MAX} s\n{wrongs}\n{broker.log()}"
    while chance.random() < 0.3:
        broker.spawn()
        assert not broker.ended_within(chance.uniform(0, 0.6)), "the broker ended while recovering"
        broker.kill()


def drain(broker: Broker, ledger: Ledger) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    with broker.connect() as connection:
        while left := [queue for queue in ALL if messages_in(connection, queue)]:
            assert time.monotonic() < deadline, f"{left} cannot be drained"
            for queue in left:
                receive_batch(connection, ledger, queue, 100, lambda _: True, wait=1)


def messages_in(connection: Connection, queue: str) -> int:
    count = connection.request("GET", f"/queues/{queue}").json()["status"]["messages"]
    assert isinstance(count, int)
    return count


@pytest.mark.torture
@pytest.mark.timeout(SECONDS_MAX + DRAIN_SECONDS_MAX + 300)
def test_kills_lose_nothing_acknowledged_and_return_nothing_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = os.environ.get("TORTURE_SEED") or str(secrets.randbits(32))
    chance = random.Random(seed)
    ledger = Ledger()
    broker = Broker(tmp_path / "data", *SETTINGS)
    started_at = time.monotonic()
    with capsys.disabled():
        print(f"\ntorture: seed {seed}, up to {ROUNDS} rounds in {SECONDS_MAX} s", flush=True)
    try:
        for number in range(ROUNDS):
            if time.monotonic() - started_at > SECONDS_MAX:
                break
            broker.start()
            if number == 0:
                make_queues(broker)
            play_round(broker, ledger, chance, f"{seed}:{number}")
            assert not ledger.wrongs, report(seed, number, ledger, broker)
            if LONG and number % 10 == 9:
                with capsys.disabled():
                    print(f"torture: round {number + 1}, {summary(ledger)}", flush=True)
        broker.start()
        drain(broker, ledger)
        broker.stop()
    finally:
        if broker.running:
            broker.kill()
    removed = broker.times_logged("segment_removed")
    with capsys.disabled():
        seconds = time.monotonic() - started_at
        print(f"torture: {summary(ledger)}, {removed} segments removed, {seconds:.0f} s", flush=True)
    assert not ledger.wrongs, report(seed, ROUNDS, ledger, broker)
    lost = ledger.lost()
    named = ", ".join(f"{name} (to {ledger.sent_to[name]})" for name in lost[:20])
    assert not lost, f"seed {seed}: {len(lost)} acknowledged messages are lost: {named}\n{broker.log()}"
    assert removed, "no segment was ever removed: the settings do not try what they are meant to try"


def summary(ledger: Ledger) -> str:
    with ledger.lock:
        return (
            f"{len(ledger.stored)} messages acknowledged, {ledger.deliveries} delivered, "
            f"{len(ledger.deleted_at)} deletions acknowledged"
        )


def report(seed: str, number: int, ledger: Ledger, broker: Broker) -> str:
    return "\n".join([f"seed {seed}, round {number}, {summary(ledger)}", *ledger.wrongs[:20], broker.log()])
