"""A broker inside this process, for tests, scripts and notebooks: the same API, without a server."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

import uvloop

from penstock.client import Client
from penstock.config.config import Address, Config, HttpConfig, LinesConfig
from penstock.errors import InUseError
from penstock.server.broker import Broker

_ANY_PORT = Address("127.0.0.1", 0)
_CONNECTIONS_MAX = 256
_STOP_SECONDS = 5.0

# A lock on a file keeps other processes out, but not other brokers of this one.
_open_directories: set[Path] = set()
_opening = threading.Lock()


class LocalBroker:
    """A broker in a thread of this process, on a port that the system chooses. `url` is its address."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="penstock-")
        self.directory = Path(self._temporary.name if self._temporary else directory or "").resolve()
        self.secret = secrets.token_urlsafe(32)  # The directory may have tokens: its owner needs none of them.
        self._started: Future[Address] = Future()
        _reserve(self.directory)
        self._thread = threading.Thread(target=self._run, name="penstock broker", daemon=True)
        self._thread.start()
        try:
            self.url = f"http://{self._started.result()}"
        except BaseException:
            self._clear()
            raise

    def close(self) -> None:
        """Stop the broker: what it has acknowledged is on disk, unless the directory was a temporary one."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._broker.stop)
        self._clear()

    def _clear(self) -> None:
        self._thread.join()
        _open_directories.discard(self.directory)
        if self._temporary:
            self._temporary.cleanup()

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._broker = Broker(_config(self.directory), embedded=True, owner=self.secret)
        await self._broker.run(self._started.set_result)


class LocalClient(Client):
    """A client with a broker of its own, which is stopped with it."""

    def __init__(self, broker: LocalBroker, timeout: float) -> None:
        super().__init__(broker.url, token=broker.secret, timeout=timeout)
        self.broker = broker

    def close(self) -> None:
        super().close()
        self.broker.close()


def local(directory: str | Path | None = None, *, timeout: float = 30) -> LocalClient:
    """A client of a broker inside this process, which keeps its data in a directory.

    ```python
    with penstock.local("data") as client:
        client.queues.create("orders")
        client.publish("orders", {"id": 17})
    ```

    Without a directory, the data is temporary and removed at the end. Others of this machine reach the broker at
    `client.url`, such as an `AsyncClient`.
    """
    return LocalClient(LocalBroker(directory), timeout)


def _reserve(directory: Path) -> None:
    with _opening:
        if directory in _open_directories:
            raise InUseError(
                f"the data directory {directory} is in use by this process. Close the other broker, or choose another"
                " directory"
            )
        _open_directories.add(directory)


def _config(directory: Path) -> Config:
    return Config(
        data=directory,
        stop_seconds=_STOP_SECONDS,
        http=HttpConfig(address=_ANY_PORT, connections_max=_CONNECTIONS_MAX),
        lines=LinesConfig(address=_ANY_PORT, connections_max=_CONNECTIONS_MAX),
    )
