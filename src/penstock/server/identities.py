"""Who a client is: bearer tokens (RFC 6750) and the access that each grants. Without tokens, everyone may do all."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from penstock.model.access import ADMIN, EVERYTHING, NOBODY, Access


class Identities:
    """Keeps digests instead of tokens. One lookup finds the identity, however many there are."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """`tokens`: those of the settings, which may do everything."""
        self._by_digest = {
            _digest(token.encode()): Access(f"auth.tokens[{index}]", (ADMIN,), kind="settings")
            for index, token in enumerate(tokens)
        }
        self._by_certificate: dict[str, Access] = {}

    @property
    def anonymous(self) -> Access:
        """The access of a client that shows no token."""
        return NOBODY if self._by_digest else EVERYTHING

    def of_header(self, authorization: bytes | None) -> Access:
        """The access of a request with this `Authorization` field; `NOBODY` if it must be refused."""
        if not self._by_digest:
            return EVERYTHING
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        return self._of(token.strip()) if scheme.lower() == b"bearer" else NOBODY

    def of_certificate(self, name: str) -> Access:
        """The access of a client that shows no token, but a certificate with this name. Empty: it shows neither."""
        return self._by_certificate.get(name, self.anonymous)

    def of_token(self, token: str) -> Access:
        """The access that a token grants, in whatever way the protocol carries it."""
        return self._of(token.encode()) if self._by_digest else EVERYTHING

    def _of(self, token: bytes) -> Access:
        return self._by_digest.get(_digest(token), NOBODY)

    @staticmethod
    def challenge(authorization: bytes | None) -> bytes:
        """The `WWW-Authenticate` field of the 401 response to a request without access."""
        return b'Bearer realm="penstock"' + (b', error="invalid_token"' if authorization else b"")


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()
