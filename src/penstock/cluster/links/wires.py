"""How processes reach each other for their links: sockets in a folder on one machine, or TCP between machines."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.cluster.links.guarded import LINK, Guarded
from penstock.config.config import Address

MakeLink = Callable[[], asyncio.Protocol]


class Wires(Protocol):
    async def listen(self, worker: int, link: MakeLink) -> asyncio.Server:
        """Accept links as this worker."""

    async def connect(self, worker: int, link: MakeLink) -> None:
        """Make a link to a worker. Raises `OSError` if it does not listen."""


class UnixWires:
    """Sockets in a folder that nobody else can read."""

    def __init__(self, folder: Path, name: str = "worker") -> None:
        """`name`: of the sockets, each with the number of its worker."""
        self._folder = folder
        self._name = name

    async def listen(self, worker: int, link: MakeLink) -> asyncio.Server:
        path = self._path(worker)
        path.unlink(missing_ok=True)  # Of one that was killed.
        return await asyncio.get_running_loop().create_unix_server(link, path)

    async def connect(self, worker: int, link: MakeLink) -> None:
        await asyncio.get_running_loop().create_unix_connection(link, str(self._path(worker)))

    def _path(self, worker: int) -> Path:
        return self._folder / f"{self._name}-{worker}"


class Security(NamedTuple):
    """What both ends of a link over TCP check."""

    token: bytes  # Shared by all.
    accepting: ssl.SSLContext | None = None
    calling: ssl.SSLContext | None = None


class TcpWires:
    """Addresses that may change while the processes run. Each listens for whatever others want of it."""

    def __init__(self, addresses: Mapping[int, Address], security: Security) -> None:
        self._addresses = addresses
        self._security = security
        self.accept: dict[bytes, MakeLink] = {}  # By purpose. Links are added by `listen`.

    async def listen(self, worker: int, link: MakeLink) -> asyncio.Server:
        self.accept[LINK] = link
        running, context = asyncio.get_running_loop(), self._security.accepting
        guarded = partial(Guarded, self.accept, self._security.token)
        return await running.create_server(guarded, *self._addresses[worker], ssl=context)

    async def connect(self, worker: int, link: MakeLink, purpose: bytes = LINK) -> None:
        address = self._addresses.get(worker)
        if address is None:
            raise ConnectionRefusedError(f"nobody knows where worker {worker} is")
        running, context = asyncio.get_running_loop(), self._security.calling
        guarded = partial(Guarded, {purpose: link}, self._security.token, purpose)
        await running.create_connection(guarded, *address, ssl=context)
