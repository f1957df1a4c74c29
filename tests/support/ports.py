"""A port for a broker that is to be found at the same address after a restart."""

from __future__ import annotations

import socket
from random import SystemRandom

_FIRST, _END = 10_000, 32_768  # Linux gives ports from the end on to connections.
_RANDOM = SystemRandom()  # Several runs at the same time must not choose the same.


def free_ports(count: int) -> int:
    """The first of so many ports in a row."""
    while True:
        first = free_port()
        if all(map(_is_free, range(first, first + count))):
            return first


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """Not one that the system gives to connections: while the broker is down, one of them might have it."""
    while not _is_free(port := _RANDOM.randrange(_FIRST, _END)):
        pass
    return port
