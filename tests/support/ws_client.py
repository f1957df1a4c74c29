"""WebSocket for tests: an independent client for conversations, and raw frames for what no client would send."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import DATA_OPCODES, Close, Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.support.http_client import Connection
from tests.support.raw_client import READ_BYTES, READ_SECONDS_MAX, encrypted

CLOSE_SECONDS_MAX = 10.0

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # Both are the example of RFC 6455, section 1.3.


class WsClient:
    """A glovebox client, or that of another dialect: says objects or bytes, and hears what comes.

    One thread reads and writes. With two, Python 3.11 sometimes loses what arrives over TLS.
    """

    def __init__(
        self,
        address: tuple[str, int],
        path: str = "/connect/",
        tls: ssl.SSLContext | None = None,
        /,
        **headers: str,
    ) -> None:
        connected = socket.create_connection(address, READ_SECONDS_MAX)
        url = f"{'wss' if tls else 'ws'}://{address[0]}:{address[1]}{path}"
        self._begin(encrypted(connected, tls, address[0]) if tls else connected, url, headers)

    @classmethod
    def over(cls, connected: socket.socket, path: str, /, **headers: str) -> WsClient:
        """A client on what is connected already, or is as good as a socket."""
        client = cls.__new__(cls)
        client._begin(connected, f"ws://penstock.localhost{path}", headers)
        return client

    def _begin(self, connected: socket.socket, url: str, headers: dict[str, str]) -> None:
        self._protocol = ClientProtocol(parse_uri(url), max_size=None)
        self._heard: deque[str | bytes] = deque()
        self._parts: list[Frame] = []  # The frames of a message whose last one has not come.
        self._socket = connected
        try:
            self._shake_hands({name.replace("_", "-"): value for name, value in headers.items()})
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(self, headers: dict[str, str]) -> None:
        request = self._protocol.connect()
        request.headers.update(headers)
        self._protocol.send_request(request)
        self._flush()
        deadline = time.monotonic() + READ_SECONDS_MAX
        while self._protocol.state is State.CONNECTING and not self._protocol.handshake_exc:
            self._receive(deadline)
        if self._protocol.handshake_exc:
            raise self._protocol.handshake_exc

    def __enter__(self) -> WsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye and wait for the broker to end the connection."""
        if self._socket.fileno() < 0:
            return
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        with suppress(TimeoutError):
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._flush()
            while self._protocol.state is not State.CLOSED:
                self._receive(deadline)
        self._socket.close()

    def say(self, *requests: dict[str, Any] | bytes) -> None:
        for request in requests:
            if isinstance(request, bytes):
                self.say_raw((request, True))
            else:
                self.say_raw((json.dumps(request).encode(), False))

    def say_raw(self, *frames: tuple[bytes, bool]) -> None:
        """Frames as they are: their payload, and whether they are binary."""
        for payload, binary in frames:
            if self._protocol.state is State.CLOSED:
                raise self._protocol.close_exc
            if binary:
                self._protocol.send_binary(payload)
            else:
                self._protocol.send_text(payload)
            self._flush()

    def send(self, data: bytes) -> None:
        """Any bytes, also such as are no frame."""
        self._socket.sendall(data)

    def take_in(self) -> None:
        """Read what has come, which may be a part of something."""
        with suppress(TimeoutError):
            self._receive(0)

    def has_more(self) -> bool:
        """Whether something was taken in that was not heard yet, or the end."""
        return bool(self._heard) or self._protocol.state is State.CLOSED

    def hear(self, seconds: float = READ_SECONDS_MAX) -> Any:
        deadline = time.monotonic() + seconds
        while not self._heard:
            if self._protocol.state is State.CLOSED:
                raise self._protocol.close_exc
            self._receive(deadline)
        message = self._heard.popleft()
        return json.loads(message) if isinstance(message, str) else message

    def ask(self, **request: Any) -> Any:
        self.say(request)
        return self.hear()

    def closed(self, seconds: float = READ_SECONDS_MAX) -> tuple[int, str]:
        """Wait for the broker to close; its code and reason."""
        deadline = time.monotonic() + seconds
        while self._protocol.state is not State.CLOSED:
            self._receive(deadline)
        self._socket.close()
        end = self._protocol.close_rcvd
        return (end.code, end.reason) if end else (1006, "")

    def drop(self) -> None:
        """Let the connection break without a word. It may be broken."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()

    def _receive(self, deadline: float) -> None:
        """Wait for bytes, and take in what they say. Raises `TimeoutError` after the deadline."""
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._socket.recv(READ_BYTES)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._collect(event)
        self._flush()

    def _collect(self, frame: Frame) -> None:
        if frame.opcode not in DATA_OPCODES:
            return
        self._parts.append(frame)
        if frame.fin:
            data = b"".join(bytes(part.data) for part in self._parts)
            self._heard.append(data.decode() if self._parts[0].opcode is Opcode.TEXT else data)
            self._parts.clear()

    def _flush(self) -> None:
        """Send what the protocol has to say. If the broker has gone, the next read shows what it said last."""
        self._socket.settimeout(READ_SECONDS_MAX)
        with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
            for data in self._protocol.data_to_send():
                self._socket.sendall(data)  # The empty one at the end says that nothing more is sent.


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
