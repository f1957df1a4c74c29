"""`python -m tests`: every test there is, in ten parts, as `make test` runs them.

More of them run side by side than there are processors, because they often wait: for brokers, disks and clocks. Not
all of them do: on a machine that is too busy every wait gets longer. The longest parts come first, so that none of
them is left alone at the end.

Progress is one line on a terminal, and a line now and then elsewhere. What a part printed is shown only if it failed.
At the end each part says what it has cost. Java is not counted where it outlives the part that started it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from tests.support import spark

_PYTEST = [sys.executable, "-m", "pytest", "-v", "--no-header", "-o", "console_output_style=count"]
_SPARK_FOLDER = "tests/pipeline"
_LAKE = f"{_SPARK_FOLDER}/lake"
_SPARK_PROCESSES = [f"{_SPARK_FOLDER}/test_cluster.py", "tests/torture/test_spark.py"]
_WIRE = sorted(str(path) for path in Path("tests/wire").glob("test_*.py"))
_PROGRAMS = ["tests/cli", "tests/client", "tests/worker"]
_PAGES = ["tests/across", "tests/console", "tests/test_documentation.py", "tests/test_examples.py"]
_TORTURE, _CONFORMANCE = "tests/torture", "tests/conformance"
_BROKERS_SIDE_BY_SIDE = 4
_SPARK_SIDE_BY_SIDE = 2
_NO_CACHE = ["-p", "no:cacheprovider"]  # One cache, one writer.
_REFRESH_SECONDS = 0.5
_LINE_SECONDS = 30.0
_OUTCOMES = ("passed", "failed", "skipped", "error")


class Part:
    """Some of the tests, in a process of their own."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self._command = [*_PYTEST, *arguments]
        self.processor = 0.0  # Seconds, with those of all processes that it has started and that have ended.
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self.seconds = 0.0
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - It lives as long as the part.

    def start(self) -> None:
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT
        )

    def stop(self) -> None:
        if self._process and self.running:
            self._process.terminate()
            self._process.wait()

    @property
    def waiting(self) -> bool:
        return self._process is None

    @property
    def running(self) -> bool:
        if self._process is None:
            return False
        if self._process.returncode is None:
            self._look_whether_it_has_ended(self._process)
        return self._process.returncode is None

    def _look_whether_it_has_ended(self, process: subprocess.Popen[bytes]) -> None:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            self.processor = usage.ru_utime + usage.ru_stime
            self.seconds = time.monotonic() - self._began

    @property
    def failed(self) -> bool:
        return self._process is None or self.running or self._process.returncode != 0

    def progress(self) -> str:
        done = re.findall(r"\[ *(\d+/\d+)\]", self.output())
        if self.waiting:
            return f"{self.name} waits"
        if not self.running:
            return f"{self.name} {'FAILED' if self.failed else 'done'}"
        return f"{self.name} {done[-1] if done else 'starting'}"

    def output(self) -> str:
        self._output.flush()
        size = self._output.seek(0, 2)
        with open(f"/proc/self/fd/{self._output.fileno()}", "rb") as copy:  # noqa: PTH123 - Its own position.
            return copy.read(size).decode("utf-8", "replace")

    def what_failed(self) -> str:
        """From where pytest reports failures, or the end of what there is if it did not come so far."""
        output = self.output()
        report = re.search(r"^=+ (ERRORS|FAILURES) =+$", output, re.MULTILINE)
        return output[report.start() :] if report else output[-10_000:]

    def counts(self) -> dict[str, int]:
        last = self.output().rstrip().rpartition("\n")[2]
        return {name: int(number) for number, name in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}

    def summary(self) -> str:
        last = self.output().rstrip().rpartition("\n")[2].strip("= ")
        cost = f"{self.processor:.0f} s of the processor in {self.seconds:.0f} s"
        return f"{self.name}: {last if self.counts() else 'ended before its first test'}; {cost}"


