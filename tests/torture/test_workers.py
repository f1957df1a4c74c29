"""Workers of one broker are killed in turn under traffic in four dialects: the others go on, and nothing is lost.

The ledger and the clients are those of `test_across.py`. A client whose worker was killed, or whose queue is in a
shard that recovers, connects again and sends what was not acknowledged under another name.

    TORTURE=long      1,000,000 messages and 20 kills instead of 4,000 and 3
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.dialect_clients import CLIENTS, LEASE_SECONDS, Client
from tests.support.waiting import wait_until
from tests.torture.test_across import (
    DRAIN_SECONDS_MAX,
    EACH,
    ITEMS,
    LONG,
    MESSAGES,
    QUEUES,
    SECONDS_MAX,
    SETTINGS,
    Ledger,
    Stage,
    consume,
    drain,
    produce,
    report,
    start_worker,
    summary,
)

KILLS = 20 if LONG else 3
WORKERS = 3
FLAGS = ("--workers", str(WORKERS), "--shards", "6")
PAUSE_SECONDS = 0.05  # Between tries of a client that was refused.


class Workers(Stage):
    """A broker whose workers are killed one at a time."""

    def visit(self, dialect: str, work: Callable[[Client], None]) -> None:
        """Work until the work is done, on a new connection whenever one breaks or something is unavailable."""
        while not self.over.wait(PAUSE_SECONDS):
            try:
                client = CLIENTS[dialect](self.broker)
                try:
                    work(client)
                    return
                finally:
                    client.close()
            except (OSError, EOFError, AssertionError, LookupError):  # Broken, or refused as unavailable.
                continue

    def kill_one(self, chance: random.Random) -> None:
        """Returns when all are back."""
        children = Path(f"/proc/{self.broker.pid}/task/{self.broker.pid}/children").read_text().split()
        os.kill(int(chance.choice(children)), signal.SIGKILL)
        self.broker.wait_until_logged("worker_killed")
        self.broker.wait_until_logged("worker_listening")


def kill_now_and_then(stage: Workers, chance: random.Random) -> bool:
    """False when something went wrong in between."""
    for number in range(KILLS):
        share = (number + chance.uniform(0.5, 1)) / (KILLS + 1)
        if not stage.ledger.wait_until_acknowledged(int(2 * MESSAGES * share)):
            return False
        stage.kill_one(chance)
    return True


def are_served(broker: Broker) -> bool:
    return all(broker.request("GET", f"/queues/{queue}").status == 200 for queue in QUEUES)


@pytest.mark.torture
@pytest.mark.timeout(SECONDS_MAX + DRAIN_SECONDS_MAX + 60)
def test_killed_workers_lose_nothing_and_return_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed, started_at, ledger = os.environ.get("TORTURE_SEED") or str(secrets.randbits(32)), time.monotonic(), Ledger()
    stage = Workers(Broker(tmp_path / "data", *SETTINGS, flags=FLAGS), ledger, seed)
    threads: list[threading.Thread] = []
    try:
        stage.start()
        for queue in QUEUES:
            stage.broker.create_queue(queue, visibility_timeout=LEASE_SECONDS)
        plan = [(dialect, number) for dialect in CLIENTS for number in range(EACH)]
        producers = [start_worker(stage, produce, dialect, number) for dialect, number in plan]
        threads = producers + [start_worker(stage, consume, dialect, number) for dialect, number in plan]
        calm = kill_now_and_then(stage, random.Random(seed))
        assert calm, report(seed, ledger, stage.broker)
        for producer in producers:
            producer.join()
        wait_until(lambda: are_served(stage.broker), "all queues are served")
        drain(stage)
        stage.over.set()
        for thread in threads:
            thread.join()
        stage.broker.stop()
    finally:
        stage.over.set()
        if stage.broker.running:
            stage.broker.kill()
    with capsys.disabled():
        print(f"\nworkers: seed {seed}, {summary(ledger)}, {time.monotonic() - started_at:.0f} s")
    assert not ledger.wrongs, report(seed, ledger, stage.broker)
    assert not ledger.lost(), f"seed {seed}: lost {ledger.lost()[:20]}\n{stage.broker.log()}"
    assert not ledger.unfinished(ITEMS * len(producers)), report(seed, ledger, stage.broker)
