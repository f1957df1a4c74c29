"""What it costs to publish through a worker that does not have the queue: `python -m bench link`.

The owner of the queue is asked directly and through another worker, in turns. Processor time is that of both
processes. The bar is 2 times a local publish for one message a request, and 1.3 times for 100.
"""

import contextlib
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress

from bench import machine
from bench.cores import on_load_core
from bench.driver import Count, closed_loop
from bench.load import CONNECTIONS, QUEUE, Publish, multipart, post
from bench.penstock import Broker
from bench.servers import accepts, free_port, running, scratch_directory

ROUNDS = 5
WARM_SECONDS, SECONDS = 0.5, 2.0
BATCH = 100
BATCH_CONNECTIONS = 16

Found = dict[str, float]


def link(progress: Progress, scratch: Path, rounds: int) -> Found:
    samples: dict[str, list[float]] = defaultdict(list)
    task = progress.add_task("link", total=4 * rounds)
    with scratch_directory(scratch) as directory, _workers(directory) as ((owner, at_owner), (front, at_front)):
        for _ in range(rounds):
            for messages in (1, BATCH):
                for name, port in (("local", at_owner), ("forwarded", at_front)):
                    used, count = _measure([owner.pid, front.pid], port, messages)
                    samples[f"{name}_{messages}_microseconds_per_message"].append(used)
                    samples[f"{name}_{messages}_messages_per_second"].append(count.per_second)
                    progress.advance(task)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    for messages in (1, BATCH):
        local, forwarded = (medians[f"{name}_{messages}_microseconds_per_message"] for name in ("local", "forwarded"))
        medians[f"forwarded_{messages}_to_local"] = forwarded / local
    return {"rounds": rounds} | medians


@contextlib.contextmanager
def _workers(directory: Path) -> Iterator[list[tuple[subprocess.Popen[bytes], int]]]:
    """The owner of the queue and another worker, each with its port."""
    with contextlib.ExitStack() as stack:
        found = []
        for role in ("owner", "front"):
            port, home = free_port(), directory / role
            home.mkdir()
            command = [sys.executable, "-m", "bench.linked", role, port, home / "data", directory / "link"]
            ready = lambda port=port: accepts(port) and (directory / "link").exists()  # noqa: E731
            found.append((stack.enter_context(running(command, home, ready)), port))
        Broker(directory, port=found[0][1]).make_queue(QUEUE)
        yield found


def _measure(pids: list[int], port: int, messages: int) -> tuple[float, Count]:
    before = sum(map(machine.cpu_seconds, pids))
    count = on_load_core(publish_rate, port, messages)
    used = sum(map(machine.cpu_seconds, pids)) - before
    assert not count.errors, count.complaint
    return used / count.with_warm_up * 1e6, count


# On the core of the load


def publish_rate(port: int, messages: int) -> Count:
    request, connections = (post(), CONNECTIONS) if messages == 1 else (multipart(QUEUE, messages), BATCH_CONNECTIONS)
    publishers = [Publish(request, messages) for _ in range(connections)]
    return closed_loop(port, publishers, warm_seconds=WARM_SECONDS, seconds=SECONDS)
