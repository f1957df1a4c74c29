"""Bearer JWTs (RFC 7519) that an identity provider has signed: who shows one, with which scopes, and until when.

The keys are a file on this machine (`jwt_keys.py`); nothing is fetched. A token that is too long, names no known key
or another algorithm than that of its key is refused before any cryptography, so a flood of bad tokens costs little.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from penstock.broker.jwt_keys import JwtKeys
from penstock.config.config import AuthConfig
from penstock.decoding import decode_json
from penstock.errors import ConfigError, PenstockError, ProtocolError
from penstock.limits import (
    JWT_BYTES_MAX,
    JWT_LEEWAY_SECONDS,
    JWT_SCOPES_MAX,
    JWTS_KNOWN_MAX,
    NAME_BYTES_MAX,
    SECOND_NS,
)
from penstock.model.access import Access, Scope, Verb, scope_of
from penstock.model.values import Nanos

_NOT_A_JWT = "the token is not a JWT"
_REQUIRED = ("exp", "iss", "aud", "sub")


class JwtIdentity(Struct, frozen=True):
    """Who shows a token, and how long it is valid."""

    access: Access
    expires_at: Nanos


class JwtRefusedError(PenstockError):
    """A token that is not valid. The sentence is for the client: it has nothing of the token in it."""


class _Header(Struct):
    alg: str
    kid: str
    crit: Any = None


class JwtIdentities:
    """Verifies tokens, and knows those that it has verified until they expire."""

    def __init__(self, keys: Path, issuer: str, audience: str, scopes_claim: str) -> None:
        """Raises `ConfigError` if the library is missing, or the file with the keys cannot be used."""
        _check_library()
        self.keys = JwtKeys(keys)
        self._issuer, self._audience, self._scopes_claim = issuer, audience, scopes_claim
        self._known: dict[bytes, JwtIdentity] = {}  # By the digest of the token.
        self._forgotten: list[Access] = []  # Since `ended` was called.

    def identify(self, token: bytes, now: Nanos) -> Access:
        """Raises `JwtRefusedError` if the token is not valid now."""
        if len(token) > JWT_BYTES_MAX:
            raise JwtRefusedError(f"the token is longer than {JWT_BYTES_MAX} bytes")
        digest = sha256(token).digest()
        known = self._known.get(digest)
        if known is None or now >= known.expires_at:
            known = self._identity(self._verified(token), now)
            self._remember(digest, known)
        return known.access

    def ended(self, now: Nanos) -> list[Access]:
        """The accesses that have ended since the last call: expired, forgotten, or all if there are other keys."""
        if self.keys.refresh():
            over = list(self._known)
        else:
            over = [digest for digest, identity in self._known.items() if now >= identity.expires_at]
        ended, self._forgotten = self._forgotten, []
        return ended + [self._known.pop(digest).access for digest in over]

    def _remember(self, digest: bytes, identity: JwtIdentity) -> None:
        if len(self._known) >= JWTS_KNOWN_MAX:
            self._forgotten.append(self._known.pop(next(iter(self._known))).access)
        self._known[digest] = identity

    def _verified(self, token: bytes) -> dict[str, Any]:
        """The claims of a token with a valid signature, for this broker, from the right issuer."""
        import jwt

        header = _header(token)
        key = self.keys.by_id.get(header.kid)
        if key is None:
            raise JwtRefusedError("the token is signed with an unknown key")
        if header.alg != key.algorithm_name or header.crit is not None:
            raise JwtRefusedError("the token has an algorithm or a header field that is not allowed")
        try:
            return jwt.decode(
                token,
                key,
                [key.algorithm_name],
                # The times are compared with the broker's own clock.
                {"require": list(_REQUIRED), "verify_exp": False, "verify_nbf": False, "verify_iat": False},
                audience=self._audience,
                issuer=self._issuer,
            )
        except jwt.InvalidSignatureError:
            raise JwtRefusedError("the signature of the token is wrong") from None
        except jwt.MissingRequiredClaimError as error:
            raise JwtRefusedError(f"the token has no {error.claim}") from None
        except jwt.InvalidIssuerError:
            raise JwtRefusedError("the token has another issuer") from None
        except jwt.InvalidAudienceError:
            raise JwtRefusedError("the token is for another audience") from None
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise JwtRefusedError(_NOT_A_JWT) from None

    def _identity(self, claims: dict[str, Any], now: Nanos) -> JwtIdentity:
        leeway = JWT_LEEWAY_SECONDS * SECOND_NS
        expires_at = _time(claims, "exp") + leeway
        if now >= expires_at:
            raise JwtRefusedError("the token has expired")
        if "nbf" in claims and now < _time(claims, "nbf") - leeway:
            raise JwtRefusedError("the token is not valid yet")
        access = Access(_name(claims["sub"]), _scopes(claims.get(self._scopes_claim, ())), kind="jwt")
        return JwtIdentity(access, expires_at)


def jwts_of(config: AuthConfig) -> JwtIdentities | None:
    """What the settings ask for. Raises `ConfigError`."""
    if not config.jwt_keys:
        return None
    return JwtIdentities(Path(config.jwt_keys), config.jwt_issuer, config.jwt_audience, config.jwt_scopes_claim)


def _check_library() -> None:
    try:
        import cryptography  # noqa: F401 - The algorithms need it.
        import jwt  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"auth.jwt_keys needs {error.name}, which is not installed; run: pip install 'penstock[jwt]'"
        ) from None


def _header(token: bytes) -> _Header:
    """What a token says of its signature. It is not verified."""
    first, dot, rest = token.partition(b".")
    if not dot or rest.count(b".") != 1:
        raise JwtRefusedError(_NOT_A_JWT)
    try:
        return decode_json(urlsafe_b64decode(first + b"=" * (-len(first) % 4)), _Header)
    except ValueError:
        raise JwtRefusedError("the token has no header with alg and kid") from None


def _time(claims: dict[str, Any], claim: str) -> Nanos:
    seconds = claims[claim]
    if type(seconds) not in (int, float) or not abs(seconds) < 1 << 40:
        raise JwtRefusedError(f"{claim} of the token is not a time")
    return int(seconds * SECOND_NS)


def _name(subject: object) -> str:
    if not isinstance(subject, str) or not subject.isprintable() or not 0 < len(subject.encode()) <= NAME_BYTES_MAX:
        raise JwtRefusedError(f"sub of the token is not a name of 1 to {NAME_BYTES_MAX} printable bytes")
    return subject


def _scopes(claim: object) -> tuple[Scope, ...]:
    """A list of scopes; or words with spaces between them, of which some are scopes."""
    try:
        if isinstance(claim, str):
            return tuple(scope_of(word) for word in claim.split()[:JWT_SCOPES_MAX] if _is_scope(word))
        texts = msgspec.convert(claim, tuple[str, ...])
        if len(texts) > JWT_SCOPES_MAX:
            raise JwtRefusedError(f"the token has more than {JWT_SCOPES_MAX} scopes")
        return tuple(map(scope_of, texts))
    except (msgspec.ValidationError, ProtocolError):
        raise JwtRefusedError("the scopes of the token are not a list of scopes") from None


def _is_scope(word: str) -> bool:
    """Whether a word is meant for the broker. Others, such as `openid`, are for somebody else."""
    return word.partition(":")[0].partition(",")[0] in frozenset(Verb)
