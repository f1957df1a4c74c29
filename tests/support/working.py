"""Workers for tests: in a thread of this process, or as a process of their own, as users start them."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

from penstock.worker import App
from penstock.worker.runtime.worker import Worker, WorkerOptions
from tests.support.broker import Broker, structured

SECONDS_MAX = 60.0


def url_of(broker: Broker) -> str:
    host, port = broker.http
    return f"http://{host}:{port}"


@contextmanager
def working(app: App, **options: Unpack[WorkerOptions]) -> Iterator[Worker]:
    """A worker that runs in a thread until the block is left."""
    worker = app.worker(**options)
    started = threading.Event()
    app.on("start")(started.set)
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(worker.serve())
        except BaseException as error:
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert started.wait(SECONDS_MAX)
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()
        app.close()
    assert not errors, errors


class WorkerProcess:
    """`penstock worker tasks:app` in a directory that has a file tasks.py."""

    def __init__(
        self, directory: Path, url: str, *options: str, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        command = [sys.executable, "-m", "penstock.cli", "worker", "tasks:app", "--url", url]
        self.lines: list[str] = []
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [*command, "--log-format", "json", *options],
            cwd=directory,
            env=os.environ | environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_logged(self, event: str) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS_MAX
        while (line := self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            if structured(line).get("event") == event:
                return structured(line)
        raise AssertionError(f"the worker has ended before {event}\n{self.log()}")

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [fields for line in self.lines if (fields := structured(line)).get("event") == event]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(SECONDS_MAX)
        self._reader.join()
        return code

    def kill(self) -> None:
        """Also if it has ended by itself."""
        self.process.kill()
        self.ended()

    def log(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            for line in self.process.stderr:
                self.lines.append(line)
                self._arrived.put(line)
        self._arrived.put(None)
