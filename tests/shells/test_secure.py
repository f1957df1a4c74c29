"""The transport that encrypts: bytes through it are the same whatever their pieces, and its ends are those of TLS."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.turns import Taker, Turns
from penstock.config.config import HttpConfig
from penstock.limits import HANDSHAKE_BYTES_MAX
from penstock.shells.connection import SWEEPS_PER_SECOND, Connection
from penstock.shells.http_server import HttpServer
from penstock.shells.secure import Handshake
from tests.support.certificates import Pair
from tests.support.shells import Wire, Witness

SLOW_SECONDS = 3


class Security:
    """The certificate of a server, and what it counts."""

    def __init__(self, pair: Pair) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(pair.certificate, pair.key)
        self.handshakes = self.handshakes_failed = 0


class Noter(Connection):
    """Takes what is decrypted."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server)
        self.received = b""
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.ended = True
        return True

    def _leave(self) -> None: ...
    def _go_on(self) -> None: ...
    def _is_busy(self) -> bool:
        return True


class NotingServer(HttpServer):
    def connect(self) -> Noter:  # type: ignore[override]
        self.latest = Noter(self)
        return self.latest


class AtOnce(Turns):
    """Nobody waits for a turn."""

    def join(self, taker: Taker) -> None:
        taker.take_turn(crowded=False)


class Scene:
    """A server's connection and a client, joined by hand: every byte passes through the test."""

    def __init__(self, pair: Pair, connections_max: int = 10) -> None:
        self.server = NotingServer(
            Witness(), HttpConfig(slow_client_seconds=SLOW_SECONDS, connections_max=connections_max), AtOnce()
        )
        self.security = Security(pair)
        self.wire = SwitchingWire()
        self.handshake = Handshake(self.server, self.security)
        self.wire.protocol = self.handshake
        self.handshake.connection_made(self.wire)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = pair.trusting().wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    def shake_hands(self, piece: int = 1 << 14) -> Noter:
        while True:
            try:
                self.client.do_handshake()
                self.to_server(piece)
                break
            except ssl.SSLWantReadError:
                self.to_server(piece)
                self.to_client()
        self.to_client()
        return self.server.latest

    def to_server(self, piece: int = 1 << 14) -> None:
        data = self.said()
        for start in range(0, len(data), piece):
            self.wire.protocol.data_received(data[start : start + piece])

    def said(self) -> bytes:
        return self._outgoing.read()

    def to_client(self) -> None:
        data, self.wire.written = self.wire.written, b""
        self._incoming.write(data)

    def read(self) -> bytes:
        """What the client can decrypt; ends at the end of TLS."""
        self.to_client()
        whole = b""
        try:
            while piece := self.client.read(1 << 16):
                whole += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return whole


class SwitchingWire(Wire):
    """Its protocol may change."""

    protocol: Connection

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol  # type: ignore[assignment]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"), "server")


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(min_size=1, max_size=40_000), max_size=4), st.sampled_from([1 << 20, 16_000, 997]))
def test_what_is_sent_arrives_whatever_the_pieces(pair: Pair, messages: list[bytes], piece: int) -> None:
    scene = Scene(pair)
    connection = scene.shake_hands()
    for message in messages:
        rest = memoryview(message)
        while rest:
            rest = rest[scene.client.write(rest) :]
    scene.to_server(piece)
    assert connection.received == b"".join(messages)
    assert connection.transport
    for message in messages:
        connection.transport.write(message)
    connection.transport.writelines(messages)
    assert scene.read() == b"".join(messages) * 2


def test_a_handshake_may_come_byte_by_byte(pair: Pair) -> None:
    scene = Scene(pair)
    assert scene.shake_hands(1) in scene.server.connections
    assert len(scene.server.connections) == 1
    assert (scene.security.handshakes, scene.security.handshakes_failed) == (1, 0)


def test_handshakes_that_come_at_once_wait_for_their_turns(pair: Pair) -> None:
    async def story() -> int:
        scene = Scene(pair)
        scene.server.turns = Turns()
        wires = []
        for _ in range(50):
            handshake, wire = Handshake(scene.server, scene.security), SwitchingWire()
            handshake.connection_made(wire)
            wires.append(wire)
            with pytest.raises(ssl.SSLWantReadError):
                (client := Scene(pair)).client.do_handshake()
            handshake.data_received(client.said())
        answered = sum(bool(wire.written) for wire in wires)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sum(bool(wire.written) for wire in wires) > 0
        return answered

    assert asyncio.run(story()) == 0


