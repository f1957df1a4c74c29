"""A client on a raw socket: every byte that is sent is the test's choice, every byte that comes is kept."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from types import TracebackType
from typing import Self

READ_SECONDS_MAX = 60.0  # Longer than a broker needs on any machine: it ends a test that would hang.
READ_BYTES = 1 << 16


class RawClient:
    def __init__(
        self,
        address: tuple[str, int],
        read_seconds_max: float = READ_SECONDS_MAX,
        tls: ssl.SSLContext | None = None,
        receive_bytes: int = 0,
    ) -> None:
        """`receive_bytes`: the size of the receive buffer; 0: what the system gives."""
        self._read_seconds_max = read_seconds_max
        self._socket = _connected(address, read_seconds_max, receive_bytes)
        if tls:
            self._socket = encrypted(self._socket, tls, address[0])
        self._buffer = bytearray()

    @classmethod
    def over(cls, connected: socket.socket) -> Self:
        """A client on what is connected already, or is as good as a socket."""
        client = cls.__new__(cls)
        client._read_seconds_max = READ_SECONDS_MAX
        client._socket = connected
        client._buffer = bytearray()
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def reset(self) -> None:
        """Breaks the connection off, as a client does that has crashed."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def shut_down_sending(self) -> None:
        """Says that nothing more will be sent; answers can still come."""
        socket.socket.shutdown(self._socket, socket.SHUT_WR)  # With TLS, so that answers are still decrypted.

    def wait_until_answered(self) -> None:
        """Returns when the beginning of an answer has come. It is read later."""
        while not self._buffer:
            self._receive_or_fail()

    def read_to_end(self) -> bytes:
        """Everything until the peer closes."""
        while self._receive():
            pass
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def has_more(self) -> bool:
        """Whether something has come that is not read yet, as far as the buffer shows."""
        return bool(self._buffer)

    def readable(self) -> bool:
        """Whether something has come."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def ended_within(self, seconds: float) -> bool:
        """Waits for the peer to close: True as soon as it has, False when the time is up."""
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._receive():
                    return True
        except TimeoutError:
            pass
        except ConnectionResetError:
            return True
        finally:
            self._socket.settimeout(self._read_seconds_max)
        return False

    def _read_until(self, mark: bytes) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            self._receive_or_fail()
        found = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return found

    def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._receive_or_fail()
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def _receive_or_fail(self) -> None:
        if not self._receive():
            raise ConnectionError(f"closed by the peer after {bytes(self._buffer[:200])!r}")

    def _receive(self) -> bool:
        data = self._socket.recv(READ_BYTES)
        self._buffer += data
        return bool(data)


def _connected(address: tuple[str, int], seconds_max: float, receive_bytes: int) -> socket.socket:
    connected = socket.socket()
    if receive_bytes:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)  # It counts only before connecting.
    connected.settimeout(seconds_max)
    try:
        connected.connect(address)
    except OSError:
        connected.close()
        raise
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def encrypted(connected: socket.socket, tls: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """The same connection with TLS. Closed if the handshake fails."""
    try:
        return tls.wrap_socket(connected, server_hostname=host, suppress_ragged_eofs=False)
    except OSError:
        connected.close()
        raise
