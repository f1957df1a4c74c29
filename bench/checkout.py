"""How fast this checkout is next to another one: `python -m bench checkout --against DIR`.

Brokers of both take turns under the same loads, in one order and then in the other. A figure is compared with that
of the same round, because the speed of the machine drifts; medians are kept. Processor time drifts less.
The other checkout needs no `.venv`: its source runs with the packages of this one.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from bench import load, machine, nq, websocket
from bench.cores import on_load_core
from bench.driver import Count
from bench.penstock import NQ_CONNECTIONS, PAIRS_PER_SECOND_MAX, PULLED_PER_SECOND_MAX, Broker, stock_up
from bench.servers import scratch_directory
from bench.targets import IN_FLIGHT, Plan, check_supply

ROUNDS = 7
WARM_SECONDS, SECONDS = 0.5, 2.0
HERE = Path(__file__).parent.parent

Found = dict[str, float]
Run = Callable[[int, int, float, float], Count]


class Load(NamedTuple):
    """What is published, and then consumed, on a broker of its own."""

    name: str
    publish: Run
    consume: Run
    clients: int  # Connections, or requests in flight on one.
    consumed_per_second_max: int
    needs_queue: bool = True


LOADS = (
    Load("mqs", load.publish_rate, load.consume_rate, load.CONNECTIONS, PAIRS_PER_SECOND_MAX),
    Load("websocket", websocket.post_rate, websocket.finish_rate, IN_FLIGHT, PAIRS_PER_SECOND_MAX),
    Load("nq", nq.post_rate, nq.pull_rate, NQ_CONNECTIONS, PULLED_PER_SECOND_MAX, needs_queue=False),
)


def checkout(progress: Progress, scratch: Path, rounds: int, against: Path) -> Found:
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    task = progress.add_task("checkout", total=rounds * len(LOADS) * 2)
    for turn in range(rounds):
        for each in LOADS:
            found: dict[Path, Found] = {}
            for source in (HERE, against) if turn % 2 else (against, HERE):
                found[source] = dict(_measured(scratch, source, each))
                progress.advance(task)
            for name, value in found[HERE].items():
                pairs[name].append((value, found[against][name]))
    return {"rounds": rounds, **{name: value for figure in pairs for name, value in compared(figure, pairs[figure])}}


def _measured(scratch: Path, source: Path, what: Load) -> Iterator[tuple[str, float]]:
    with scratch_directory(scratch) as directory:
        broker = Broker(directory, environment={"PYTHONPATH": str(source.resolve() / "src")})
        try:
            broker.start()
            if what.needs_queue:
                broker.make_queue(load.QUEUE)
            published = yield from _run(broker, what.publish, what, "publish")
            stored = stock_up(broker, Plan(SECONDS, WARM_SECONDS, scratch), published, what.consumed_per_second_max)
            check_supply(stored, (yield from _run(broker, what.consume, what, "consume")))
        finally:
            broker.end()


def _run(broker: Broker, run: Run, what: Load, verb: str) -> Generator[tuple[str, float], None, Count]:
    before = machine.cpu_seconds(broker.pid)
    count = on_load_core(run, broker.port, what.clients, WARM_SECONDS, SECONDS)
    used = machine.cpu_seconds(broker.pid) - before
    assert not count.errors, count.complaint
    yield f"{what.name}_{verb}_per_second", count.per_second
    yield f"{what.name}_{verb}_microseconds", used / count.with_warm_up * 1e6
    return count


def compared(figure: str, pairs: list[tuple[float, float]]) -> Iterator[tuple[str, float]]:
    here, there = zip(*pairs, strict=True)
    ratios = [one / other for one, other in pairs]
    yield figure, statistics.median(here)
    yield f"{figure}_before", statistics.median(there)
    yield f"{figure}_ratio", statistics.median(ratios)
    yield f"{figure}_ratio_least", min(ratios)
    yield f"{figure}_ratio_most", max(ratios)
