"""A real cluster from the installed PySpark, a master and its workers, whose executors are lost in mid-batch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyspark
import pytest
from deltalake import DeltaTable

from bench import lives
from tests.pipeline.conftest import url_of
from tests.support.broker import Broker
from tests.support.effort import LONG
from tests.support.event_history import make_queue

WORKERS = ("one", "two") if LONG else ("one",)  # Each takes two processes of Java, and another after a loss.
MESSAGES = 4_000
SENT_AGAIN = 500
SECONDS_MAX = 600

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1500)]


class Cluster:
    """Standalone Spark, as its documentation starts it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []
        master = self._start("master", "Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._heard(master, r"Starting Spark master at (spark://\S+)")
        for name in WORKERS:
            cores = str(2 // len(WORKERS))
            facts = ("--cores", cores, "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder / name))
            worker = self._start(name, "worker.Worker", *facts, self.url)
            self._heard(worker, "(Successfully registered)")

    def _start(self, name: str, main: str, *flags: str) -> subprocess.Popen[str]:
        package = "org.apache.spark.deploy." + ("master." if main == "Master" else "")
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), package + main, *flags]
        environment = os.environ | {"SPARK_LOCAL_DIRS": str(self._folder / "local")}
        log = (self._folder / f"{name}.log").open("w")
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, env=environment)
        child.log = self._folder / f"{name}.log"  # type: ignore[attr-defined]
        log.close()
        self._started.append(child)
        return child

    def _heard(self, child: subprocess.Popen[str], pattern: str) -> str:
        log: Path = child.log  # type: ignore[attr-defined]
        while not (match := re.search(pattern, log.read_text())):
            assert runs_on(child), log.read_text()
        return match[1]

    def executors(self) -> list[int]:
        """Processes of Java that the workers have started."""
        workers = {child.pid for child in self._started}
        found = []
        for folder in Path("/proc").iterdir():
            try:
                is_executor = b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes()
                if is_executor and int((folder / "stat").read_text().rpartition(")")[2].split()[1]) in workers:
                    found.append(int(folder.name))
            except OSError:
                continue  # It has ended meanwhile.
        return found

    def stop(self) -> None:
        for child in reversed(self._started):
            child.terminate()
            child.wait()


def runs_on(child: subprocess.Popen[str]) -> bool:
    """Look again a moment later; the test's own limit of time ends it."""
    try:
        child.wait(0.2)
    except subprocess.TimeoutExpired:
        return True
    return False


@pytest.fixture
def cluster(java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.stop()


def command(*words: str, master: str) -> list[str]:
    settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {"spark.executor.memory": "600m", "spark.sql.shuffle.partitions": "2"}
    conf = [flag for name, value in settings.items() for flag in ("--conf", f"{name}={value}")]
    return [sys.executable, "-m", "penstock.cli", "pipeline", *words, "--master", master, *conf]


def test_source_pipeline_and_sink_on_a_cluster_that_loses_its_executors(cluster: Cluster, tmp_path: Path) -> None:
    lives.make(tmp_path / "data", MESSAGES)
    broker = Broker(tmp_path / "data").start()
    lake = tmp_path / "lake"
    try:
        where = ("--lake", str(lake), "--url", url_of(broker))
        run = command("run", "--once", *where, master=cluster.url)
        job = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
        while not list(lake.glob("events/_staging-*")):
            assert runs_on(job)
        lost = cluster.executors()
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
        said, _ = job.communicate(timeout=SECONDS_MAX)
        assert (job.returncode, bool(lost)) == (0, True), said
        assert_counted(lake)
        make_queue(broker, "again")
        replay = command(
            "replay", "--where", f"sequence <= {SENT_AGAIN // 16}", "--to", "again", *where, master=cluster.url
        )
        subprocess.run(replay, check=True, timeout=SECONDS_MAX)
        arrived = 0
        while answer := broker.request("GET", "/messages/again", {"X-MQS-MAX-MESSAGES": "1000"}).messages():
            arrived += len(answer)
        assert arrived == SENT_AGAIN // 16 * 16
    finally:
        broker.stop()


def assert_counted(lake: Path) -> None:
    """What is in the files that the tables have, by another reader."""
    with duckdb.connect() as connection:

        def one(query: str, table: str) -> tuple[int, ...]:
            files = DeltaTable(lake / table).file_uris()
            row = connection.execute(query, [files]).fetchone()
            assert row is not None
            return tuple(int(value) for value in row)

        every = "SELECT count(*), count(DISTINCT (queue_number, sequence, state)) FROM read_parquet(?)"
        assert one(every, "events") == (5 * MESSAGES, 5 * MESSAGES)
        lived = "SELECT count(DISTINCT (queue, sequence)), count(message), count(completed) FROM read_parquet(?)"
        assert one(lived, "messages") == (MESSAGES, MESSAGES, MESSAGES)
        minutes = "SELECT sum(messages_in), sum(messages_out), sum(deliveries) FROM read_parquet(?)"
        assert one(minutes, "queue_minutes") == (MESSAGES, MESSAGES, MESSAGES)
