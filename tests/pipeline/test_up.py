"""`penstock up`, as `make run` starts it: two processes, killed and stopped as they are in life."""

from __future__ import annotations

import json
import os
import pty
import queue
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.machine import processes
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.tables import TABLES, parts_table
from tests.support.broker import Broker, address, structured
from tests.support.certificates import Pair
from tests.support.event_history import make_history, make_queue, publish, settle
from tests.support.lakes import FilledLake, assert_same_tables, events_of

LINE_SECONDS_MAX = 300.0
KILLS = 20 if os.environ.get("TORTURE") == "long" else 1
KILL_SECONDS_MAX = 40.0  # From one start to the next kill: before, in and behind the first batches.


class Household:
    """The process, and what it says."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.data, self.lake = folder / "data", folder / "lake"
        command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(self.data), "--lake", str(self.lake)]
        command += ["--http", "127.0.0.1:0", "--lines", "127.0.0.1:0", "--master", "local[2]"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            start_new_session=True,
        )
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            for line in self.process.stderr:
                self.said.append(line)
                self._lines.put(line)

    def hear(self, pattern: str) -> str:
        """The next line that has this in it."""
        while True:
            try:
                line = self._lines.get(timeout=LINE_SECONDS_MAX)
            except queue.Empty:
                raise AssertionError(f"not heard: {pattern}\n{''.join(self.said)}") from None
            if re.search(pattern, line):
                return line

    def listen(self, seconds: float) -> None:
        """Let it go on for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._lines.get(timeout=left)
            except queue.Empty:
                return

    def broker(self) -> Broker:
        """Its broker, to talk to."""
        broker = Broker(self.data)
        broker.http = address(structured(self.hear('"event": "listening"'))["http"])
        return broker

    def child(self, verb: str) -> int:
        """The process of one of the two, when it is there: the pipeline starts again after a pause."""
        while True:
            for pid in processes(self.process.pid):
                if verb in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                    return pid
            self.listen(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(LINE_SECONDS_MAX)


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[Callable[..., Household]]:
    started: list[Household] = []

    def start(**environment: str) -> Household:
        started.append(Household(tmp_path, **environment))
        return started[-1]

    yield start
    for household in started:
        if household.process.poll() is None:
            household.stop()


@pytest.mark.torture
@pytest.mark.timeout(900 + 300 * KILLS)  # Spark starts anew each time.
def test_a_pipeline_that_is_killed_starts_again_and_nothing_is_lost_or_doubled(
    spark: SparkSession, start_up: Callable[..., Household]
) -> None:
    household = start_up()
    broker = household.broker()
    make_history(broker, 2)
    household.hear("pipeline: batch 0: ")
    serving, filling = [os.getpriority(os.PRIO_PROCESS, household.child(verb)) for verb in ("serve", "pipeline")]
    assert filling > serving, "clients of the broker come first"
    for number in range(KILLS):
        publish(broker, "hopeless", b"more", b"%d" % number)
        settle(broker, "hopeless")
        household.listen(random.uniform(0, KILL_SECONDS_MAX) if number else 0)
        os.kill(household.child("pipeline"), signal.SIGKILL)
        household.hear("pipeline: ended with exit code -9; restarting it in ")
    make_queue(broker, "later")
    publish(broker, "later", *[b"%d" % number for number in range(100)])
    household.hear("pipeline: batch ")
    assert broker.request("GET", "/health").status == 200
    while reached(household.lake) < 100:
        household.hear("pipeline: batch ")
    before = len(household.said)
    assert household.stop(signal.SIGINT) == 0
    household.hear("^pipeline stopped at offset [0-9,]+; the broker's data is safe$")
    assert not re.search(r"Traceback|Exception|\tat ", "".join(household.said[before:])), household.said
    filled = FilledLake(spark, household.lake, path=str(household.data))
    filled.fill()
    assert_same_tables(filled, events_of(household.data))


def reached(lake: Path) -> int:
    place = Lake(lake)
    return sum(parts_table(place, TABLES["events"]).reached(place.origin()))


def test_without_java_there_is_a_broker_and_a_word_about_what_is_missing(start_up: Callable[..., Household]) -> None:
    household = start_up(JAVA_HOME="/nowhere")
    broker = household.broker()
    household.hear(
        "pipeline: the broker works, but no table is filled: Spark needs Java 17 or newer,"
        " but JAVA_HOME is /nowhere, which has no bin/java that runs: correct or unset JAVA_HOME"
    )
    make_queue(broker, "jobs")
    publish(broker, "jobs", b"work")
    assert household.stop() == 0
    assert not household.lake.exists()


def test_a_broker_that_cannot_start_ends_everything(tmp_path: Path, start_up: Callable[..., Household]) -> None:
    (tmp_path / "data").write_text("not a directory")
    household = start_up()
    assert household.process.wait(LINE_SECONDS_MAX) == 1


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "with TLS"])
def test_a_terminal_gets_a_banner_with_a_first_command_that_works_and_logs_to_read(
    tmp_path: Path, secure: bool
) -> None:
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "penstock.cli", "up", "--http", "127.0.0.1:0", "--lines", "127.0.0.1:0"]
    if secure:
        pair = Pair(tmp_path, "broker")
        command += ["--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key)]
    own = os.environ | {"JAVA_HOME": "/nowhere"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=end, env=own, cwd=tmp_path)
    os.close(end)
    said = b""
    while b"no table is filled" not in said:
        said += os.read(terminal, 65536)
    text = said.decode().replace("\r\n", "\n")
    assert re.search(r"INFO +listening http=127", text), text
    commands = re.findall(r"^ +(curl .*)$", text, re.MULTILINE)
    answers = [subprocess.run(shlex.split(line), capture_output=True, check=True).stdout for line in commands]
    process.send_signal(signal.SIGINT)
    assert process.wait(LINE_SECONDS_MAX) == 0
    os.close(terminal)
    assert len(answers) == 2
    assert json.loads(answers[1])[0]["message"] == "hello"
