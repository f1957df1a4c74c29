"""A real broker process for tests: started as a user starts it, stopped as an operator stops it.

Nothing here sleeps. A start waits for the `listening` line on standard error, a stop waits for the exit.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.support import starting
from tests.support.http_client import Connection, Response
from tests.support.raw_client import READ_SECONDS_MAX

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
LOG_LINES_SHOWN_MAX = 200
_WITHOUT_AUDIT = ("audit.enabled=false",)


class Site(Protocol):
    """What clients connect to: one broker, or several that serve the same queues."""

    @property
    def http(self) -> tuple[str, int]: ...

    @property
    def lines(self) -> tuple[str, int]: ...

    @property
    def trust(self) -> ssl.SSLContext | None:
        """What clients check its certificate with, if it uses TLS."""

    @property
    def url(self) -> str:
        return "{}://{}:{}".format("https" if self.trust else "http", *self.http)

    def connect(self, read_seconds_max: float = READ_SECONDS_MAX) -> Connection:
        return Connection(self.http, read_seconds_max, self.trust)

    def request(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """One request on a connection of its own."""
        with self.connect() as connection:
            return connection.request(method, target, headers, body)

    def create_queue(self, name: str, **settings: Any) -> None:
        """A queue that keeps messages long and hides them for 30 seconds, unless told otherwise."""
        defaults = {"retention_timeout": 3600, "visibility_timeout": 30, "message_deduplication": False}
        answer = self.request("PUT", f"/queues/{name}", body=json.dumps(defaults | settings).encode())
        assert answer.status == 201, answer


class Broker(Site):
    """One data directory and the process that serves it; the process may be started again and again."""

    http: tuple[str, int] = ("", 0)
    lines: tuple[str, int] = ("", 0)
    trust: ssl.SSLContext | None = None

    def __init__(
        self,
        data: Path,
        *settings: str,
        http: str = "127.0.0.1:0",
        flags: tuple[str, ...] = (),
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.data = data
        self.trust = trust
        self.command = serve_command(data, *settings, http=http, flags=flags)
        self._log: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Broker:
        """Returns when the broker listens and says it is healthy."""
        self.spawn()
        try:
            self.wait_until_listening()
            health = self.request("GET", "/health")
            assert health.status == 200, f"unhealthy after start: {health}"
        except BaseException:
            if self.running:
                self.kill()
            raise
        return self

    def spawn(self) -> subprocess.Popen[bytes]:
        assert self._process is None, "already started"
        self._process = starting.Popen(self.command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._keep_log, args=(self._process, self._arrived), daemon=True)
        self._reader.start()
        return self._process

    def wait_until_listening(self) -> None:
        event = self.wait_until_logged("listening")
        self.http = address(event["http"])
        if "lines" in event:
            self.lines = address(event["lines"])

    def wait_until_logged(self, name: str) -> dict[str, Any]:
        """The next structured log line of that event. Lines before it are not seen by a later call."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                line = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                raise AssertionError(f"not {name} after {START_SECONDS_MAX} s\n{self.log()}") from None
            if line is None:
                code = self._finished().wait(STOP_SECONDS_MAX)
                raise AssertionError(f"the broker ended with code {code} before it was {name}\n{self.log()}")
            event = structured(line)
            if event.get("event") == name:
                return event

    def ask_to_stop(self) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Asks the broker to stop and holds it to a clean exit."""
        self.ask_to_stop()
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        process = self._finished()
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"still running {STOP_SECONDS_MAX} s after SIGTERM\n{self.log()}") from None
        self._reader.join()
        assert code == 0, f"exit code {code} after SIGTERM\n{self.log()}"

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to write another byte. A child of its may live a little longer."""
        process = self._finished()
        process.kill()
        process.wait()

    def ended_within(self, seconds: float) -> bool:
        """Watches the process: True as soon as it has ended by itself, False when the time is up."""
        assert self._process is not None, "not started"
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def resident_bytes(self) -> int:
        """The memory that the process holds now."""
        assert self._process is not None, "not started"
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        """What the broker said on standard error, the newest lines."""
        return "".join(self._log[-LOG_LINES_SHOWN_MAX:])

    def times_logged(self, event: str) -> int:
        """How often a structured log line of that event was written, in all the starts of this broker."""
        return sum(structured(line).get("event") == event for line in self._log)

    def recovered_offset(self) -> int:
        """Where the log ended at the last start."""
        offsets = [event["offset"] for line in self._log if (event := structured(line)).get("event") == "recovered"]
        return int(offsets[-1])

    def _finished(self) -> subprocess.Popen[bytes]:
        process, self._process = self._process, None
        assert process is not None, "not started"
        return process

    def _keep_log(self, process: subprocess.Popen[bytes], arrived: queue.SimpleQueue[str | None]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for raw in process.stderr:
                line = raw.decode("utf-8", "replace")
                self._log.append(line)
                arrived.put(line)
        arrived.put(None)


StartBroker = Callable[..., Broker]
"""The type of the fixture `start_broker`."""


def workers_of(broker: Broker) -> list[int]:
    """The processes of its workers."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text()
    return [int(child) for child in children.split()]


def serve_command(data: Path, *settings: str, http: str = "127.0.0.1:0", flags: tuple[str, ...] = ()) -> list[str]:
    command = [sys.executable, "-m", "penstock.cli", "serve", "--data", str(data)]
    command += ["--http", http, "--lines", "127.0.0.1:0", *flags]
    # Tests count queues, events and offsets. Those of the audit switch it on.
    for setting in (*_WITHOUT_AUDIT, *settings):
        command += ["--set", setting]
    return command


def refused_start(
    data: Path, *settings: str, http: str = "127.0.0.1:0", flags: tuple[str, ...] = ()
) -> tuple[int, str]:
    """The exit code and standard error of a broker that should refuse to start."""
    command = serve_command(data, *settings, http=http, flags=flags)
    ended = starting.run(command, timeout=START_SECONDS_MAX)
    return ended.returncode, ended.stderr.decode("utf-8", "replace")


def structured(line: str) -> dict[str, Any]:
    """The fields of a structured log line, or nothing when the line is something else."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
