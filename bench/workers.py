"""What messages cost with several workers, and how many more they take: `python -m bench workers`.

A plain broker, and brokers with 1, 2 and 4 workers, take turns. They may use all cores, and so may the load, which is
a C program that costs little (`pour.c`). Each connection publishes to one of 32 queues:

    spread       any queue on any connection, as clients do that know nothing of workers: of n workers each stores 1/n
                 of what it receives and forwards the rest
    local        each connection publishes to a queue of the worker that serves it
    forwarded    each connection publishes to a queue of another worker

Processor time is that of all workers together, that of the load is measured apart. The bar is about rates: two
workers on two cores are to take 1.6 times as many messages as one.
"""

import contextlib
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from bench import load, machine, nq, websocket
from bench.driver import connect
from bench.penstock import Broker
from bench.pour import Poured, Stream, compiled, grouped, pour, servers_of
from bench.servers import scratch_directory
from penstock.broker.shard_map import ShardMap
from penstock.cluster.links.mesh import owner_of
from penstock.server.supervisor import shards_for

ROUNDS = 3
WARM_SECONDS, SECONDS = 0.5, 2.0
QUEUES = [f"bench-{number}" for number in range(32)]
WORKERS = (0, 1, 2, 4)  # 0: a plain broker with one shard.
PLACEMENTS = ("spread", "local", "forwarded")
LINK_SECONDS_MAX, LINK_PROBE_SECONDS = 20.0, 0.05
HEALTH = load.request("GET", "/health")

Found = dict[str, float]


class Load(NamedTuple):
    name: str
    framing: str
    open: Callable[[int], socket.socket]
    request: Callable[[str], bytes]  # To a queue.
    messages: int  # Of a request.
    connections: int
    depth: int  # Requests in flight on a connection.


def _asked(port: int) -> socket.socket:
    """An HTTP connection that a worker has accepted."""
    link = connect(port, blocking=True)
    link.sendall(HEALTH)
    assert b"200" in link.recv(4096)
    return link


LOADS = (
    Load("single", "http", _asked, load.post, 1, 256, 1),
    Load("websocket", "websocket", websocket.greeted, lambda queue: websocket.post(100, queue), 1, 32, 256),
    Load("batch", "http", _asked, nq.post, nq.MESSAGES, 128, 1),
)


def workers(progress: Progress, scratch: Path, rounds: int) -> Found:
    samples: dict[str, list[float]] = defaultdict(list)
    task = progress.add_task("workers", total=len(WORKERS) * len(LOADS) * rounds)
    with scratch_directory(scratch) as directory:
        program = compiled(directory)
        for _ in range(rounds):
            for count in WORKERS:
                with _broker(directory, count) as broker:
                    for each in LOADS:
                        for name, value in _measure(program, broker, count, each):
                            samples[name].append(value)
                        progress.advance(task)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return {"rounds": rounds} | medians | _gains(medians)


def _gains(medians: Found) -> Found:
    """How many times as much two workers take as one."""
    rates = "{}_{}_{}_messages_per_second".format
    return {
        f"{each.name}_{placement}_two_workers_to_one": medians[rates(each.name, 2, placement)]
        / medians[rates(each.name, 1, "local")]
        for each in LOADS
        for placement in PLACEMENTS
    }


@contextlib.contextmanager
def _broker(scratch: Path, count: int) -> Iterator[Broker]:
    options = ("--workers", str(count), "--shards", str(shards_for(count))) if count else ()
    with scratch_directory(scratch) as directory:
        broker = Broker(directory, options, is_pinned=False)
        broker.start()
        try:
            make_queues(broker, *QUEUES)
            yield broker
        finally:
            broker.end()


def make_queues(broker: Broker, *queues: str) -> None:
    """Workers answer 503 until they have links to all others."""
    deadline = time.monotonic() + LINK_SECONDS_MAX
    for queue in queues:
        while True:
            try:
                broker.make_queue(queue)
                break
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LINK_PROBE_SECONDS)


def _measure(program: Path, broker: Broker, count: int, what: Load) -> Iterator[tuple[str, float]]:
    for placement in PLACEMENTS if count > 1 else ("local",):
        with contextlib.ExitStack() as stack:
            streams = _streams(broker, count, what, placement, stack)
            processes = _processes(broker, count)
            before = sum(map(machine.cpu_seconds, processes))
            poured = _poured(program, what, streams)
            used = sum(map(machine.cpu_seconds, processes)) - before
        name = f"{what.name}_{count}_{placement}"
        yield f"{name}_messages_per_second", poured.per_second
        yield f"{name}_microseconds_per_message", used / poured.with_warm_up * 1e6
        yield f"{name}_messages_per_core_second", poured.with_warm_up / used
        yield f"{name}_load_microseconds_per_message", poured.load_cpu_seconds / poured.with_warm_up * 1e6


def _poured(program: Path, what: Load, streams: list[Stream]) -> Poured:
    return pour(
        program,
        what.framing,
        streams,
        depth=what.depth,
        messages=what.messages,
        warm=WARM_SECONDS,
        seconds=SECONDS,
    )


def _processes(broker: Broker, count: int) -> list[int]:
    """Those that serve, in the order of their numbers."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    return sorted(map(int, children)) if count else [broker.pid]


# Connections


def _streams(broker: Broker, count: int, what: Load, placement: str, stack: contextlib.ExitStack) -> list[Stream]:
    """As many connections to each worker, over as many queues as there are connections or all of them."""
    found = []
    for worker, links in enumerate(_connected(broker.port, _processes(broker, count), what, stack)):
        queues = _queues(worker, count, placement)
        found += [Stream(link, what.request(queues[index % len(queues)])) for index, link in enumerate(links)]
    return found


def _queues(worker: int, count: int, placement: str) -> list[str]:
    """Those that connections to this worker publish to."""
    if placement == "spread" or count <= 1:
        return QUEUES
    shards = ShardMap(shards_for(count))
    is_local = {queue: owner_of(shards.of_name(queue), count) == worker for queue in QUEUES}
    return [queue for queue in QUEUES if is_local[queue] == (placement == "local")]


def _connected(port: int, processes: list[int], what: Load, stack: contextlib.ExitStack) -> list[list[socket.socket]]:
    """Connections to each process, in the order of the processes. The kernel spreads them: those that are too many
    for one are closed."""
    each = what.connections // len(processes)
    links: list[socket.socket] = []
    while True:
        links += [stack.enter_context(what.open(port)) for _ in range(what.connections)]
        found = grouped(links, servers_of(links, port, processes))
        if all(len(found[process]) >= each for process in processes):
            break
    for process in processes:
        for link in found[process][each:]:
            link.close()
    return [found[process][:each] for process in processes]
