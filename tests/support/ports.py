"""Ports for what is to be found at the same address after a restart, and for addresses where nobody listens.

A process reserves blocks of ports, and hands out each port once. A block is reserved by a name that the kernel gives
to one socket at a time, among those that share ports, until its process ends. So tests that run side by side, in
whatever checkout, never have a port in common. The kernel gives none of these ports to connections, nor to servers
that listen at port 0.
"""

from __future__ import annotations

import socket
from collections import deque
from random import SystemRandom

_FIRST, _END = 10_000, 32_768  # Linux gives ports from the end on to connections.
_BLOCK = 64


class _Reserved:
    def __init__(self) -> None:
        self._left: deque[int] = deque()

    def take(self, count: int) -> list[int]:
        if len(self._left) < count:
            self._left = deque(self._block())
        return [self._left.popleft() for _ in range(count)]

    def _block(self) -> range:
        starts = list(range(_FIRST, _END - _BLOCK + 1, _BLOCK))
        SystemRandom().shuffle(starts)
        return next(range(start, start + _BLOCK) for start in starts if self._is_reserved(start))

    @staticmethod
    def _is_reserved(start: int) -> bool:
        """It stays so: nobody closes the socket."""
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0penstock-tests-ports-from-{start}")
        except OSError:
            name.close()
            return False
        name.detach()
        return True


_reserved = _Reserved()


def free_port() -> int:
    """Nobody else gets it while this process lives."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many ports in a row."""
    while not all(map(_is_free, ports := _reserved.take(count))):
        pass  # A server that is no test's has one of them.
    return ports[0]


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
