"""Bearer tokens (RFC 6750): any listed token grants access; without tokens, anyone has access."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest


class Authenticator:
    """Keeps digests instead of tokens. They have one length, so the time of a comparison reveals nothing."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [sha256(token.encode()).digest() for token in tokens]

    def allows(self, authorization: bytes | None) -> bool:
        """Whether a request with this `Authorization` field has access."""
        if not self._digests:
            return True
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        return scheme.lower() == b"bearer" and self._knows(token.strip())

    def admits(self, token: str) -> bool:
        """Whether this token, however the protocol carries it, grants access."""
        return not self._digests or self._knows(token.encode())

    def _knows(self, token: bytes) -> bool:
        shown = sha256(token).digest()
        allowed = False
        for digest in self._digests:  # All of them: the time must not reveal which one matched.
            allowed |= compare_digest(digest, shown)
        return allowed

    @staticmethod
    def challenge(authorization: bytes | None) -> bytes:
        """The `WWW-Authenticate` field of the 401 response to a request without access."""
        return b'Bearer realm="penstock"' + (b', error="invalid_token"' if authorization else b"")
