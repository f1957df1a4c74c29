"""WebSocket for tests: an independent client for conversations, and raw frames for what no client would send."""

from __future__ import annotations

import json
import socket
import ssl
import time
from contextlib import ExitStack
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.frames import Close, Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from tests.support.http_client import Connection
from tests.support.raw_client import READ_SECONDS_MAX

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # Both are the example of RFC 6455, section 1.3.


class WsClient:
    """A glovebox client, or that of another dialect: says objects or bytes, and hears what comes."""

    def __init__(
        self,
        address: tuple[str, int],
        path: str = "/connect/",
        tls: ssl.SSLContext | None = None,
        /,
        **headers: str,
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{'wss' if tls else 'ws'}://{address[0]}:{address[1]}{path}"
        options: dict[str, Any] = {"compression": None, "ping_interval": None, "max_size": None, "close_timeout": 10}
        options["ssl"] = tls
        self._open = ExitStack()
        self.socket: ClientConnection = self._open.enter_context(connect(url, additional_headers=named, **options))

    def __enter__(self) -> WsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    def say(self, *requests: dict[str, Any] | bytes) -> None:
        for request in requests:
            self.socket.send(request if isinstance(request, bytes) else json.dumps(request))

    def say_raw(self, *frames: tuple[bytes, bool]) -> None:
        """Frames as they are: their payload, and whether they are binary."""
        for payload, binary in frames:
            self.socket.send(payload, text=not binary)

    def hear(self, seconds: float = READ_SECONDS_MAX) -> Any:
        frame = self.socket.recv(timeout=seconds)
        return json.loads(frame) if isinstance(frame, str) else frame

    def ask(self, **request: Any) -> Any:
        self.say(request)
        return self.hear()

    def closed(self, seconds: float = READ_SECONDS_MAX) -> tuple[int, str]:
        """Wait for the broker to close; its code and reason."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                self.socket.recv(timeout=max(0.0, deadline - time.monotonic()))
        except ConnectionClosed as end:
            return (end.rcvd.code, end.rcvd.reason) if end.rcvd else (1006, "")

    def drop(self) -> None:
        """Let the connection break without a word."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)
        self.close()


class RawWs(Connection):
    """A connection after its handshake, on which any bytes may be sent."""

    def __init__(self, address: tuple[str, int], path: str = "/connect/", **headers: str) -> None:
        super().__init__(address)
        self.send(handshake(path, **headers))
        response = self.read_upgrade()
        assert response == 101, response

    def read_upgrade(self) -> int:
        return self._read_head()[0]

    def send_frame(self, payload: bytes, opcode: int = 1, *, final: bool = True) -> None:
        self.send(client_frame(payload, opcode, final=final))

    def say(self, **request: Any) -> None:
        self.send_frame(json.dumps(request).encode())

    def read_frame(self) -> tuple[int, bytes]:
        """The next frame: its opcode and payload."""
        first, size = self._read_exactly(2)
        assert not size & 0x80, "a server masks nothing"
        if size == 126:
            size = int.from_bytes(self._read_exactly(2), "big")
        elif size == 127:
            size = int.from_bytes(self._read_exactly(8), "big")
        return first & 0x0F, self._read_exactly(size)

    def hear(self) -> Any:
        opcode, payload = self.read_frame()
        assert opcode == Opcode.TEXT, (opcode, payload)
        return json.loads(payload)

    def read_close(self) -> tuple[int, str]:
        """Read on to the close frame; its code and reason."""
        while True:
            opcode, payload = self.read_frame()
            if opcode == Opcode.CLOSE:
                close = Close.parse(payload)
                return close.code, close.reason


def handshake(path: str = "/connect/", **headers: str) -> bytes:
    fields = {
        "Host": "penstock.localhost",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"GET {path} HTTP/1.1", *[f"{name}: {value}" for name, value in fields.items() if value]]
    return "\r\n".join([*lines, "", ""]).encode()


def client_frame(payload: bytes, opcode: int = 1, *, final: bool = True) -> bytes:
    return Frame(Opcode(opcode), payload, fin=final).serialize(mask=True)
