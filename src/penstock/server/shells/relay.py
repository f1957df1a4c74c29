"""WebSockets that go on in another worker: a glovebox session stays in the worker that has begun it.

The number of a session names that worker. A connection which continues the session elsewhere is passed on to it, over
a Unix socket: first who the client is and what it has asked for, then all bytes in both directions.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import cast

from penstock.dialects.wire.http import Headers, Request
from penstock.limits import SESSION_ID_MAX
from penstock.model.access import Access
from penstock.server.quotas.meter import Meter
from penstock.server.shards.codec import LENGTH_BYTES, Frames, Introduce, SendRequest, encode, frame

Receive = Callable[[asyncio.Transport, Headers, Access, bytes], None]
"""Continue with a connection: its headers, its identity, and what its client has sent since."""


class Relay:
    def __init__(self, worker: int, workers: int, folder: Path) -> None:
        """`folder`: where the sockets of all workers are, for nobody else."""
        self._worker = worker
        self._workers = workers
        self._folder = folder
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()

    async def start(self, receive: Receive) -> None:
        path = self._path(self._worker)
        path.unlink(missing_ok=True)  # Of one that was killed.
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: _Arrival(receive), path)

    def stop(self) -> None:
        if self._server:
            self._server.close()

    def _path(self, worker: int) -> Path:
        return self._folder / f"relay-{worker}"

    def new_session(self) -> int:
        """A number that cannot be guessed, and names this worker."""
        return secrets.randbelow(SESSION_ID_MAX // self._workers) * self._workers + self._worker

    def elsewhere(self, headers: Headers) -> int | None:
        """The other worker that has the session which these headers continue."""
        wanted = headers.get(b"reconnect-as", b"")
        if not wanted.isdigit() or len(wanted) > len(str(SESSION_ID_MAX)):
            return None
        worker = int(wanted) % self._workers
        return None if worker == self._worker else worker

    def pass_on(
        self, worker: int, request: Request, transport: asyncio.Transport, rest: bytes, meter: Meter | None
    ) -> None:
        """Let another worker continue with the connection of a client."""
        transport.pause_reading()
        client = _Half(meter)
        transport.set_protocol(client)
        facts = Introduce(1, request.access, request.address, "glovebox")
        wanted = SendRequest(0, 0, 1, request.method, request.target, request.headers, "", False, b"", 0)
        start = frame([encode(facts), encode(wanted)]) + rest
        task = asyncio.create_task(self._connect(worker, client, transport, start))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _connect(self, worker: int, client: _Half, transport: asyncio.Transport, start: bytes) -> None:
        running = asyncio.get_running_loop()
        try:
            raw, far = await running.create_unix_connection(_Half, str(self._path(worker)))
        except OSError:
            transport.close()  # The worker is gone, and the session with it: the client connects again.
            return
        client.other, far.other = raw, transport
        client.other.write(start)
        if transport.is_closing():
            client.other.close()
        else:
            transport.resume_reading()


class _Half(asyncio.Protocol):
    """One of two connections that are one: what it receives, the other sends."""

    def __init__(self, meter: Meter | None = None) -> None:
        self.other: asyncio.Transport | None = None
        self._meter = meter

    def data_received(self, data: bytes) -> None:
        assert self.other is not None, "nothing is read before there is another"
        self.other.write(data)

    def pause_writing(self) -> None:
        if self.other:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other and not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self._meter is not None:
            self._meter.close()
        if self.other:
            self.other.close()


class _Arrival(asyncio.Protocol):
    """A connection that another worker passes on, until it is known whose it is."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._start = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._start += data
        end = LENGTH_BYTES + int.from_bytes(self._start[:LENGTH_BYTES])
        if len(self._start) < max(end, LENGTH_BYTES):
            return
        facts, wanted = Frames().receive(self._start[:end])
        assert isinstance(facts, Introduce)
        assert isinstance(wanted, SendRequest)
        assert self._transport is not None
        self._receive(self._transport, wanted.headers, facts.access, self._start[end:])
