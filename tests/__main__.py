"""`python -m tests`: every test there is, as `make test` runs them. With paths: those only.

The files are dealt one by one to workers, those that take longest first, so that no worker is left alone at the end.
More workers run side by side than there are processors, because tests often wait: for brokers, disks and clocks. Not
very many do: on a machine that is too busy every wait gets longer. Two of them have a Spark session and get the tests
that need one; when there are no more, two others take their place.

How long a file takes is in tests/seconds.json, for those that take long. `--remember` writes it anew, from this run:
measure on a quiet machine. Only the order depends on it.

Progress is one line on a terminal, and a line now and then elsewhere. What a worker printed is shown only if
something failed. At the end each part says what it has cost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from tests.support import spark
from tests.support.dealt import Report

_PYTEST = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "tests.support.dealt"]
_SECONDS = Path("tests/seconds.json")
_OF_SPARK = ("tests/pipeline/", "tests/torture/test_spark.py")
# Together, because all of them are tried on the same sites: else each file would start all sites for itself.
_TOGETHER = ("tests/across/",)
_WORKERS, _WORKERS_OF_SPARK = 4, 2
_REMEMBERED_SECONDS_MIN = 1.0
_REFRESH_SECONDS, _LINE_SECONDS, _STOP_SECONDS_MAX = 0.5, 30.0, 60.0
_NO_TESTS = 5  # The exit code of pytest for a worker that got none.


class Deal(NamedTuple):
    """Files that one worker runs together."""

    paths: tuple[str, ...]
    seconds: float  # As far as it is known.

    @property
    def is_of_spark(self) -> bool:
        return self.paths[0].startswith(_OF_SPARK)

    @property
    def name(self) -> str:
        return self.paths[0].removeprefix("tests/") + (" …" if self.paths[1:] else "")

    @property
    def part(self) -> str:
        """For the summary: its room."""
        return parts[1] if len(parts := Path(self.paths[0]).parts) > 2 else "others"


class Cost(NamedTuple):
    deal: Deal | None  # None: starting, and ending what was shared.
    seconds: float
    processor: float
    outcomes: Counter[str]


class Worker:
    """Runs what it is dealt, in a process of its own."""

    def __init__(self, name: str, *, has_spark: bool) -> None:
        self.name, self.has_spark = name, has_spark
        self.deal: Deal | None = None
        self.costs: list[Cost] = []
        self.has_all = False
        self._last = Report(time.monotonic())
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - It lives as long as the worker.
        self.socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [*_PYTEST, f"--dealt-over={other.fileno()}"],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=[other.fileno()],
            )
        self._reports = self.socket.makefile("r")

    def hear(self) -> bool:
        """What its last deal has cost. Returns whether it is still there."""
        try:
            line = self._reports.readline()
        except ConnectionError:
            line = ""
        if not line:
            self._process.wait()
            if self.deal:  # In the middle of it.
                self.costs.append(Cost(self.deal, 0.0, 0.0, Counter({"failed": 1})))
            return False
        then, self._last = self._last, msgspec.json.decode(line, type=Report)
        seconds, processor = self._last.time - then.time, self._last.processor - then.processor
        outcomes = Counter(self._last.outcomes) - Counter(then.outcomes)
        self.costs.append(Cost(self.deal, seconds, processor, outcomes))
        self.deal = None
        return True

    def give(self, deal: Deal | None) -> None:
        """None: nothing is left."""
        self.deal, self.has_all = deal, deal is None
        with contextlib.suppress(ConnectionError):  # It has ended; that is heard next.
            self.socket.sendall(" ".join(deal.paths if deal else ()).encode() + b"\n")

    def stop(self) -> None:
        """It ends what it has started."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS_MAX)
            self._process.kill()
            self._process.wait()

    @property
    def failures(self) -> list[str]:
        return self._last.failed

    @property
    def failed(self) -> bool:
        return self._process.returncode not in ((0,) if any(cost.deal for cost in self.costs) else (0, _NO_TESTS))

    def what_failed(self) -> str:
        """From where pytest reports failures, or the end of what there is if it did not come so far."""
        self._output.seek(0)
        output = self._output.read().decode("utf-8", "replace")
        report = re.search(r"^=+ (ERRORS|FAILURES) =+$", output, re.MULTILINE)
        interrupted = f"It ended in {' '.join(self.deal.paths)}\n" if self.deal else ""
        return interrupted + (output[report.start() :] if report else output[-10_000:])


class Dealer:
    """Has what is left, what takes longest first."""

    def __init__(self, paths: Iterable[str], seconds: dict[str, float]) -> None:
        together = defaultdict[str, list[str]](list)
        for path in paths:
            together[next((folder for folder in _TOGETHER if path.startswith(folder)), path)].append(path)
        deals = [Deal(tuple(each), sum(seconds.get(path, 0.0) for path in each)) for each in together.values()]
        self.left = sorted(deals, key=lambda deal: -deal.seconds)
        self.total = len(deals)

    def next_for(self, worker: Worker) -> Deal | None:
        chosen = next((deal for deal in self.left if deal.is_of_spark == worker.has_spark), None)
        if chosen:
            self.left.remove(chosen)
        return chosen

    def has(self, *, of_spark: bool) -> bool:
        return any(deal.is_of_spark == of_spark for deal in self.left)


