"""Targets: every way in, for somebody who has not shown who he is. The broker has tokens, and keys for JWTs.

Nobody gets in, nothing is logged as an error, and no answer says that the broker has failed.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from penstock.cluster.links.guarded import LINK, Guarded
from penstock.config.config import AuthConfig, Config
from penstock.config.types import FileName, Text
from penstock.server.standby import Standby
from penstock.shells.secure import certificate_name
from tests.fuzz.target import Target
from tests.fuzz.targets.brokers import frames, house_of, http_seeds, requests, said, upgrade, whole_request
from tests.fuzz.targets.clients import in_loop
from tests.fuzz.targets.identities import USUAL, Known
from tests.support.certificates import Pair
from tests.support.jwt_provider import AUDIENCE, ISSUER, unpadded
from tests.support.shells import Wire

_OPENED = re.compile(rb"HTTP/1\.1 (?:101|4\d\d|503) ")  # 101: a conversation, which begins with a login.
_CLUSTER_TOKEN = b"a token that all of them know"


@cache
def _guarded() -> AuthConfig:
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    keys = FileName(Known(folder).path)
    return AuthConfig(tokens=("root",), jwt_keys=keys, jwt_issuer=Text(ISSUER), jwt_audience=Text(AUDIENCE))


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _http(data: bytes) -> None:
    """The bytes of a connection."""
    house = house_of(_guarded())
    await house.feed(house.http.connect(), data)


async def _request(data: bytes) -> None:
    """One request. What needs a token is not there without one."""
    house = house_of(_guarded())
    written = await house.feed(house.http.connect(), whole_request(data))
    target = b"".join(data.split(b"\n")[0].split()[1:2])
    is_open = re.match(rb"/(?:health|console)?(?:[/?]|$)", target) is not None
    assert not written or is_open or _OPENED.match(written), written[:200]


def _with_credentials() -> Iterator[bytes]:
    for credentials in (b"Bearer x", b"bearer  ", b"Basic cm9vdDpyb290", b"Bearer \xff", b"Bearer a.b.c", b"=\t="):
        yield b"GET /v1/queues\nAuthorization: %b\n\n" % credentials
    yield b"GET /v1/queues?token=x\n\n"
    for fields in (b"Durable-Session: true", b"Reconnect-As: 18446744073709551615", b"Sec-WebSocket-Protocol: a, b"):
        head = upgrade(b"/connect/", fields + b"\r\n").replace(b"\r\n", b"\n")
        yield head.replace(b" HTTP/1.1\nHost: localhost", b"") + b"\n"
    for fields in (b"Origin: http://[::1", b"Host: [::1]:x", b"Sec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate"):
        yield b"GET /v1/queues\n%b\n\n" % fields


async def _jwt_header(data: bytes) -> None:
    """What a JWT says of itself, before its signature is looked at."""
    claims = unpadded(json.dumps(USUAL).encode())
    await _request(b"GET /v1/queues\nAuthorization: Bearer %b.%b.AAAA\n\n" % (unpadded(data), claims))


def _jwt_headers() -> Iterator[bytes]:
    yield b'{"alg": "EdDSA", "kid": "first"}'
    yield b'{"alg": "EdDSA", "kid": "first", "jwk": ' + b"[" * 3000
    yield b'{"alg": "none", "kid": "\\u0000", "b64": false, "crit": ["b64"]}'
    yield b'{"alg": "EdDSA", "kid": "first", "x": 1e999, "y": ' + b"9" * 3000 + b"}"


# ── Conversations ─────────────────────────────────────────────────────────────────────────────────────────────


async def _glovebox(data: bytes) -> None:
    house = house_of(_guarded())
    written = await house.feed(house.http.connect(), upgrade(b"/connect/"), frames(data))
    assert b'"Hello"' not in written


async def _etzel_frames(data: bytes) -> None:
    house = house_of(_guarded())
    written = await house.feed(house.http.connect(), upgrade(b"/connect"), frames(data))
    assert b'"okauth"' not in written


async def _lines(data: bytes) -> None:
    house = house_of(_guarded())
    assert b'"okauth"' not in await house.feed(house.lines.connect(), data)


def _glovebox_logins() -> Iterator[bytes]:
    yield from said("glovebox")
    yield b'{"type":"authenticate","token":"a.b.c","label":7}'
    yield b'{"type":"authenticate","token":"x","more":' + b"[" * 3000
    yield b'{"type":"authenticate","token":"x","label":1e999}'


def _etzel_logins() -> Iterator[bytes]:
    yield from said("etzel")
    yield b'{"cmd":"AUTH","token":"a.b.c"}\n'
    yield b'{"cmd":"AUTH","token":"x","more":' + b"[" * 3000 + b"\n"
    yield b'{"cmd":"AUTH","token":"\\ud800"}\n\x16\x03\x01\n'


# ── Certificates ──────────────────────────────────────────────────────────────────────────────────────────────


def _client_certificate(data: bytes) -> None:
    """Whatever an authority signs has a name that can be stored and shown, or none."""
    certificate_name(_Shows(data)).encode()


class _Shows(asyncio.Transport):
    """A connection with this certificate."""

    def __init__(self, certificate: bytes) -> None:
        super().__init__()
        self._certificate = certificate

    def get_extra_info(self, name: str, default: object = None) -> object:
        """As `SSLObject.getpeercert` does."""
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(ssl.DER_cert_to_PEM_cert(self._certificate))
            file.flush()
            return ssl._ssl._test_decode_cert(file.name)  # type: ignore[attr-defined]


def _certificates() -> Iterator[bytes]:
    names = (x509.DNSName("a.example.org"), x509.UniformResourceIdentifier("spiffe://example.org/a"))
    with tempfile.TemporaryDirectory() as folder:
        signed = Pair(Path(folder), "reports", alternatives=names).x509.public_bytes(Encoding.DER)
    yield signed
    yield signed.replace(b"a.example", b"\xff.example")
    yield signed.replace(b"reports", b"rep\xffrts")


# ── Between brokers ───────────────────────────────────────────────────────────────────────────────────────────


async def _link(data: bytes) -> None:
    """What somebody says to a node who does not know the token."""
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    for cut in {0, len(data) // 2}:
        guarded, wire = Guarded({LINK: make}, _CLUSTER_TOKEN), Wire()
        guarded.connection_made(wire)
        for piece in (data[:cut], data[cut:]):
            if piece and not wire.is_closing():
                guarded.data_received(piece)
        guarded.connection_lost(None)
    assert not made


async def _standby(data: bytes) -> None:
    """What is sent to a broker that waits for its log."""
    standby = Standby(Config(), None)
    for answer in (standby._answer_http, standby._answer_lines):
        reader, wire = asyncio.StreamReader(), Wire()
        protocol = asyncio.StreamReaderProtocol(reader)
        protocol.connection_made(wire)
        reader.feed_data(data)
        reader.feed_eof()
        await answer(reader, asyncio.StreamWriter(wire, protocol, reader, asyncio.get_running_loop()))


TARGETS = [
    Target("guest-http", in_loop(_http), http_seeds),
    Target("guest-requests", in_loop(_request), lambda: [*requests(), *_with_credentials()]),
    Target("guest-jwt", in_loop(_jwt_header), _jwt_headers),
    Target("guest-glovebox", in_loop(_glovebox), _glovebox_logins),
    Target("guest-etzel-frames", in_loop(_etzel_frames), _etzel_logins),
    Target("guest-lines", in_loop(_lines), _etzel_logins),
    Target("client-certificate", _client_certificate, _certificates),
    Target("link-guest", in_loop(_link), lambda: [b"penstock" + b"link    " + b"c" * 64, b"\x16\x03\x01"]),
    Target("standby", in_loop(_standby), lambda: [b"GET /health HTTP/1.1\r\n\r\n", b'{"cmd":"FET","qname":"a"}\n']),
]
