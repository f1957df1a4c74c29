"""The WebSocket shell: many frames leave room for others, and each message has its time."""

from __future__ import annotations

import asyncio

from penstock.config.config import HttpConfig, WsConfig
from penstock.dialects.wire.frames import PING
from penstock.shells.http_server import HttpServer
from penstock.shells.ws import WsConnection
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, until
from tests.support.shells import Echo, Wire, Witness

MANY = 5000


def test_of_many_frames_a_part_is_taken_at_once_and_all_in_the_end() -> None:
    async def story() -> None:
        http, wire = HttpServer(Witness(), HttpConfig()), Wire()
        connection = WsConnection(http, a_loop(MemoryLog()), WsConfig(), wire)
        echo = Echo(connection)
        connection.open(lambda _: echo, b"")
        http.turns.light += 1
        pings, texts = bytes((0x80 | PING, 0x80, 0, 0, 0, 0)), b"\x81\x81\0\0\0\0x"
        connection.data_received(pings * MANY + texts * MANY)
        assert len(wire.written) < MANY / 10
        assert not wire.reading
        await until(lambda: echo.heard == MANY)
        await until(lambda: wire.reading)
        assert wire.written == b"\x8a\x00" * MANY + b"\x81\x01x" * MANY

    asyncio.run(story())


def test_a_message_has_its_time_from_its_own_first_byte() -> None:
    async def story() -> None:
        http, wire = HttpServer(Witness(), HttpConfig(slow_client_seconds=1)), Wire()
        connection = WsConnection(http, a_loop(MemoryLog()), WsConfig(), wire)
        connection.open(Echo, b"")
        whole = b"\x81\x81\0\0\0\0x"
        connection.data_received(whole[:3])
        for http.sweeps in range(1, 20):
            connection.data_received(whole[3:] + whole[:3])
            connection.check_time()
        assert wire.written == b"\x81\x01x" * 19
        http.sweeps += 3
        connection.check_time()
        assert wire.written.endswith(b"the message was not complete after 1 s")

    asyncio.run(story())
