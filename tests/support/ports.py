"""A port for a broker that is to be found at the same address after a restart."""

from __future__ import annotations

import socket


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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
