"""Who may talk to the broker: whoever shows one of its tokens (RFC 6750), or anyone if it has none."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest


class Authenticator:
    """Keeps digests, not tokens: all of one length, so that a comparison tells nothing of what it compares with."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [sha256(token.encode()).digest() for token in tokens]

    def allows(self, authorization: bytes | None) -> bool:
        """Whether a request with this `Authorization` field may pass."""
        if not self._digests:
            return True
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        return scheme.lower() == b"bearer" and self._knows(token.strip())

    def admits(self, token: str) -> bool:
        """Whether a client that shows this token, in whatever way its protocol has, may pass."""
        return not self._digests or self._knows(token.encode())

    def _knows(self, token: bytes) -> bool:
        shown = sha256(token).digest()
        allowed = False
        for digest in self._digests:  # All of them, always: the time must not tell which one was close.
            allowed |= compare_digest(digest, shown)
        return allowed

    @staticmethod
    def challenge(authorization: bytes | None) -> bytes:
        """The `WWW-Authenticate` field of the 401 that answers a request which was not allowed."""
        return b'Bearer realm="penstock"' + (b', error="invalid_token"' if authorization else b"")
