"""What messages with an object and a key cost, next to another checkout: `python -m bench keyed --against DIR`.

In turns: lists of 100 and one publish after the other, over two workers with four shards, and both in one process.
Half of the contents have changed. A figure is compared with that of the same round.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress

from bench import machine
from bench.checkout import HERE, compared
from bench.cores import on_load_core
from bench.driver import Count, Latency, closed_loop, one_at_a_time
from bench.load import Framing, Tally, request
from bench.penstock import Broker
from bench.servers import scratch_directory

ROUNDS = 7
CONNECTIONS = 8
LIST = 100
KEYS = 20_000  # Of each connection.
TEXT_BYTES = 200
WARM_SECONDS, SECONDS = 0.5, 2.0
KINDS = {"two_workers": ("--workers", "2", "--shards", "4"), "one_process": ()}

Found = dict[str, float]


def keyed(progress: Progress, scratch: Path, rounds: int, against: Path) -> Found:
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    task = progress.add_task("keyed", total=rounds * len(KINDS) * 2)
    for turn in range(rounds):
        for kind in KINDS:
            found: dict[Path, Found] = {}
            for source in (HERE, against) if turn % 2 else (against, HERE):
                found[source] = dict(_measured(scratch, source, kind))
                progress.advance(task)
            for name, value in found[HERE].items():
                pairs[name].append((value, found[against][name]))
    return {"rounds": rounds, **{name: value for figure in pairs for name, value in compared(figure, pairs[figure])}}


def _measured(scratch: Path, source: Path, kind: str) -> Iterator[tuple[str, float]]:
    with scratch_directory(scratch) as directory:
        pinned = not KINDS[kind]
        environment = {"PYTHONPATH": str(source.resolve() / "src")}
        broker = Broker(directory, KINDS[kind], is_pinned=pinned, environment=environment)
        try:
            broker.start()
            before = _seconds(broker)
            count: Count = on_load_core(_lists, broker.port)
            yield f"{kind}_list_per_second", count.per_second
            yield f"{kind}_list_microseconds", (_seconds(broker) - before) / count.with_warm_up * 1e6
            alone: Latency = on_load_core(_alone, broker.port)
            yield f"{kind}_one_p50_ms", alone.p50_ms
            assert not count.errors + alone.errors, count.complaint + alone.complaint
        finally:
            broker.end()


def _seconds(broker: Broker) -> float:
    return sum(map(machine.cpu_seconds, machine.processes(broker.pid)))


def _lists(port: int) -> Count:
    conversations = [Publish(number, LIST) for number in range(CONNECTIONS)]
    return closed_loop(port, conversations, warm_seconds=WARM_SECONDS, seconds=SECONDS)


def _alone(port: int) -> Latency:
    return one_at_a_time(port, Publish(CONNECTIONS, 1), warm_seconds=WARM_SECONDS, seconds=SECONDS)


class Publish(Tally):
    """Publishes lists about keys of its own, to several queues in turn."""

    def __init__(self, number: int, messages: int) -> None:
        super().__init__()
        self.whole = Framing().whole
        self._messages = messages
        self._requests = self._made(number)

    def _made(self, number: int) -> Iterator[bytes]:
        chance, turn = random.Random(number), 0
        while True:
            turn += 1
            root = b"queue%d" % (turn % 16)
            documents = [
                b'{"topics":["%b.x"],"object":"thing","key":"%d/%d","message":"%b"}'
                % (root, number, key, (b"%d" % chance.randrange(2)).ljust(TEXT_BYTES, b"."))
                for key in chance.sample(range(KEYS), self._messages)
            ]
            body = b"[" + b",".join(documents) + b"]" if self._messages > 1 else documents[0]
            yield request("POST", "/v1/publish", body, {"Content-Type": "application/json"})

    def open(self) -> bytes:
        return next(self._requests)

    def receive(self, data: bytes) -> bytes:
        answer = self.whole(data)
        if not answer:
            return b""
        if answer[9:12] == b"201":
            self.finished += self._messages
        else:
            self.wrong(answer)
        return next(self._requests)
