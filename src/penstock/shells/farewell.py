"""What comes after the last answer of a connection is read and dropped, until the client closes, the time is over, or
it is more than any request has.

If a connection is closed before all is read that came, it is reset, and the client may lose an answer that is on its
way: the refusal of a large body, which the client is still sending.
"""

from __future__ import annotations

import asyncio

from penstock.limits import FAREWELL_BYTES_MAX
from penstock.shells.connection import Connection


class Farewell(asyncio.Protocol):
    """Takes the place of a connection that has sent its last answer. The connection still ends it in time."""

    __slots__ = ("_connection", "_room")

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._room = FAREWELL_BYTES_MAX
        transport.set_protocol(self)
        transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            self._connection.abort()
        else:
            self._connection.drop(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
