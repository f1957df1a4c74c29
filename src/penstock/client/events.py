"""Reading the Event Log: a stream of Server-Sent Events that goes on where it stopped, whatever stopped it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from penstock.client.connection import Answer, LostError, Stream
from penstock.client.results import Event
from penstock.client.session import Session
from penstock.client.transport import Reply, Request, retry_after

_SILENCE_SECONDS_MAX = 60  # The broker sends a heartbeat every 15 seconds, unless it is set otherwise.
_decode = msgspec.json.Decoder(Event).decode


async def event_pages(
    session: Session, start: str, wanted: str, *, follow: bool
) -> AsyncGenerator[list[Event], None]:
    """Events as they arrive, some at a time. With `follow` it ends only with an error.

    The first connection must succeed within the time of the client. After that, a reader that follows waits for the
    broker for as long as it takes.
    """
    reading = _Reading(start)
    timeout: float | None = session.timeout
    while not reading.ended or follow:
        request = Request("GET", f"/v1/events?from={reading.place}&{wanted}", headers="Accept: text/event-stream\r\n")
        connection, stream = await session.transport.open_stream(request, timeout)
        try:
            await _check(session, request, stream)
            timeout = None if follow else session.timeout
            while events := await reading.next_events(stream):
                yield events
        except _TryAgain as again:
            await asyncio.sleep(again.seconds)
        except (LostError, TimeoutError):
            reading.buffer = b""  # The rest of the last event is sent again.
        finally:
            session.transport.release(connection)


class _TryAgain(Exception):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


async def _check(session: Session, request: Request, stream: Stream) -> None:
    status, headers = await stream.begun
    if status == 200:
        return
    pieces = []
    while piece := await stream.read():
        pieces.append(piece)
    answer = Answer(status, headers, b"".join(pieces))
    wait = retry_after(answer)
    if wait is not None:
        raise _TryAgain(wait)
    raise session.refused(request, Reply(answer, repeated=False))


class _Reading:
    """Where a reader is in the log."""

    def __init__(self, start: str) -> None:
        self.place = start  # From where to go on.
        self.buffer = b""
        self.ended = False

    async def next_events(self, stream: Stream) -> list[Event]:
        """The next events of a stream; none at its end."""
        events: list[Event] = []
        while not events:
            async with asyncio.timeout(_SILENCE_SECONDS_MAX):
                data = await stream.read()
            if not data:
                self.ended = True
                break
            events = self._parsed(data)
        return events

    def _parsed(self, data: bytes) -> list[Event]:
        *blocks, self.buffer = (self.buffer + data).split(b"\n\n")
        events = []
        for block in blocks:
            for line in block.split(b"\n"):
                if line.startswith(b"data: "):
                    events.append(_decode(line[6:]))
                elif line.startswith(b"id: "):
                    self.place = line[4:].decode("ascii")
        return events
