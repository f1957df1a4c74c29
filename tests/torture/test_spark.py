"""Spark jobs that are killed while they write: no row is lost, none is there twice.

A job of its own process writes text files into a queue. Between it and the broker stands a proxy that knows where a
batch is. So the driver is killed just before its commit reaches the broker, and just after the broker has answered,
before the driver hears of it; and executors are killed between two pieces of what they stage. A job that was killed
is started again, until it ends by itself.

    TORTURE=long      10 kills of the driver and 10 of executors, instead of 2 and 1
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.pipeline.sink.test_writer import bodies
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import make_queue

LONG = os.environ.get("TORTURE") == "long"
DRIVER_KILLS = 10 if LONG else 2
EXECUTOR_KILLS = 10 if LONG else 1
CLUSTER = "local-cluster[2,1,512]" if LONG else "local-cluster[1,2,512]"
ROWS_PER_FILE = 5000
JOB_SECONDS_MAX = 1800 if LONG else 600

pytestmark = [pytest.mark.torture, pytest.mark.usefixtures("java")]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"SPARK_WORKER_DIR": str(folder / "workers"), "PYSPARK_PYTHON": sys.executable}


class Job:
    """A driver with its executors, in a process group of their own."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.support.spark_job", url, str(folder), *arguments]
        self._log = (folder / "job.log").open("ab")
        self._process = subprocess.Popen(
            command,
            env=environment(folder) | {"SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def kill(self) -> None:
        """All of it at once, as a machine that loses its power."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def kill_executor(self) -> bool:
        """One of them; False if there is none at the moment."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                group = int((process / "stat").read_text().rpartition(")")[2].split()[2])
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue  # It has ended meanwhile.
            if group == self._process.pid and b"CoarseGrainedExecutorBackend" in command:
                os.kill(int(process.name), signal.SIGKILL)
                return True
        return False

    def wait(self) -> int:
        try:
            return self._process.wait(JOB_SECONDS_MAX)
        finally:
            if self._process.returncode is None:
                self.kill()
                self._process.wait()
            self._log.close()


class Proxy(ThreadingHTTPServer):
    """Passes requests on to the broker, and has the job killed on the way."""

    daemon_threads = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.broker = broker
        self.job: Job | None = None
        self.commits = 0
        self.pieces = 0
        self.driver_kills = 0
        self.executor_kills = 0
        self.attempts: Counter[str] = Counter()  # By query, batch and partition.
        self.driver_kills_wanted = 0
        self.executor_kills_wanted = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def kills_driver(self) -> bool:
        with self.lock:
            if self.job is None or self.driver_kills >= self.driver_kills_wanted:
                return False
            self.driver_kills += 1
            job, self.job = self.job, None
        job.kill()
        return True

    def passing(self, path: str) -> bool:
        """A request on its way to the broker. False: it does not get there."""
        if path.endswith("/commit"):
            self.commits += 1
            return not (self.commits % 3 == 1 and self.kills_driver())
        self.pieces += 1
        if path.endswith("?chunk=0"):
            self.attempts[path.rpartition("-")[0]] += 1
        if self.pieces % 3 == 0 and self.job and self.executor_kills < self.executor_kills_wanted:
            self.executor_kills += self.job.kill_executor()
        return True

    def returning(self, path: str) -> bool:
        """An answer on its way to the job. False: it does not get there."""
        return not (path.endswith("/commit") and self.commits % 3 == 2 and self.kills_driver())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A job that was killed leaves its connections as they are."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.server.passing(self.path):
            self.close_connection = True
            return
        status, answer = self._ask_broker(body)
        if self.server.returning(self.path):
            self._answer(status, answer)
        else:
            self.close_connection = True

    def do_DELETE(self) -> None:
        self.do_POST()

    def do_GET(self) -> None:
        """A job looks for its queue before it writes; nothing is killed meanwhile."""
        self._answer(*self._ask_broker(b""))

    def _ask_broker(self, body: bytes) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(*self.server.broker.http, timeout=60)) as connection:
            connection.request(self.command, self.path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def proxy(start_broker: StartBroker) -> Iterator[Proxy]:
    broker = start_broker()
    make_queue(broker, "work")
    with Proxy(broker) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()


def write_files(folder: Path, count: int) -> Counter[bytes]:
    (folder / "files").mkdir()
    for number in range(count):
        lines = [f"file {number} row {row}" for row in range(ROWS_PER_FILE)]
        (folder / "files" / f"{number:03d}.txt").write_text("\n".join(lines) + "\n")
    return Counter(f"file {number} row {row}".encode() for number in range(count) for row in range(ROWS_PER_FILE))


def run(proxy: Proxy, folder: Path, *arguments: str) -> int:
    """Until the job ends by itself; how many starts it took."""
    for starts in range(1, DRIVER_KILLS + 2):
        proxy.job = job = Job(folder, proxy.url, *arguments)
        if job.wait() == 0:
            return starts
        assert proxy.driver_kills == starts, (folder / "job.log").read_text()[-3000:]
    raise AssertionError("the job was killed more often than it should have been")


@pytest.mark.timeout(3600)
def test_a_driver_is_killed_around_its_commits_and_every_row_is_there_once(proxy: Proxy, tmp_path: Path) -> None:
    expected = write_files(tmp_path, DRIVER_KILLS // 2 + 1)  # Two kills a batch, and a batch in peace.
    proxy.driver_kills_wanted = DRIVER_KILLS
    assert run(proxy, tmp_path, "local[2,4]") == DRIVER_KILLS + 1
    assert bodies(proxy.broker) == expected


@pytest.mark.timeout(3600)
def test_executors_are_killed_while_they_stage_and_every_row_is_there_once(proxy: Proxy, tmp_path: Path) -> None:
    expected = write_files(tmp_path, EXECUTOR_KILLS + 1)
    proxy.executor_kills_wanted = EXECUTOR_KILLS
    assert run(proxy, tmp_path, CLUSTER) == 1
    assert proxy.executor_kills == EXECUTOR_KILLS
    assert bodies(proxy.broker) == expected
    assert max(proxy.attempts.values()) > 1, "a task should have been tried again after it had staged rows"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers, on hosts of different names: only then does Spark run a task twice at a time."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, host: str, *arguments: str) -> subprocess.Popen[str]:
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [
            str(spark_class),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            host,
            "--webui-port",
            "0",
            *arguments,
        ]
        process = subprocess.Popen(
            command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    try:
        master = start("master.Master", "127.0.0.1", "--port", "0")
        url = wait_for(master, r"Starting Spark master at (spark://\S+)")
        for host in ("127.0.0.2", "127.0.0.3"):
            worker = start("worker.Worker", host, "--cores", "2", "--memory", "512m", url)
            wait_for(worker, "(Successfully registered)")
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(pattern, line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return found[1]
    raise AssertionError(f"it ended before it said {pattern}")


@pytest.mark.skipif(not LONG, reason="a cluster of five processes takes a minute: TORTURE=long")
@pytest.mark.timeout(3600)
def test_a_task_that_runs_twice_at_a_time_writes_every_row_once(proxy: Proxy, tmp_path: Path, cluster: str) -> None:
    expected = write_files(tmp_path, 2)
    twins = {"speculation": "true", "speculation.interval": "100ms", "speculation.quantile": "0.1"}
    twins |= {"speculation.multiplier": "1", "speculation.task.duration.threshold": "1s"}
    assert run(proxy, tmp_path, cluster, *[f"spark.{key}={value}" for key, value in twins.items()]) == 1
    assert (tmp_path / "twin").exists()
    assert max(proxy.attempts.values()) > 1
    assert bodies(proxy.broker) == expected
