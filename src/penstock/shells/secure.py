"""TLS for every shell: the handshake, and then a transport that encrypts.

A connection counts from the moment it is accepted, and its handshake must be complete within the time of a slow
client. Nothing is made for a client that has not sent its first bytes, and little is kept of a handshake that is not
complete. After it, bytes pass through: what is read is decrypted and handed on at once, what is written is encrypted
and given to the socket at once. So a pause, a full buffer and a limit mean the same with TLS as without.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol, cast

from penstock.errors import Fault
from penstock.limits import BACKLOG_MAX, HANDSHAKE_BYTES_MAX
from penstock.model.answers import Refused
from penstock.shells.connection import TLS_PORT, Connection, Server, http_answer, is_misdirected

logger = logging.getLogger(__name__)

_HANDSHAKE = 0x16  # The kind of a client's first record.
_RECORD_BYTES_MAX = 1 << 14
_RECORDS_AT_ONCE = 64  # A read may hold ten thousand records of a byte each: others have their turn in between.


class Security(Protocol):
    """What connections are encrypted with."""

    context: ssl.SSLContext
    handshakes: int
    handshakes_failed: int


async def listen(
    server: Server,
    security: Security,
    host: str,
    port: int,
    backlog: int = BACKLOG_MAX,
    door: socket.socket | None = None,
) -> asyncio.Server:
    return await server.listen(host, port, backlog, partial(Handshake, server, security), door)


class Handshake(Connection):
    """A connection until its handshake is complete. Then the server's own connection takes its place."""

    SURPRISE = "handshake_surprised"

    __slots__ = ("_incoming", "_link", "_outgoing", "_received_bytes", "_security")

    def __init__(self, server: Server, security: Security) -> None:
        super().__init__(server)
        self._security = security
        self._received_bytes = 0
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._link: ssl.SSLObject | None = None

    def _refuse_connection(self, refused: Refused | None) -> None:  # noqa: ARG002 - There is no form for it yet.
        self.abort()  # A handshake would cost more than the connection that is refused.

    def _begin(self) -> None:
        self.begun_at = self._server.sweeps

    def _read(self, data: bytes) -> None:
        """A handshake takes as long as many requests: a thousand that come at once wait for their turns."""
        self._park(data)
        self._pause(True)
        self._turns.join(self)

    def _take_part(self, crowded: bool) -> bool:  # noqa: ARG002 - It cannot be divided.
        if self.transport is not None and self._parked:
            self._pause(False)
            self._receive(self._forget_parked())
        return False

    def _receive(self, data: bytes) -> None:
        if self._link is None:
            if data[0] != _HANDSHAKE:
                self._answer_plain(data)
                return
            self._link = self._security.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._received_bytes += len(data)
        self._incoming.write(data)
        try:
            self._link.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            if self._received_bytes > HANDSHAKE_BYTES_MAX:
                self._fail("the handshake is too long")
        except ssl.SSLError as error:
            self._fail(error.reason or str(error))
        else:
            self._hand_over(self._link)

    def _answer_plain(self, start: bytes) -> None:
        """The client does not use TLS: say so in its own protocol."""
        answer = http_answer(Fault.TLS_REQUIRED) if is_misdirected(start) else self._server.plain_refusal()
        if self.transport and answer:
            self.transport.write(answer)
        self._server.note_misdirected(TLS_PORT)
        self._fail("the client does not use TLS")

    def _send(self) -> None:
        if self.transport and self._outgoing.pending:
            self.transport.write(self._outgoing.read())

    def _hand_over(self, link: ssl.SSLObject) -> None:
        self._send()
        raw, self.transport = self.transport, None
        assert raw is not None
        self.end_meter()  # The connection that follows counts itself.
        self._security.handshakes += 1
        self._server.connections.discard(self)
        secure = SecureTransport(raw, link, self._incoming, self._outgoing)
        raw.set_protocol(secure)
        connection = self._server.connect()
        secure.set_protocol(connection)
        connection.connection_made(secure)
        if secure.may_read():
            secure.read()  # The client's first request may have come with the end of the handshake.

    def _fail(self, reason: str) -> None:
        self.begun_at = 0
        self._security.handshakes_failed += 1
        logger.debug("handshake_failed", extra={"reason": reason})
        self._send()  # What is wrong, in the form of TLS.
        self.disconnect()

    def _refuse_surprise(self) -> None:
        self._count_fault()
        self._fail("it led to an error that was not expected")

    def _go_on(self) -> None:
        self._pause(bool(self._parked))

    def _is_busy(self) -> bool:
        return False

    def _end_incomplete(self, seconds: float) -> None:
        self._fail(f"the handshake was not complete after {seconds:g} s")
        self.abort()

    def stop(self) -> None:
        self.abort()

    def drop_kept(self) -> None:
        self.abort()

    def _leave(self) -> None: ...


class SecureTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of a connection with TLS, and the protocol of the socket below it. It has many methods because it
    has those of both."""

    __slots__ = (
        "_ended",
        "_incoming",
        "_link",
        "_outgoing",
        "_paused",
        "_protocol",
        "_raw",
        "_reads_later",
        "_shut",
    )

    def __init__(
        self, raw: asyncio.Transport, link: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        super().__init__()
        self._raw = raw
        self._link = link
        self._incoming = incoming
        self._outgoing = outgoing
        self._protocol: asyncio.Protocol = self
        self._ended = False  # The client sends nothing more.
        self._shut = False  # We send nothing more.
        self._paused = False  # Nothing may be handed on.
        self._reads_later = False  # What was read is not decrypted to its end.

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if not self._shut:  # What comes after our last word is not wanted.
            self._incoming.write(data)
            self.read()

    def read(self) -> None:
        """Decrypt what came, and hand it on in one piece."""
        pieces: list[bytes] = []
        incoming, read = self._incoming, self._link.read
        ended = self._ended
        try:
            while incoming.pending and not ended:
                if len(pieces) == _RECORDS_AT_ONCE:
                    self._read_later()
                    break
                piece = read(_RECORD_BYTES_MAX)
                if piece:
                    pieces.append(piece)
                else:
                    ended = True
        except ssl.SSLWantReadError:
            pass  # The rest of a record is on its way.
        except ssl.SSLError as error:
            self._break(error)
            return
        if self._outgoing.pending:  # A client may ask for new keys.
            self._send()
        if pieces:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended:
            self._end()

    def eof_received(self) -> bool:
        """Also without the alert that should come first: requests say themselves where they end."""
        self._end()
        return True

    def _end(self) -> None:
        """The client has closed its side; the connection stays open if there are answers to send."""
        if not self._ended:
            self._ended = True
            if not self._protocol.eof_received():
                self.close()

    def _read_later(self) -> None:
        if not self._reads_later:
            self._reads_later = True
            self._raw.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._reads_later = False
        if self.may_read():
            self.read()
        if not (self._paused or self._reads_later or self._raw.is_closing()):
            self._raw.resume_reading()

    def may_read(self) -> bool:
        return not (self._paused or self._shut or self._raw.is_closing())

    def pause_reading(self) -> None:
        self._paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._incoming.pending and not self._shut:
            self._read_later()
        elif not self._reads_later:
            self._raw.resume_reading()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._shut:
            return
        encrypt = self._link.write
        try:
            for data in list_of_data:
                done = encrypt(data) if data else 0
                if done < len(data):  # One record at a time.
                    view = memoryview(data)
                    while done < len(view):
                        done += encrypt(view[done:])
        except ssl.SSLError as error:
            self._break(error)
            return
        self._send()

    def _send(self) -> None:
        self._raw.write(self._outgoing.read())

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._raw.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    # ── The end ─────────────────────────────────────────────────────────────────────────────────────────────

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._shut_down()
        self._raw.write_eof()

    def close(self) -> None:
        self._shut_down()
        self._raw.close()

    def _shut_down(self) -> None:
        """Send the alert that nothing follows."""
        if self._shut:
            return
        self._shut = True
        try:
            self._link.unwrap()
        except ssl.SSLError:
            pass  # It would go on to wait for the client's.
        if self._outgoing.pending:
            self._send()

    def _break(self, error: ssl.SSLError) -> None:
        logger.debug("tls_failed", extra={"reason": error.reason or str(error)})
        self._shut = True
        if self._outgoing.pending:
            self._send()
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    # ── Beside the bytes ────────────────────────────────────────────────────────────────────────────────────

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._link.getpeercert()
        return self._raw.get_extra_info(name, default)


_ALTERNATIVES = ("URI", "DNS")


def certificate_name(transport: asyncio.Transport) -> str:
    """The common name of the subject, or else its first URI or host name. Empty if the client shows no certificate
    that can be read.

    The handshake has checked that an authority of `tls.client_ca` vouches for it.
    """
    certificate: dict[str, Any] | None
    try:
        certificate = transport.get_extra_info("peercert")
    except (ssl.SSLError, ValueError):  # An authority may have signed names that are no text.
        return ""
    return _name(certificate) if certificate else ""


def _name(certificate: dict[str, Any]) -> str:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    others = certificate.get("subjectAltName", ())
    return next((value for kind, value in others if kind in _ALTERNATIVES), "")
