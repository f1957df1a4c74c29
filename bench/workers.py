"""What messages cost with several workers: `python -m bench workers`.

A plain broker, and brokers with 1, 2 and 4 workers on 8 shards, take turns. Clients publish to 32 queues on
connections that the kernel spreads over the workers, so of n workers each stores 1/n of what it receives and forwards
the rest. Processor time is that of all workers together, so it says what one core does. The rate needs as many free
cores as there are workers, and more for the load.
"""

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress

from bench import machine
from bench.driver import Count, closed_loop
from bench.load import CONNECTIONS, Publish, multipart, post
from bench.penstock import Broker
from bench.servers import scratch_directory

ROUNDS = 3
WARM_SECONDS, SECONDS = 0.5, 2.0
BATCH = 100
BATCH_CONNECTIONS = 32
QUEUES = [f"bench-{number}" for number in range(32)]
WORKERS = (0, 1, 2, 4)  # 0: a plain broker with one shard.
SHARDS = 8

Found = dict[str, float]


def workers(progress: Progress, scratch: Path, rounds: int) -> Found:
    samples: dict[str, list[float]] = defaultdict(list)
    task = progress.add_task("workers", total=2 * len(WORKERS) * rounds)
    for _ in range(rounds):
        for count in WORKERS:
            with _broker(scratch, count) as broker:
                for messages in (1, BATCH):
                    microseconds, rate = _measure(broker, messages)
                    name = f"workers_{count}_batch_{messages}"
                    samples[f"{name}_microseconds_per_message"].append(microseconds)
                    samples[f"{name}_messages_per_second"].append(rate)
                    progress.advance(task)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    for name, value in list(medians.items()):
        if name.endswith("_microseconds_per_message"):
            medians[name.replace("_microseconds_per_message", "_messages_per_core_second")] = 1e6 / value
    return {"rounds": rounds} | medians


@contextlib.contextmanager
def _broker(scratch: Path, count: int) -> Iterator[Broker]:
    options = ("--workers", str(count), "--shards", str(SHARDS)) if count else ()
    with scratch_directory(scratch) as directory:
        broker = Broker(directory, options)
        broker.start()
        try:
            for queue in QUEUES:
                broker.make_queue(queue)
            yield broker
        finally:
            broker.end()


def _measure(broker: Broker, messages: int) -> tuple[float, float]:
    """Processor time of a message in microseconds, and messages a second."""
    processes = [broker.pid, *_children(broker.pid)]
    before = sum(map(machine.cpu_seconds, processes))
    count = publish_rate(broker.port, messages)
    used = sum(map(machine.cpu_seconds, processes)) - before
    assert not count.errors, count.complaint
    return used / count.with_warm_up * 1e6, count.per_second


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def publish_rate(port: int, messages: int) -> Count:
    connections = CONNECTIONS if messages == 1 else BATCH_CONNECTIONS
    requests = [post(queue) if messages == 1 else multipart(queue, messages) for queue in QUEUES]
    publishers = [Publish(requests[number % len(QUEUES)], messages) for number in range(connections)]
    return closed_loop(port, publishers, warm_seconds=WARM_SECONDS, seconds=SECONDS)