def test_a_handshake_that_is_slow_is_cut_off(pair: Pair) -> None:
    scene = Scene(pair)
    for _ in range(SLOW_SECONDS * SWEEPS_PER_SECOND + 2):
        scene.server.sweeps += 1
        scene.handshake.check_time()
    assert scene.wire.aborted
    assert scene.security.handshakes_failed == 1


def test_a_handshake_that_never_ends_is_cut_off(pair: Pair) -> None:
    scene = Scene(pair)
    part = b"\x16\x03\x01\x00\x04" + b"\x01\x01\xff\xff"  # A hello of 128 KiB, in small records.
    filler = b"\x16\x03\x01\x10\x00" + bytes(4096)
    scene.handshake.data_received(part)
    for _ in range(HANDSHAKE_BYTES_MAX // 4096 + 1):
        if not scene.wire.closed:
            scene.handshake.data_received(filler)
    assert scene.wire.closed


def test_a_connection_over_the_limit_gets_no_handshake(pair: Pair) -> None:
    scene = Scene(pair, connections_max=1)
    further = Handshake(scene.server, scene.security)
    wire = SwitchingWire()
    further.connection_made(wire)
    assert wire.aborted


def test_the_end_of_writing_is_said_and_later_input_is_dropped(pair: Pair) -> None:
    scene = Scene(pair)
    connection = scene.shake_hands()
    assert connection.transport
    connection.transport.write(b"last words")
    connection.transport.write_eof()
    connection.transport.write(b"too late")
    scene.client.write(b"more")
    scene.to_server()
    assert scene.read() == b"last words"
    assert connection.received == b""
    assert not scene.wire.closed


def test_the_end_of_the_client_reaches_the_connection_once(pair: Pair) -> None:
    scene = Scene(pair)
    connection = scene.shake_hands()
    scene.client.write(b"request")
    with pytest.raises(ssl.SSLWantReadError):
        scene.client.unwrap()
    scene.to_server()
    assert (connection.received, connection.ended) == (b"request", True)
    connection.ended = False
    assert scene.wire.protocol.eof_received()
    assert not connection.ended
    assert connection.transport
    connection.transport.write(b"answer")
    assert scene.read() == b"answer"


def test_bytes_that_are_not_tls_any_more_end_the_connection(pair: Pair) -> None:
    scene = Scene(pair)
    connection = scene.shake_hands()
    scene.wire.protocol.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert scene.wire.closed
    assert connection.received == b""


def test_pauses_and_sizes_are_those_of_the_socket(pair: Pair) -> None:
    scene = Scene(pair)
    connection = scene.shake_hands()
    transport = connection.transport
    assert transport
    states = []
    for change in (transport.pause_reading, transport.resume_reading):
        change()
        states.append(scene.wire.reading)
    assert states == [False, True]
    scene.wire.unsent = 17
    assert transport.get_write_buffer_size() == 17
    for change in (scene.wire.protocol.pause_writing, scene.wire.protocol.resume_writing):
        change()
        states.append(connection.choked)
    assert states == [False, True, True, False]
    transport.abort()
    assert scene.wire.aborted
    assert transport.get_extra_info("peercert") is None


def test_many_small_records_are_read_in_turns_and_not_past_a_pause(pair: Pair) -> None:
    async def story() -> list[int]:
        scene = Scene(pair)
        connection = scene.shake_hands()
        transport = connection.transport
        assert transport
        for number in range(1000):
            scene.client.write(b"%d" % (number % 10))
        scene.to_server(1 << 20)
        sizes = [len(connection.received)]
        transport.pause_reading()
        for _ in range(5):
            await asyncio.sleep(0)
        sizes.append(len(connection.received))
        transport.resume_reading()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(connection.received) == 1000
        assert scene.wire.reading
        return sizes

    first, paused = asyncio.run(story())
    assert 0 < first < 100
    assert paused == first
