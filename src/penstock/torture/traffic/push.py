"""Push: an endpoint that the broker sends the messages of a channel to. It refuses some, which then come again."""

from __future__ import annotations

import asyncio

from penstock.torture.history import Finishing, Taken
from penstock.torture.traffic.stage import Stage, body_of, name_of

CHANNEL = "pushed"
COPY = "push-"  # Before the name of a pushed copy, which is a message of its own.
REFUSED_SHARE = 0.1
_ANSWER = "HTTP/1.1 {} \r\nContent-Length: 0\r\n\r\n"


class Endpoint:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._chance = stage.chance("push")
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Its URL."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[1:]
                pairs = (line.partition(":") for line in head)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                writer.write(_ANSWER.format(self._take(headers, body.decode("utf-8", "replace"))).encode())
        except (OSError, asyncio.IncompleteReadError):
            writer.close()  # The broker was killed, or has no use for the connection.

    def _take(self, headers: dict[str, str], body: str) -> int:
        """The status to answer with. A message that is accepted is finished, once the broker knows."""
        name, message_id, now = COPY + name_of(body), headers.get("x-penstock-id", ""), self._stage.now
        sound = body == body_of(name_of(body))
        self._stage.history.record(Taken(now, name, "push", CHANNEL, now, 0.0, id=message_id, sound=sound))
        self._stage.answered("push")
        if self._stage.producing and self._chance.random() < REFUSED_SHARE:
            return 503
        self._stage.history.record(Finishing(now, name, "push", message_id))
        return 200
