"""A connection to another machine: both ends prove that they know the token, then bytes pass.

Each end opens with a random challenge, the caller also with its purpose: a link, or to pass a client on. Each answers
with an HMAC of both openings and its own role. So the token is never sent, and an answer cannot be used again.
Nothing of a peer is decoded before its proof. Without TLS this does not protect against somebody who can change
packets on their way.

Silence ends a link. A connection that passes a client on has only the bytes of that client.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Callable, Mapping
from math import ceil
from typing import cast

from penstock.cluster.links.codec import frame
from penstock.limits import LINK_BEAT_SECONDS, LINK_SILENCE_SECONDS_MAX

logger = logging.getLogger(__name__)

Accept = Mapping[bytes, Callable[[], asyncio.Protocol]]
"""What goes on with a connection after the proof, by its purpose."""

LINK = b"link"
RELAY = b"relay"

_MAGIC = b"penstock"
_PURPOSE_BYTES = 8
_OPENING_BYTES = len(_MAGIC) + _PURPOSE_BYTES + 32
_PROOF_BYTES = 32
_BEAT = frame([])


class Guarded(asyncio.Protocol):
    def __init__(self, accept: Accept, token: bytes, purpose: bytes = b"") -> None:
        """`purpose`: what a caller wants. One that listens learns it from its caller."""
        assert token
        self._accept = accept
        self._token = token
        self._is_caller = bool(purpose)
        self._purpose = purpose
        self._inner = accept[purpose]() if purpose else None
        self._opening = _MAGIC + purpose.ljust(_PURPOSE_BYTES) + secrets.token_bytes(32)
        self._peers_opening = b""
        self._kept = b""
        self._is_open = False  # The peer has proved itself.
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._opening)
        self._heard_at = asyncio.get_running_loop().time()
        self._beat()

    def data_received(self, data: bytes) -> None:
        if self._is_open and self._inner:
            self._hear()
            self._inner.data_received(data)
            return
        self._kept += data
        if not self._peers_opening and len(self._kept) >= _OPENING_BYTES:
            self._answer()
        if self._peers_opening and len(self._kept) >= _PROOF_BYTES:
            self._check()

    def resume_writing(self) -> None:
        if self._is_open and self._inner:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        if self._inner:
            self._inner.connection_lost(error)

    def _answer(self) -> None:
        self._peers_opening, self._kept = self._kept[:_OPENING_BYTES], self._kept[_OPENING_BYTES:]
        if not self._is_caller:
            self._purpose = self._peers_opening[len(_MAGIC) :][:_PURPOSE_BYTES].rstrip()
        if self._peers_opening.startswith(_MAGIC):
            self._transport.write(self._proof(is_caller=self._is_caller))
        else:
            self._end("link_refused", "it is not a broker of the cluster")

    def _check(self) -> None:
        proof, rest = self._kept[:_PROOF_BYTES], self._kept[_PROOF_BYTES:]
        self._kept = b""
        if not hmac.compare_digest(proof, self._proof(is_caller=not self._is_caller)):
            self._end("link_refused", "it has another token")
        elif self._purpose not in self._accept:
            self._end("link_refused", "it wants something that this broker does not know")
        else:
            self._open(self._inner or self._accept[self._purpose](), rest)

    def _open(self, inner: asyncio.Protocol, rest: bytes) -> None:
        self._inner, self._is_open = inner, True
        self._hear()
        if self._purpose == RELAY:
            self._leave(inner)
        inner.connection_made(self._transport)
        if rest:
            inner.data_received(rest)

    def _leave(self, inner: asyncio.Protocol) -> None:
        """Nothing of ours may come between the bytes from now on."""
        if self._timer:
            self._timer.cancel()
        _watch(self._transport)
        self._transport.set_protocol(inner)

    def _proof(self, *, is_caller: bool) -> bytes:
        """Of one of both ends. The opening of the caller comes first."""
        openings = (self._opening, self._peers_opening)
        first, second = openings if self._is_caller else openings[::-1]
        return hmac.digest(self._token, (b"caller" if is_caller else b"listener") + first + second, "sha256")

    # ── Silence ─────────────────────────────────────────────────────────────────────────────────────────────

    def _hear(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    def _beat(self) -> None:
        """Send something now and then, and end the link if the peer does not. A peer that is cut off sends no end."""
        running = asyncio.get_running_loop()
        if running.time() - self._heard_at > LINK_SILENCE_SECONDS_MAX:
            self._end("link_silent", f"nothing came for {LINK_SILENCE_SECONDS_MAX:.0f} s")
            return
        if self._is_open and not self._transport.get_write_buffer_size():
            self._transport.write(_BEAT)
        self._timer = running.call_later(LINK_BEAT_SECONDS, self._beat)

    def _end(self, event: str, reason: str) -> None:
        address = str(self._transport.get_extra_info("peername"))
        logger.debug(event, extra={"address": address, "reason": reason})
        self._transport.abort()


def _watch(transport: asyncio.Transport) -> None:
    """Have the system end a connection whose peer is cut off."""
    link = transport.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ceil(LINK_BEAT_SECONDS))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ceil(LINK_BEAT_SECONDS))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LINK_SILENCE_SECONDS_MAX * 1000))
