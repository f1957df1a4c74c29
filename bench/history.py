"""What change detection costs: the rate with object and key compared with the rate without, and memory.

`python -m bench history` measures rates with a million keys in the Object History, and memory with ten million.
The histories are written directly, as `penstock log rebuild-history` does, not by publishing.
"""

import time
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count, pairwise
from pathlib import Path
from statistics import median

from rich.progress import Progress

from bench import machine
from bench.cores import on_load_core
from bench.driver import Count, StoppedError, closed_loop
from bench.load import CONNECTIONS, Framing, Tally, request
from bench.penstock import Broker
from bench.servers import scratch_directory
from penstock.model.values import Version
from penstock.storage.directory import DataDirectory
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import name_of

Found = dict[str, float]

KEYS = 1_000_000
MANY = 10  # Memory is measured with this many times as many keys.
WARM_SECONDS = 1.0
SECONDS = 3.0
ROUNDS = 11
MEMORY_SECONDS = 10.0
OBJECT = "thing"
TEXT_BYTES = 200
KNOWN = 0  # The content that is in the history.


def history(progress: Progress, scratch: Path, keys: int) -> Found:
    return {"keys": keys} | _rates(progress, scratch, keys) | _memory(progress, scratch, MANY * keys)


def _rates(progress: Progress, scratch: Path, keys: int) -> Found:
    """Measure the kinds of load in turn, several times. A ratio compares two measurements of the same round."""
    rates: dict[str, list[float]] = {}
    with scratch_directory(scratch) as directory:
        task = progress.add_task(f"making a history of {keys:,} keys", total=None)
        fill(directory / "data", keys)
        broker = Broker(directory)
        broker.start()
        rounds = count()
        try:
            for number in range(ROUNDS):
                for kind in ("plain", "unchanged", "mixed", "changed"):
                    progress.update(task, description=f"{kind}, round {number + 1}")
                    load = (broker.port, kind, keys, next(rounds))
                    counted = _right(on_load_core(publish_rate, *load))
                    rates.setdefault(kind, []).append(counted.per_second)
        finally:
            broker.end()
        progress.remove_task(task)
    ratios = {
        kind: [rate / plain for rate, plain in zip(found, rates["plain"], strict=True)]
        for kind, found in rates.items()
        if kind != "plain"
    }
    return {
        **{f"{kind}_per_second": median(found) for kind, found in rates.items()},
        **{f"{kind}_to_plain": median(found) for kind, found in ratios.items()},
        **{f"{kind}_to_plain_lowest": min(found) for kind, found in ratios.items()},
        **{f"{kind}_to_plain_highest": max(found) for kind, found in ratios.items()},
    }


def _memory(progress: Progress, scratch: Path, keys: int) -> Found:
    """Memory of the broker and of the process that writes its history, while keys across the history change."""
    with scratch_directory(scratch) as directory:
        task = progress.add_task(f"making a history of {keys:,} keys", total=None)
        fill(directory / "data", keys)
        broker = Broker(directory)
        broker.start()
        try:
            progress.update(task, description="changing keys all over it")
            most = 0
            began, rounds = time.monotonic(), count()
            while time.monotonic() - began < MEMORY_SECONDS:
                _right(on_load_core(publish_rate, broker.port, "changed", keys, 1000 + next(rounds)))
                most = max(most, sum(map(_peak_bytes, machine.processes(broker.pid))))
        finally:
            broker.end()
        progress.remove_task(task)
        size = machine.directory_bytes(directory / "data" / "history")
    return {"many_keys": keys, "many_keys_rss_bytes": most, "many_keys_directory_bytes": size}


def _peak_bytes(pid: int) -> int:
    """The peak memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _right(counted: Count) -> Count:
    if counted.errors:
        raise StoppedError(f"{counted.errors} wrong answers: {counted.complaint}")
    return counted


# ── Writing a history directly ───────────────────────────────────────────────────────────────────────────────────


def fill(data: Path, keys: int) -> None:
    """Write a data directory without a log, with a history in which every key has the known content."""
    directory = DataDirectory(data)
    directory.open()
    directory.history.mkdir()
    stored = StoredVersions(directory.history, writable=True)
    stored.load(_versions(keys))
    stored.close()
    directory.close()


def _versions(keys: int) -> Iterator[tuple[bytes, Version]]:
    version = Version(blake2b(text(KNOWN), digest_size=16).digest(), 1, 1, 1, 1, 0)
    for key in range(keys):  # In the order of their names, since all have as many digits.
        yield name_of(OBJECT, b"%010d" % key), version


# ── The load ──────────────────────────────────────────────────────────────────────────────────────────────────


def text(content: int) -> bytes:
    return (b"%012d" % content).ljust(TEXT_BYTES, b".")


def publish_rate(port: int, kind: str, keys: int, number: int) -> Count:
    """Publish to the half of the keys that changes, or to the half that does not; if mixed, half of the connections
    to each. `number` is that of the round, so that a change is always new content."""
    half = keys // 2
    bounds = [half * each // CONNECTIONS for each in range(CONNECTIONS + 1)]
    conversations = []
    for each, (start, stop) in enumerate(pairwise(bounds)):
        own = ("unchanged", "changed")[each % 2] if kind == "mixed" else kind
        first = half if own == "changed" else 0
        conversations.append(Publish(own, range(first + start, first + stop), number))
    return closed_loop(port, conversations, warm_seconds=WARM_SECONDS, seconds=SECONDS)


class Publish(Tally):
    """Publishes a message for each of its keys, one after the other."""

    def __init__(self, kind: str, keys: range, number: int) -> None:
        super().__init__()
        self.whole = Framing().whole
        self.expected = b'"state":"U"' if kind == "unchanged" else b'"state":"Q"'
        self.requests = self._requests(kind, keys, number)

    @staticmethod
    def _requests(kind: str, keys: range, number: int) -> Iterator[bytes]:
        about = b'"object":"%b","key":"%%010d",' % OBJECT.encode() if kind != "plain" else b""
        template = b'{"topics":["%b.said"],%b"message":"%%b"}' % (OBJECT.encode(), about)
        size = len(template % ((0, text(0)) if about else text(0)))
        head = request("POST", "/v1/publish", b"x" * size, {"Content-Type": "application/json"})[:-size]
        for turn in count(number * 1000 + 1):
            content = text(turn if kind == "changed" else KNOWN)
            for key in keys:
                yield head + template % ((key, content) if about else content)

    def open(self) -> bytes:
        return next(self.requests)

    def receive(self, data: bytes) -> bytes:
        answer = self.whole(data)
        if not answer:
            return b""
        if answer[9:12] == b"201" and self.expected in answer:
            self.finished += 1
        else:
            self.wrong(answer)
        return next(self.requests)
