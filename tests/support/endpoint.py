"""An HTTP endpoint for messages to be pushed to: real sockets, in threads of the test's own process.

Every request is kept, and answered as the test says: with bytes, or with a function of the request.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.http_client import Headers, find_header, parse_headers

WAIT_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Pushed:
    """A request, and the number of the connection it came on."""

    line: str
    headers: Headers
    body: bytes
    connection: int

    def header(self, name: str) -> str | None:
        return find_header(self.headers, name)


class HangUp(Exception):  # noqa: N818 - Not an error: what an endpoint may do.
    """Raised by an answer: close the connection, after these bytes."""

    def __init__(self, last: bytes = b"") -> None:
        self.last = last


Answer = Callable[[Pushed], bytes]


def answer(status: int, headers: str = "", body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status} Said so\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


OK = answer(200)


class Endpoint:
    """Listens from the start. `answer` may be changed at any time."""

    def __init__(self, answer: bytes | Answer = OK, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.answer: bytes | Answer = answer
        self.connections = 0
        self.open = 0
        self.under_way = 0
        self.under_way_most = 0
        self._tls = tls
        self._arrived: queue.SimpleQueue[Pushed] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/take?from=penstock"

    def next(self) -> Pushed:
        return self._arrived.get(timeout=WAIT_SECONDS_MAX)

    @property
    def is_quiet(self) -> bool:
        """Nothing has come that the test has not seen."""
        return self._arrived.empty()

    def close(self) -> None:
        """Nobody is there any more."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in [self._listener, *sockets]:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # Gone already.
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with self._lock:
                self._sockets.add(connection)
                self.open += 1
            try:
                self._talk(connection, number)
            finally:
                with self._lock:
                    self._sockets.discard(connection)
                    self.open -= 1
                connection.close()
        except (OSError, ValueError):
            connection.close()  # The other side has gone, or this one was closed.

    def _talk(self, connection: socket.socket, number: int) -> None:
        stream = connection.makefile("rb")
        while pushed := self._read(stream.readline, stream.read, number):
            with self._lock:
                self.under_way += 1
                self.under_way_most = max(self.under_way_most, self.under_way)
            self._arrived.put(pushed)
            try:
                response = self.answer if isinstance(self.answer, bytes) else self.answer(pushed)
            except HangUp as end:
                connection.sendall(end.last)
                connection.shutdown(socket.SHUT_RDWR)
                return
            finally:
                with self._lock:
                    self.under_way -= 1
            connection.sendall(response)

    @staticmethod
    def _read(readline: Callable[[], bytes], read: Callable[[int], bytes], number: int) -> Pushed | None:
        line = readline().decode().strip()
        if not line:
            return None
        lines = iter(lambda: readline().decode("latin-1").strip(), "")
        headers = parse_headers(list(lines))
        length = int(find_header(headers, "Content-Length") or "0")
        return Pushed(line, headers, read(length), number)
