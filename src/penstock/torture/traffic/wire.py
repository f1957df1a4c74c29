"""Connections as small as they can be: HTTP with one request at a time, lines of JSON, and WebSocket."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any, NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from penstock.torture.process import Process

ANSWER_SECONDS_MAX = 60.0


class UnexpectedAnswer(Exception):  # noqa: N818 - It is the broker's error, not ours.
    """An answer that the documentation does not name."""


class Unavailable(ConnectionError):  # noqa: N818 - As above.
    """The broker cannot store anything now. What was asked may or may not have happened."""


class Response(NamedTuple):
    status: int
    headers: dict[str, str]  # Names in lower case.
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def _streams(
    address: tuple[str, int], trust: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    opening = asyncio.open_connection(*address, limit=8 << 20, ssl=trust)
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] = await answered(opening)
    return streams


class Http:
    """One connection. Raises OSError when it breaks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, process: Process) -> Http:
        return cls(*await _streams(process.http, process.trust))

    def close(self) -> None:
        self._writer.close()

    async def request(
        self, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Response:
        fields = {"Host": "localhost", **(headers or {})}
        if body is not None:
            fields["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._writer.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + (body or b""))
        response: Response = await answered(self._answer())
        return response

    async def ask(self, method: str, target: str, document: Any = None, **headers: str) -> Response:
        """A request whose body is JSON. Raises `Unavailable` if the broker cannot store anything."""
        body = None if document is None else json.dumps(document).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named["Content-Type"] = "application/json"
        return expect(await self.request(method, target, body, named))

    async def _answer(self) -> Response:
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Response(int(first.split()[1]), headers, body)


def expect(response: Response) -> Response:
    """The answer, unless it says that the broker cannot work at the moment."""
    if response.status == 503 or b'"log_damaged"' in response.body or b"log is damaged" in response.body:
        raise Unavailable(response.body[:200])
    if response.status >= 500:
        raise UnexpectedAnswer(f"{response.status} {response.body[:300]!r}")
    return response


async def answered(answer: Any) -> Any:
    """The answer in time; an end of the connection is an OSError, and no answer at all is unexpected."""
    try:
        return await asyncio.wait_for(answer, ANSWER_SECONDS_MAX)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("closed by the broker") from error
    except WebSocketException as error:
        raise ConnectionError(str(error)) from error
    except TimeoutError:
        raise UnexpectedAnswer(f"no answer within {ANSWER_SECONDS_MAX:.0f} s") from None


class Lines:
    """Lines of JSON over TCP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, process: Process) -> Lines:
        return cls(*await _streams(process.lines, process.trust))

    def close(self) -> None:
        self._writer.close()

    async def send(self, *commands: dict[str, Any]) -> None:
        self._writer.write(b"".join(json.dumps(command).encode() + b"\n" for command in commands))

    async def read(self) -> Any:
        line = await answered(self._reader.readline())
        if not line:
            raise ConnectionError("closed by the broker")
        return json.loads(line)


class WebSocket:
    """Text frames of JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, process: Process, path: str, **headers: str) -> WebSocket:
        url = "{}://{}:{}{}".format("wss" if process.trust else "ws", *process.http, path)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        options: dict[str, Any] = {"compression": None, "ping_interval": None, "proxy": None, "ssl": process.trust}
        return cls(await answered(connect(url, additional_headers=named, **options).__aenter__()))

    def close(self) -> None:
        """Without a farewell: the broker sees a connection that broke."""
        self._socket.transport.abort()

    async def send(self, *requests: dict[str, Any]) -> None:
        for request in requests:
            await answered(self._socket.send(json.dumps(request)))

    async def read(self) -> Any:
        return json.loads(await answered(self._socket.recv()))

    async def read_for(self, seconds: float) -> Any:
        """The next frame, or None if none comes in time."""
        try:
            return json.loads(await asyncio.wait_for(self._socket.recv(), seconds))
        except TimeoutError:
            return None
        except WebSocketException as error:
            raise ConnectionError(str(error)) from error
