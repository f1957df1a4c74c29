"""A defect behind any door, planted where a token is looked at, shows itself to nobody who has not come in."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import NoReturn

import pytest

from penstock.broker.identities import Identities
from penstock.config.config import AuthConfig, HttpConfig
from penstock.shells.connection import Connection
from penstock.shells.http_server import HttpServer
from penstock.shells.secure import Handshake
from tests.fuzz.targets.brokers import House, Socket, upgrade
from tests.fuzz.targets.wire import masked_frame
from tests.support.live_loop import until
from tests.support.shells import Witness

Door = Callable[[House], tuple[Connection, tuple[bytes, ...], bytes]]
"""A connection, what its client sends in pieces, and what the last answer begins with."""


def defect(*_: object) -> NoReturn:
    raise RuntimeError("on purpose")


def http(house: House) -> tuple[Connection, tuple[bytes, ...], bytes]:
    head = b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n"
    return house.http.connect(), (head,), b"HTTP/1.1 401"


def http_unfinished(house: House) -> tuple[Connection, tuple[bytes, ...], bytes]:
    head = b"PUT /v1/queues/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\nContent-Length: 9\r\n\r\n"
    return house.http.connect(), (head,), b"HTTP/1.1 401"


def glovebox(house: House) -> tuple[Connection, tuple[bytes, ...], bytes]:
    login = masked_frame(1, b'{"type":"authenticate","token":"x"}')
    return house.http.connect(), (upgrade(b"/connect/"), login), b"\x88\x10\x03\xf0no valid token"


def etzel_frames(house: House) -> tuple[Connection, tuple[bytes, ...], bytes]:
    login = masked_frame(1, b'{"cmd":"AUTH","token":"x"}')
    return house.http.connect(), (upgrade(b"/connect"), login), b"\x88\x10\x03\xf0no valid token"


def lines(house: House) -> tuple[Connection, tuple[bytes, ...], bytes]:
    return house.lines.connect(), (b'{"cmd":"AUTH","token":"x"}\n',), b'{"cmd":"nok","err":"DENIED"}\n'


@pytest.mark.parametrize("door", [http, http_unfinished, glovebox, etzel_frames, lines])
def test_it_is_refused_like_a_wrong_token_and_as_late(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Identities, "_of_bearer", defect)

    async def story() -> None:
        house = House(AuthConfig(tokens=("root",)))
        try:
            connection, pieces, refusal = door(house)
            wire = Socket()
            wire.protocol = connection
            connection.connection_made(wire)
            before = b""
            for piece in pieces:
                before = wire.written
                wire.protocol.data_received(piece)
            assert wire.written == before, "it is not answered at once"
            assert house.http.quotas is not None
            assert house.http.quotas.logins.failed_total == 1
            await until(lambda: wire.written != before)
            assert wire.written[len(before) :].startswith(refusal)
            wire.protocol.data_received(pieces[-1])
            assert house.http.quotas.logins.failed_total == 1, "nothing more is read from it"
            wire.protocol.connection_lost(None)
        finally:
            house.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())
    (logged,) = caplog.records
    assert logged.exc_info
    assert logged.exc_info[0] is RuntimeError


def test_those_who_have_come_in_are_told_that_the_broker_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Identities, "of_header", defect)

    async def story() -> None:
        house = House(AuthConfig())  # Where everybody is in.
        try:
            connection, (head,), _ = http(house)
            wire = Socket()
            connection.connection_made(wire)
            connection.data_received(head)
            assert wire.written.startswith(b"HTTP/1.1 500"), wire.written
            connection.connection_lost(None)
        finally:
            house.close()

    asyncio.run(story())


class Certificate:
    """Of a server."""

    handshakes = handshakes_failed = 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def test_a_handshake_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(ssl.SSLContext, "wrap_bio", defect)

    async def story() -> None:
        security, wire = Certificate(), Socket()
        server = HttpServer(Witness(), HttpConfig())
        connection = Handshake(server, security)
        connection.connection_made(wire)
        connection.data_received(b"\x16\x03\x01")
        await until(lambda: wire.closed)
        assert (security.handshakes_failed, wire.written) == (1, b"")
        connection.connection_lost(None)
        assert not server.connections

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())
    assert [record.message for record in caplog.records] == ["handshake_surprised"]


def test_a_connection_with_a_defect_takes_nothing_from_the_others() -> None:
    class Broken(Connection):
        def check_time(self) -> None:
            defect()

        def flush(self) -> None:
            defect()

        def _leave(self) -> None: ...

    async def story() -> None:
        server = HttpServer(Witness(), HttpConfig())
        broken, wire, flushed = Broken(server), Socket(), list[bool]()
        broken.transport = wire
        server.connections.add(broken)

        class Whole(Broken):
            def check_time(self) -> None: ...
            def flush(self) -> None:
                flushed.append(True)

        server.flush_soon(broken)
        server.flush_soon(Whole(server))
        await until(lambda: flushed == [True])
        assert wire.aborted
        sweeps = server.sweeps
        server._sweep()
        await until(lambda: server.sweeps > sweeps + 1)
        server.close()

    asyncio.run(story())