class Progress:
    """One line that changes on a terminal, a line every half a minute in a file."""

    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()
        self._failures: set[str] = set()

    def show(self, workers: list[Worker], dealer: Dealer) -> None:
        now = time.monotonic()
        minutes, seconds = divmod(int(now - self._began), 60)
        under_way = [worker.deal.name for worker in workers if worker.deal]
        done = dealer.total - len(dealer.left) - len(under_way)
        text = "   ".join([f"{minutes}:{seconds:02d}  {done} of {dealer.total} files", *under_way])
        self._show_failures([failure for worker in workers for failure in worker.failures])
        if sys.stdout.isatty():
            print(f"\r\033[K{text}", end="", flush=True)
        elif now - self._shown >= _LINE_SECONDS:
            self._shown = now
            print(text, flush=True)

    def _show_failures(self, failures: list[str]) -> None:
        """Each once, as soon as it is known; why is shown at the end."""
        for failure in failures:
            if failure not in self._failures:
                self._failures.add(failure)
                self.end()
                print(f"FAILED {failure}", flush=True)

    def end(self) -> None:
        if sys.stdout.isatty():
            print("\r\033[K", end="")


class Table:
    """Where all of them sit."""

    def __init__(self, dealer: Dealer) -> None:
        self.dealer = dealer
        self.workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._may_have_spark = threading.Event()

    def run(self, workers: int) -> None:
        """Until all have ended."""
        progress, spark_workers = Progress(), _WORKERS_OF_SPARK if self.dealer.has(of_spark=True) else 0
        if spark_workers:
            threading.Thread(target=self._prepare_spark, daemon=True).start()
        for _ in range(workers):
            self._seat(has_spark=False)
        while spark_workers or self._selector.get_map():
            if spark_workers and self._may_have_spark.is_set():
                self._seat(has_spark=True)
                spark_workers -= 1
            for key, _ in self._selector.select(_REFRESH_SECONDS):
                self._serve(key.data)
            progress.show(self.workers, self.dealer)
        progress.end()

    def _prepare_spark(self) -> None:
        try:
            spark.make_archive()
        finally:
            self._may_have_spark.set()

    def _seat(self, *, has_spark: bool) -> None:
        worker = Worker(f"worker {len(self.workers) + 1}", has_spark=has_spark)
        self.workers.append(worker)
        self._selector.register(worker.socket, selectors.EVENT_READ, worker)

    def _serve(self, worker: Worker) -> None:
        if worker.hear():
            if not worker.has_all:
                worker.give(self.dealer.next_for(worker))
            return
        self._selector.unregister(worker.socket)
        if worker.has_spark and self.dealer.has(of_spark=False):
            self._seat(has_spark=False)

    def clear(self) -> None:
        for worker in self.workers:
            worker.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=["tests"], metavar="PATH", help="files or folders; absent: all")
    parser.add_argument("--workers", type=int, default=_WORKERS, metavar="N", help="besides those with Spark")
    parser.add_argument("--costs", type=int, default=0, metavar="N", help="print the files that cost most")
    parser.add_argument("--remember", action="store_true", help=f"write {_SECONDS}")
    options = parser.parse_args()
    remembered = json.loads(_SECONDS.read_text()) if _SECONDS.exists() else {}
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    table = Table(Dealer(_files(options.paths), remembered))
    try:
        table.run(options.workers)
    finally:
        table.clear()
    if options.remember:
        _remember(table.workers, remembered)
    code = _report(table.workers, table.dealer, time.monotonic() - began)
    _show_costs([cost for worker in table.workers for cost in worker.costs if cost.deal], options.costs)
    return code


def _files(paths: list[str]) -> list[str]:
    found = [file for path in map(Path, paths) for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    return sorted(map(str, found))


def _remember(workers: list[Worker], before: dict[str, float]) -> None:
    """Files that ran together have equal shares."""
    for deal, seconds, _, _ in (cost for worker in workers for cost in worker.costs):
        if deal:
            before |= dict.fromkeys(deal.paths, round(seconds / len(deal.paths), 1))
    long = [path for path in sorted(before) if before[path] >= _REMEMBERED_SECONDS_MIN and Path(path).exists()]
    _SECONDS.write_text(json.dumps({path: before[path] for path in long}, indent=0) + "\n")


def _report(workers: list[Worker], dealer: Dealer, seconds: float) -> int:
    failed = [worker for worker in workers if worker.failed]
    for worker in failed:
        print(f"\n{worker.name} failed:\n{worker.what_failed()}")
    for deal in dealer.left:
        print(f"not run: {' '.join(deal.paths)}")
    costs = [cost for worker in workers for cost in worker.costs]
    parts = defaultdict[str, list[Cost]](list)
    for cost in costs:
        parts[cost.deal.part if cost.deal else "starting and ending"].append(cost)
    for name, those in sorted(parts.items(), key=lambda part: -_processor(part[1])):
        counted = f"{_counted(those)}; " if any(cost.deal for cost in those) else ""
        print(f"{name}: {counted}{_processor(those):.0f} s of the processor")
    print(f"all parts: {_processor(costs):.0f} s of the processor in {seconds:.0f} s")
    print(_counted(costs, "passed", "failed", "skipped"))
    return 1 if failed or dealer.left else 0


def _show_costs(costs: list[Cost], count: int) -> None:
    for cost in sorted(costs, key=lambda cost: -cost.processor)[:count]:
        name = cost.deal.name if cost.deal else ""
        print(f"{cost.processor:6.1f} s of the processor in {cost.seconds:6.1f} s  {name}")


def _processor(costs: list[Cost]) -> float:
    return sum(cost.processor for cost in costs)


def _counted(costs: list[Cost], *always: str) -> str:
    """`always`: also if there are none."""
    outcomes = sum((cost.outcomes for cost in costs), Counter[str]())
    named = [name for name in ("passed", "failed", "skipped") if outcomes[name] or name in always]
    return ", ".join(f"{outcomes[name]} {name}" for name in named)


if __name__ == "__main__":
    sys.exit(main())
