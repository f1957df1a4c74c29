"""How processes reach each other for their links: sockets in a folder on one machine, or TCP between machines."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.server.config import Address
from penstock.server.shards.guarded import Guarded

MakeLink = Callable[[], asyncio.Protocol]


class Wires(Protocol):
    async def listen(self, worker: int, link: MakeLink) -> asyncio.Server:
        """Accept links as this worker."""

    async def connect(self, worker: int, link: MakeLink) -> None:
        """Make a link to a worker. Raises `OSError` if it does not listen."""


class UnixWires:
    """Sockets in a folder that nobody else can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def listen(self, worker: int, link: MakeLink) -> asyncio.Server:
        path = self._path(worker)
        path.unlink(missing_ok=True)  # Of one that was killed.
        return await asyncio.get_running_loop().create_unix_server(link, path)

    async def connect(self, worker: int, link: MakeLink) -> None:
        await asyncio.get_running_loop().create_unix_connection(link, str(self._path(worker)))

    def _path(self, worker: int) -> Path:
        return self._folder / f"worker-{worker}"


class Security(NamedTuple):
    """What both ends of a link over TCP check."""

    token: bytes  # Shared by all.
    accepting: ssl.SSLContext | None = None
    calling: ssl.SSLContext | None = None


class TcpWires:
    """Addresses that may change while the processes run."""

    def __init__(self, addresses: Mapping[int, Address], security: Security) -> None:
        self._addresses = addresses
        self._security = security

    async def listen(self, worker: int, link: MakeLink) -> asyncio.Server:
        guarded = partial(self._guarded, link, is_caller=False)
        running, context = asyncio.get_running_loop(), self._security.accepting
        return await running.create_server(guarded, *self._addresses[worker], ssl=context)

    async def connect(self, worker: int, link: MakeLink) -> None:
        address = self._addresses.get(worker)
        if address is None:
            raise ConnectionRefusedError(f"nobody knows where worker {worker} is")
        guarded = partial(self._guarded, link, is_caller=True)
        running, context = asyncio.get_running_loop(), self._security.calling
        await running.create_connection(guarded, *address, ssl=context)

    def _guarded(self, link: MakeLink, *, is_caller: bool) -> Guarded:
        return Guarded(link(), self._security.token, is_caller=is_caller)
