"""Targets: a whole broker in this process, with its log in memory. Bytes go in where a socket would put them.

Nothing may reach the log of errors, and no answer may be 500.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import UNSET

from penstock.broker.recovery import Recovered
from penstock.config.config import AuthConfig, Config, HttpConfig, LinesConfig
from penstock.engine.engine import Engine
from penstock.server.broker import Broker
from penstock.shells.connection import Connection
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.memory import MemoryLog
from tests.fuzz.target import Target
from tests.fuzz.targets.clients import in_loop
from tests.fuzz.targets.wire import masked_frame
from tests.support.shells import Wire
from tests.support.transcript import CONTENT_KEYS, Step, is_hex
from tests.support.transcript import load as load_transcript
from tests.support.ws_client import KEY

_INPUTS_MAX = 500  # Then a new broker begins, so that one input rarely depends on many others.
_TURNS_MAX = 200
_SEED_BYTES_MAX = 4000
_CONNECTIONS_MAX = 10
OPEN = AuthConfig()
_TRANSCRIPTS = sorted((Path(__file__).parents[2] / "conformance").glob("*/*.toml"))


class Socket(Wire):
    """Knows to which protocol its connection was handed over."""

    protocol: Any = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


class Errors(logging.Handler):
    """What was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(logging.Formatter().format(record))


class House:
    """A broker without a socket, and a disk only for what it never writes here."""

    def __init__(self, auth: AuthConfig) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
        atexit.register(shutil.rmtree, self._path, ignore_errors=True)
        self.broker = Broker(
            Config(
                data=self._path,
                http=HttpConfig(connections_max=_CONNECTIONS_MAX),
                lines=LinesConfig(connections_max=_CONNECTIONS_MAX),
                auth=auth,
            ),
            embedded=True,
        )
        self.shard = self.broker.shards[0]
        self.shard.take()
        history = ObjectHistory(self.shard.directory.history)
        self.broker.assemble([Recovered(Engine(history), MemoryLog(), history)])
        self.http, self.lines = self.broker.servers.http, self.broker.servers.lines
        for service in self.shard.services:
            if service is not self.shard.services.push:  # It would reach out.
                service.start()
        self.inputs = 0
        self.errors = Errors()
        logging.getLogger().addHandler(self.errors)

    async def feed(self, connection: Connection, *pieces: bytes) -> bytes:
        """What is answered to these bytes. The connection ends after them."""
        wire = Socket()
        wire.protocol = connection
        connection.connection_made(wire)
        for piece in pieces:
            if not (wire.closed or wire.aborted):
                wire.protocol.data_received(piece)
                await self._rest()
        if not (wire.closed or wire.aborted):
            wire.protocol.eof_received()
        await self._rest()
        wire.protocol.connection_lost(None)
        seen, self.errors.seen = self.errors.seen, []
        assert not seen, "\n".join(seen)
        assert b"HTTP/1.1 500" not in wire.written, wire.written
        return wire.written

    async def _rest(self) -> None:
        """Until nothing is under way that does not wait for something, or some turns have passed."""
        for turn in range(_TURNS_MAX):
            await asyncio.sleep(0 if turn % 10 else 0.0002)
            if turn > 2 and self.shard.loop.idle and not self.http.turns._waiting:
                break

    def close(self) -> None:
        logging.getLogger().removeHandler(self.errors)
        self.shard.let_go()
        shutil.rmtree(self._path, ignore_errors=True)


_houses: dict[AuthConfig, House] = {}


def house_of(auth: AuthConfig = OPEN) -> House:
    """The broker of all inputs, replaced by a new one now and then."""
    house = _houses.get(auth)
    if house and house.inputs >= _INPUTS_MAX:
        house.close()
    if house is None or house.inputs >= _INPUTS_MAX:
        house = _houses[auth] = House(auth)
    house.inputs += 1
    return house


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _http(data: bytes) -> None:
    """The bytes of a connection."""
    house = house_of()
    await house.feed(house.http.connect(), data)


async def _request(data: bytes) -> None:
    house = house_of()
    written = await house.feed(house.http.connect(), whole_request(data))
    assert written.startswith(b"HTTP/1.1") or not written


def whole_request(data: bytes) -> bytes:
    """What stands before an empty line is its head. Host and length are added, so that it is whole."""
    head, _, body = data.partition(b"\n\n")
    lines = head.split(b"\n")
    first = b" ".join(lines[0].split()[:2]) + b" HTTP/1.1"
    fields = [
        line for line in lines[1:] if b":" in line and not line.lower().startswith((b"host", b"content-length"))
    ]
    return b"\r\n".join([first, b"Host: localhost", *fields, b"Content-Length: %d" % len(body), b"", body])


