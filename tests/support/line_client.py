"""Lines of JSON over a raw socket: every byte that is sent is the test's choice, every line that comes is kept."""

from __future__ import annotations

import json
import socket
import ssl
import time
from types import TracebackType
from typing import Any, Self

from tests.support.http_client import encrypted

READ_SECONDS_MAX = 30.0
READ_BYTES = 1 << 16


class LineClient:
    def __init__(self, address: tuple[str, int], receive_bytes: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """`receive_bytes`: the size of the receive buffer; 0: what the system gives."""
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(READ_SECONDS_MAX)
        try:
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self._socket = encrypted(self._socket, tls, address[0])
        self._buffer = bytearray()

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

    def say(self, *commands: dict[str, Any]) -> None:
        """Sends commands, all in one write."""
        self.send(b"".join(json.dumps(command).encode() + b"\n" for command in commands))

    def hear(self) -> dict[str, Any]:
        """The next line."""
        reply = json.loads(self.read_line())
        assert isinstance(reply, dict)
        return reply

    def ask(self, **command: Any) -> dict[str, Any]:
        """Says one command and hears one line."""
        self.say(command)
        return self.hear()

    def read_line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if not self._receive():
                raise ConnectionError(f"closed by the peer after {bytes(self._buffer[:200])!r}")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def shut_down_sending(self) -> None:
        """Says that nothing more will be sent; replies can still come."""
        socket.socket.shutdown(self._socket, socket.SHUT_WR)  # With TLS, so that answers are still decrypted.

    def read_to_end(self) -> bytes:
        """Everything until the peer closes."""
        while self._receive():
            pass
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

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
            self._socket.settimeout(READ_SECONDS_MAX)
        return False

    def _receive(self) -> bool:
        data = self._socket.recv(READ_BYTES)
        self._buffer += data
        return bool(data)
