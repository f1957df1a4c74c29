"""Where the workers of one machine accept connections. Each has a door of its own to the same two ports, and the
system deals new connections out to all doors.

The supervisor makes the doors, and all workers have all of them. So whoever notices that a worker is silent accepts
connections in its place.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from penstock.config.config import Address
from penstock.shells.listening import cannot_listen


class Door(NamedTuple):
    http: socket.socket
    lines: socket.socket

    def close(self) -> None:
        for each in self:
            each.close()


class Doors(NamedTuple):
    """One for each worker."""

    http: Address
    lines: Address
    all: Sequence[Door]

    def close(self) -> None:
        for each in self.all:
            each.close()


def make_doors(http: Address, lines: Address, workers: int) -> Doors:
    """They keep the ports, but do not listen: who is to accept connections does that. Raises `PenstockError` if an
    address is in use."""
    with ExitStack() as stack:  # Closes what there is if there is an error.
        https, all_lines = (_bound(each, workers, stack) for each in (http, lines))
        doors = Doors(_address_of(https[0]), _address_of(all_lines[0]), [*map(Door, https, all_lines)])
        stack.pop_all()
        return doors


def _bound(address: Address, workers: int, stack: ExitStack) -> list[socket.socket]:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as alone:  # Another broker might share its port too.
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(where)
            where = alone.getsockname()
        made = [stack.enter_context(socket.socket(family, kind, protocol)) for _ in range(workers)]
        for each in made:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Old connections keep a port for a minute.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(where)
    except OSError as error:
        raise cannot_listen(address, error) from None
    return made


def _address_of(bound: socket.socket) -> Address:
    return Address(*bound.getsockname()[:2])