async def _frames_of(path: bytes, data: bytes) -> None:
    house = house_of()
    written = await house.feed(house.http.connect(), upgrade(path), data)
    assert written.startswith(b"HTTP/1.1 101")


def upgrade(path: bytes, fields: bytes = b"") -> bytes:
    """The handshake of a WebSocket."""
    return (
        b"GET %b HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: %b\r\nSec-WebSocket-Version: 13\r\n%b\r\n" % (path, KEY.encode(), fields)
    )


async def _websocket(data: bytes) -> None:
    """The bytes after the handshake."""
    await _frames_of(b"/connect/", data)


async def _glovebox(data: bytes) -> None:
    """Frames: text in lines that begin with a brace, else bincode in hexadecimal."""
    await _frames_of(b"/connect/", frames(data))


def frames(data: bytes) -> bytes:
    """A frame for each line."""
    return b"".join(_as_frame(line) for line in data.split(b"\n"))


def _as_frame(line: bytes) -> bytes:
    try:
        return masked_frame(2, bytes.fromhex(line.decode("ascii")))
    except ValueError:
        return masked_frame(1, line.decode("utf-8", "replace").encode())


async def _etzel_frames(data: bytes) -> None:
    lines = (masked_frame(1, line.decode("utf-8", "replace").encode()) for line in data.split(b"\n"))
    await _frames_of(b"/connect", b"".join(lines))


async def _lines(data: bytes) -> None:
    house = house_of()
    await house.feed(house.lines.connect(), data)


# ── Seeds: what the conformance transcripts send ──────────────────────────────────────────────────────────────


@cache
def _steps() -> list[tuple[str, Step]]:
    return [(path.parent.name, step) for path in _TRANSCRIPTS for step in load_transcript(path).step]


def _content(value: Any) -> bytes:
    """What a transcript calls content, with the names of its variables in place of them."""
    if isinstance(value, dict) and value and value.keys() <= CONTENT_KEYS:
        if "hex" in value:
            return bytes.fromhex(re.sub(r"\$\{\w+\}|\s", "", value["hex"]))
        value = "\r\n".join(value["lines"]) if "lines" in value else str(value["repeat"]) * min(value["times"], 2000)
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"\$\{(\w+)\}", r"\1", text).encode()


def requests() -> Iterator[bytes]:
    """Distinct ones, in the order of the transcripts."""
    seen = {_as_request(step) for _, step in _steps() if step.send is not None}
    return (request for request in sorted(seen) if len(request) < _SEED_BYTES_MAX)


def _as_request(step: Step) -> bytes:
    fields = "".join(f"\n{name}: {value}" for name, value in step.headers.items())
    given = [each for each in (step.body, step.json) if each is not UNSET]
    return _content(f"{step.send}{fields}") + b"\n\n" + b"".join(map(_content, given))


def said(dialect: str) -> Iterator[bytes]:
    for name, step in _steps():
        lines = [each for each in (step.line, *step.say) if each is not UNSET]
        text = b"\n".join(_content(each).hex().encode() if is_hex(each) else _content(each) for each in lines)
        if name == dialect and 0 < len(text) < _SEED_BYTES_MAX:
            yield text + b"\n"


def http_seeds() -> Iterator[bytes]:
    from tests.shells.test_heads import LESSONS, USUAL

    yield from [*USUAL, *LESSONS]
    chunked = b"POST /messages/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield chunked + b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n"
    for length in (b"0" * 5000 + b"9", b"18446744073709551615", b"9 ", b"+9", b"0"):
        for more in (b"", b"Expect: 100-continue\r\n"):
            yield b"POST /post/a HTTP/1.1\r\nHost: x\r\n%bContent-Length: %b\r\n\r\nabc" % (more, length)
    yield b"PUT /v1/queues/a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"


TARGETS = [
    Target("http", in_loop(_http), http_seeds),
    Target("requests", in_loop(_request), requests),
    Target("websocket", in_loop(_websocket), lambda: [masked_frame(1, line) for line in said("glovebox")]),
    Target("glovebox", in_loop(_glovebox), lambda: said("glovebox")),
    Target("etzel-frames", in_loop(_etzel_frames), lambda: said("etzel")),
    Target("lines", in_loop(_lines), lambda: said("etzel")),
]
