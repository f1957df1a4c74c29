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
        if scheme.lower() != b"bearer":
            return False
        shown = sha256(token.strip()).digest()
        allowed = False
        for digest in self._digests:  # All of them, always: the time must not tell which one was close.
            allowed |= compare_digest(digest, shown)
        return allowed

    @staticmethod
    def challenge(authorization: bytes | None) -> bytes:
        """The `WWW-Authenticate` field of the 401 that answers a request which was not allowed."""
        return b'Bearer realm="penstock"' + (b', error="invalid_token"' if authorization else b"")
