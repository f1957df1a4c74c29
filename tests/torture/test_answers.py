"""Clients publish in eight ways and take in seven while workers, nodes and PostgreSQL are killed, stopped and
replaced. Every answer is compared with what the queues hold in the end (`tests/support/storm.py`).

What was refused as unavailable is not stored, what was acknowledged is, what was finished does not come back, and
what was popped has gone to somebody. Next to nothing has an unknown outcome.

    TORTURE=long      500 kills of workers and 50 stops, 200 replacements of nodes and 10 failovers of PostgreSQL;
                      otherwise 2 kills, and 2 replacements
    TORTURE_TIMES=N   N of each
    TORTURE_SUMS=FILE each storm adds what it has shown; `python -m tests.torture.sums FILE` shows the sums
    TORTURE_SEED=N    the choices of an earlier run (the kernel's scheduling is not ours to repeat)
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle, islice, repeat
from pathlib import Path

import pytest

from penstock.broker.shard_map import ShardMap
from tests.support.broker import Broker, Site, workers_of
from tests.support.effort import LONG
from tests.support.failover import a_pair
from tests.support.nodes import Balanced, is_balanced, nodes_on, until
from tests.support.postgres import Postgres
from tests.support.replacing import Replace, hand_over, kill, stand_still
from tests.support.storm import WORK, Storm
from tests.support.waiting import wait_until
from tests.torture.sums import Slice, note

SHARDS = 6
assert {ShardMap(SHARDS).of_name(name) for name in WORK} == set(range(SHARDS))
WORKERS = ("--workers", "3", "--shards", str(SHARDS))
NODES = 3
LEASE = "store_lease_seconds=4"  # A shorter one is lost again and again on a machine that is busy.
PATIENCE = "ask_again_seconds=60"  # A successor comes in that time on any machine.
BETWEEN = 200  # Messages that are answered between two faults.
UNKNOWN_SHARE_MAX = 0.01  # Of what was in flight.
SEED = int(os.environ.get("TORTURE_SEED") or secrets.randbits(32))
SECONDS_MAX = 7200
REPLACEMENTS: tuple[Replace, ...] = (kill, stand_still, kill, hand_over, kill)
pytestmark = [pytest.mark.torture, pytest.mark.timeout(SECONDS_MAX)]


def times(short: int, long: int) -> int:
    return int(os.environ.get("TORTURE_TIMES") or (long if LONG else short))


def kill_one(broker: Broker, chance: random.Random) -> None:
    os.kill(chance.choice(workers_of(broker)), signal.SIGKILL)
    broker.wait_until_logged("worker_killed")
    broker.wait_until_logged("worker_listening")


def stop_one(broker: Broker, chance: random.Random) -> None:
    """SIGSTOP for up to 8 seconds. After six the others close their links to it."""
    worker, until = chance.choice(workers_of(broker)), time.monotonic() + chance.uniform(0, 8)
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: time.monotonic() >= until, "it goes on")
    os.kill(worker, signal.SIGCONT)
    wait_until(lambda: broker.request("GET", "/health").status == 200, "all workers are there")


@pytest.mark.parametrize(("fault", "count"), [(kill_one, times(2, 500)), (stop_one, times(0, 50))])
def test_answers_are_true_whatever_becomes_of_workers(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: Callable[[Broker, random.Random], None],
    count: int,
) -> None:
    if not count:
        pytest.skip("a stop takes seconds: TORTURE=long")
    chance, broker = random.Random(SEED), Broker(tmp_path / "data", PATIENCE, flags=WORKERS).start()
    try:
        unknown_share_max = 0.0 if fault is kill_one else UNKNOWN_SHARE_MAX
        faults = repeat((f"worker {fault.__name__}", lambda _: fault(broker, chance)), count)
        said = storm_over(broker, faults, unknown_share_max)
    finally:
        broker.stop()
    with capsys.disabled():
        print(f"\n{said}")


Fault = tuple[str, Callable[[Storm], object]]  # With its name.


def storm_over(site: Site, faults: Iterable[Fault], unknown_share_max: float) -> str:
    """Try them all, and check every answer. If one was not true, that is noted too."""
    storm, began, tried = Storm(site, SEED), time.monotonic(), Counter[str]()
    with storm.blowing():
        for name, fault in faults:
            storm.grow(BETWEEN)
            fault(storm)
            tried[name] += 1
        storm.grow(BETWEEN)
    checked = storm.check(site)
    note(Slice(SEED, tried, round(time.monotonic() - began, 1), checked))
    assert not checked.false, checked.examples
    said = f"{dict(tried)}, seed {SEED}: {checked}"
    assert sum(checked.unknown.values()) <= unknown_share_max * checked.in_flight, said
    return said


def test_answers_are_true_whatever_becomes_of_nodes(
    postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = times(2, 200)
    store = postgres.new_store(SHARDS)
    with nodes_on(store, tmp_path, NODES, LEASE, PATIENCE) as nodes:
        order = cycle(nodes)

        def come_back(node: Broker) -> None:
            if not node.running:
                node.start()

        def replaced(storm: Storm, how: Replace) -> None:
            seconds.append(how(next(order), storm.served, come_back))

        seconds: list[float] = []
        faults = [(f"node {how.__name__}", partial(replaced, how=how)) for how in islice(cycle(REPLACEMENTS), count)]
        said = storm_over(Balanced(nodes), faults, UNKNOWN_SHARE_MAX)
        until(lambda: is_balanced(store, NODES))
        for node in nodes:
            node.stop()
    with capsys.disabled():
        print(f"\nserved again after {max(seconds):.2f} s at worst, {said}")


def test_answers_are_true_when_the_postgresql_of_nodes_fails_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (count := times(0, 10)):
        pytest.skip("a failover takes seconds: TORTURE=long")
    with a_pair() as pair, nodes_on(pair.new_store(SHARDS), tmp_path, NODES, LEASE, PATIENCE) as nodes:

        def fail_over(storm: Storm) -> None:
            pair.attach()
            storm.grow(BETWEEN)
            began = time.monotonic()
            pair.fail_over()
            storm.served.since(began)

        said = storm_over(Balanced(nodes), repeat(("failover", fail_over), count), UNKNOWN_SHARE_MAX)
        for node in nodes:
            node.stop()
    with capsys.disabled():
        print(f"\n{said}")
