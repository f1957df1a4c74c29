"""Targets: certificates of any server, and what any client sends before it is encrypted."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from penstock.broker.turns import Taker, Turns
from penstock.config.config import HttpConfig
from penstock.shells.certificate import from_der, from_pem
from penstock.shells.http_server import HttpServer
from penstock.shells.secure import Handshake
from tests.fuzz.target import Target
from tests.support.certificates import LOOPBACK, Pair
from tests.support.shells import Wire, Witness

_NAMES = (x509.DNSName("queue.example.org"), LOOPBACK, x509.UniformResourceIdentifier("spiffe://example.org/a"))


def _certificate(data: bytes) -> None:
    for read in (from_der, from_pem):
        try:
            assert read(data).ends.tzinfo
        except ValueError:
            pass


def _certificates() -> Iterator[bytes]:
    pair = _pair()
    yield pair.x509.public_bytes(Encoding.DER)
    yield pair.certificate.read_bytes()


@cache
def _pair() -> Pair:
    return Pair(Path(tempfile.mkdtemp()), "queue", alternatives=_NAMES)


class _Security:
    handshakes = handshakes_failed = 0

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(_pair().certificate, _pair().key)


class _AtOnce(Turns):
    def join(self, taker: Taker) -> None:
        taker.take_turn(crowded=False)


@cache
def _server() -> tuple[HttpServer, _Security]:
    return HttpServer(Witness(), HttpConfig(), _AtOnce()), _Security()


def _handshake(data: bytes) -> None:
    """Whole, and in two pieces. A client that is not understood is disconnected."""
    for cut in {len(data), len(data) // 2} - {0}:
        connection, wire = Handshake(*_server()), Wire()
        connection.connection_made(wire)
        for piece in (data[:cut], data[cut:]):
            if piece and not wire.is_closing():
                connection.data_received(piece)
        connection.connection_lost(None)
    assert not _server()[0].connections


def _hellos() -> Iterator[bytes]:
    outgoing = ssl.MemoryBIO()
    client = _pair().trusting().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    yield outgoing.read()
    yield b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield b'{"cmd":"FET","qname":"a"}\n'


TARGETS = [Target("certificate", _certificate, _certificates), Target("tls-handshake", _handshake, _hellos)]
