"""A link to another machine: both ends prove that they know the token, then bytes pass, and silence ends it.

Each end sends a random challenge, and answers with an HMAC of both challenges and its own role. So the token is never
sent, and an answer cannot be used again. Nothing of a peer is decoded before its proof. Without TLS this does not
protect against somebody who can change packets on their way.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from typing import cast

from penstock.limits import LINK_BEAT_SECONDS, LINK_SILENCE_SECONDS_MAX
from penstock.server.shards.codec import frame

logger = logging.getLogger(__name__)

_MAGIC = b"penstock"
_CHALLENGE_BYTES = 32
_OPENING_BYTES = len(_MAGIC) + _CHALLENGE_BYTES
_PROOF_BYTES = 32
_BEAT = frame([])


class Guarded(asyncio.Protocol):
    def __init__(self, link: asyncio.Protocol, token: bytes, *, is_caller: bool) -> None:
        assert token
        self._link = link
        self._token = token
        self._is_caller = is_caller
        self._challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        self._peers_challenge = b""
        self._kept = b""
        self._is_open = False  # The peer has proved itself.
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_MAGIC + self._challenge)
        self._heard_at = asyncio.get_running_loop().time()
        self._beat()

    def data_received(self, data: bytes) -> None:
        if self._is_open:
            self._hear()
            self._link.data_received(data)
            return
        self._kept += data
        if not self._peers_challenge and len(self._kept) >= _OPENING_BYTES:
            self._answer()
        if self._peers_challenge and len(self._kept) >= _PROOF_BYTES:
            self._check()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._link.connection_lost(error)

    def _answer(self) -> None:
        opening, self._kept = self._kept[:_OPENING_BYTES], self._kept[_OPENING_BYTES:]
        self._peers_challenge = opening[len(_MAGIC) :]
        if opening.startswith(_MAGIC):
            self._transport.write(self._proof(is_caller=self._is_caller))
        else:
            self._end("link_refused", "it is not a broker of the cluster")

    def _check(self) -> None:
        proof, rest = self._kept[:_PROOF_BYTES], self._kept[_PROOF_BYTES:]
        self._kept = b""
        if not hmac.compare_digest(proof, self._proof(is_caller=not self._is_caller)):
            self._end("link_refused", "it has another token")
            return
        self._is_open = True
        self._hear()
        self._link.connection_made(self._transport)
        if rest:
            self._link.data_received(rest)

    def _proof(self, *, is_caller: bool) -> bytes:
        """Of one of both ends. The challenge of the caller comes first."""
        challenges = (self._challenge, self._peers_challenge)
        first, second = challenges if self._is_caller else challenges[::-1]
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
