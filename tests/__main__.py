"""`python -m tests`: every test there is, in seven parts, as `make test` runs them.

More of them run side by side than there are processors, because they often wait: for brokers, disks and clocks. Not
all of them do: on a machine that is too busy every wait gets longer.

Progress is one line on a terminal, and a line now and then elsewhere. What a part printed is shown only if it failed.
"""

from __future__ import annotations

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
_SPARK_PROCESSES = [f"{_SPARK_FOLDER}/test_cluster.py", "tests/torture/test_spark.py"]
_WIRE = sorted(str(path) for path in Path("tests/wire").glob("test_*.py"))
_PROGRAMS = ["tests/cli", "tests/client", "tests/worker"]
_WHOLE = ["tests/across", "tests/torture", "tests/console", "tests/test_documentation.py", "tests/test_examples.py"]
_SIDE_BY_SIDE_MAX = 3  # Without those of Spark.
_NO_CACHE = ["-p", "no:cacheprovider"]  # One cache, one writer.
_REFRESH_SECONDS = 0.5
_LINE_SECONDS = 30.0
_OUTCOMES = ("passed", "failed", "skipped", "error")


class Part:
    """Some of the tests, in a process of their own."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self._command = [*_PYTEST, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - It lives as long as the part.

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT
        )

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    @property
    def waiting(self) -> bool:
        return self._process is None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def failed(self) -> bool:
        return self._process is None or self._process.poll() != 0

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
        return f"{self.name}: {last if self.counts() else 'ended before its first test'}"


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


def main() -> int:
    half = len(_WIRE) // 2
    wire = [Part("wire", _WIRE[:half]), Part("more wire", [*_NO_CACHE, *_WIRE[half:]])]
    programs = Part("programs", [*_NO_CACHE, *_PROGRAMS])
    whole = Part("whole", [*_NO_CACHE, *_WHOLE, *_without(_SPARK_PROCESSES)])
    others = [_SPARK_FOLDER, "tests/wire", *_PROGRAMS, *_WHOLE]
    rooms = Part("rooms", [*_NO_CACHE, "tests", *_without(others)])
    spark_session = Part("spark", [*_NO_CACHE, _SPARK_FOLDER, *_without(_SPARK_PROCESSES)])
    spark_processes = Part("spark processes", [*_NO_CACHE, *_SPARK_PROCESSES])
    brokers = [rooms, *wire, programs, whole]
    parts = [*brokers, spark_session, spark_processes]
    try:
        threading.Thread(target=_start_spark, args=(spark_session, spark_processes), daemon=True).start()
        _run(parts, brokers)
    finally:
        for part in parts:
            part.stop()
    return _report(parts)


def _without(paths: list[str]) -> list[str]:
    return [f"--ignore={path}" for path in paths]


def _start_spark(*parts: Part) -> None:
    try:
        spark.make_archive()
    finally:
        for part in parts:
            part.start()


def _run(parts: list[Part], brokers: list[Part]) -> None:
    """Until all have ended. Those of `brokers` are started here, one after another."""
    progress = Progress()
    while any(part.waiting or part.running for part in parts):
        waiting = [part for part in brokers if part.waiting]
        if waiting and sum(part.running for part in brokers) < _SIDE_BY_SIDE_MAX:
            waiting[0].start()
        progress.show(parts)
        time.sleep(_REFRESH_SECONDS)
    progress.end()


def _report(parts: list[Part]) -> int:
    failed = [part for part in parts if part.failed]
    for part in failed:
        print(f"\n{part.name} failed:\n{part.what_failed()}")
    for part in parts:
        print(part.summary())
    counts = {name: sum(part.counts().get(name, 0) for part in parts) for name in _OUTCOMES}
    print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed, {counts['skipped']} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