class Progress:
    """One line that changes on a terminal, a line every half a minute in a file."""

    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()

    def show(self, parts: list[Part]) -> None:
        now = time.monotonic()
        minutes, seconds = divmod(int(now - self._began), 60)
        text = f"{minutes}:{seconds:02d}  " + "   ".join(part.progress() for part in parts)
        if sys.stdout.isatty():
            print(f"\r\033[K{text}", end="", flush=True)
        elif now - self._shown >= _LINE_SECONDS:
            self._shown = now
            print(text, flush=True)

    def end(self) -> None:
        if sys.stdout.isatty():
            print("\r\033[K", end="")


class Group:
    """Parts that are started one after another, so many at a time."""

    def __init__(self, side_by_side: int, parts: list[Part]) -> None:
        self._side_by_side = side_by_side
        self.parts = parts
        self.may_start = threading.Event()

    def start_more(self) -> None:
        waiting = [part for part in self.parts if part.waiting]
        if waiting and self.may_start.is_set() and sum(part.running for part in self.parts) < self._side_by_side:
            waiting[0].start()


def main() -> int:
    brokers, of_spark = (
        Group(_BROKERS_SIDE_BY_SIDE, _parts_of_brokers()),
        Group(_SPARK_SIDE_BY_SIDE, _parts_of_spark()),
    )
    parts = [*brokers.parts, *of_spark.parts]
    began = time.monotonic()
    try:
        brokers.may_start.set()
        threading.Thread(target=_prepare_spark, args=(of_spark.may_start,), daemon=True).start()
        _run(brokers, of_spark)
    finally:
        for part in parts:
            part.stop()
    return _report(parts, time.monotonic() - began)


def _parts_of_brokers() -> list[Part]:
    half = len(_WIRE) // 2
    others = [_SPARK_FOLDER, "tests/wire", *_PROGRAMS, *_PAGES, _TORTURE, _CONFORMANCE]
    return [
        Part("rooms", ["tests", *_without(others)]),
        Part("more wire", [*_NO_CACHE, *_WIRE[half:]]),
        Part("programs", [*_NO_CACHE, *_PROGRAMS]),
        Part("wire", [*_NO_CACHE, *_WIRE[:half]]),
        Part("pages", [*_NO_CACHE, *_PAGES]),
        Part("torture", [*_NO_CACHE, _TORTURE, *_without(_SPARK_PROCESSES)]),
        Part("conformance", [*_NO_CACHE, _CONFORMANCE]),
    ]


def _parts_of_spark() -> list[Part]:
    return [
        Part("lake", [*_NO_CACHE, _LAKE]),
        Part("spark", [*_NO_CACHE, _SPARK_FOLDER, *_without([_LAKE, *_SPARK_PROCESSES])]),
        Part("spark processes", [*_NO_CACHE, *_SPARK_PROCESSES]),
    ]


def _without(paths: list[str]) -> list[str]:
    return [f"--ignore={path}" for path in paths]


def _prepare_spark(is_ready: threading.Event) -> None:
    try:
        spark.make_archive()
    finally:
        is_ready.set()


def _run(*groups: Group) -> None:
    """Until all parts have ended."""
    progress, parts = Progress(), [part for group in groups for part in group.parts]
    while any(part.waiting or part.running for part in parts):
        for group in groups:
            group.start_more()
        progress.show(parts)
        time.sleep(_REFRESH_SECONDS)
    progress.end()


def _report(parts: list[Part], seconds: float) -> int:
    failed = [part for part in parts if part.failed]
    for part in failed:
        print(f"\n{part.name} failed:\n{part.what_failed()}")
    for part in parts:
        print(part.summary())
    processor = sum(part.processor for part in parts)
    print(f"all parts: {processor:.0f} s of the processor in {seconds:.0f} s")
    counts = {name: sum(part.counts().get(name, 0) for part in parts) for name in _OUTCOMES}
    print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed, {counts['skipped']} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
