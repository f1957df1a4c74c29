"""Targets: who a client is. Texts of scopes, JWTs as strangers send them, and claims that a provider has signed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.broker.jwt_identities import JwtIdentities, JwtRefusedError
from penstock.errors import ProtocolError
from penstock.limits import JWT_SCOPES_MAX, NAME_BYTES_MAX, SECOND_NS
from penstock.model.access import Access, matches, scope_of
from tests.fuzz.target import Target
from tests.support.jwt_provider import AUDIENCE, ISSUER, Provider, unpadded

_NOW = 1_800_000_000
USUAL = {
    "sub": "ann",
    "iss": ISSUER,
    "aud": AUDIENCE,
    "exp": _NOW + 60,
    "penstock": ["publish,read:orders*", "admin"],
}

_HEADERS: list[dict[str, Any]] = [
    {"alg": "none", "kid": "first"},
    {"alg": "HS256", "kid": "first"},
    {"alg": "EdDSA"},
    {"crit": []},
]
_CHANGES: list[dict[str, Any]] = [
    {},
    {"penstock": "openid publish:orders* admin"},
    {"penstock": ["publish:\ud800"]},
    {"penstock": "publish:\ud800"},
    {"sub": "\ud800"},
    {"aud": [AUDIENCE, "other"], "nbf": _NOW - 60, "iat": 1.5},
    {"exp": 10**400},
    {"exp": "soon", "nbf": None},
    {"sub": {}, "iss": []},
]


# ── Scopes ────────────────────────────────────────────────────────────────────────────────────────────────────


def _scopes(data: bytes) -> None:
    """The first line is a scope, the second a name."""
    text, _, name = data.decode("utf-8", "surrogateescape").partition("\n")
    try:
        scope = scope_of(text)
    except ProtocolError:
        return
    assert scope_of(scope.text) == scope
    for pattern in scope.names:
        wanted = "(?s:.*)".join(map(re.escape, pattern.split("*")))
        if pattern.count("*") < 4 and len(name) <= NAME_BYTES_MAX:  # The reference takes too long for more.
            assert matches(pattern, name) == bool(re.fullmatch(wanted, name)), (pattern, name)
        else:
            matches(pattern, name)


def _scope_seeds() -> Iterator[bytes]:
    yield b"publish,consume:orders*,jobs\norders.eu"
    yield b"admin\nx"
    yield b"read:_audit\n_audit"
    yield b"manage:a*b*c\naxbxc"
    yield b"read:" + b"*a" * 120 + b"\n" + b"a" * NAME_BYTES_MAX
    yield "read:é*,☃\né".encode()


# ── JWTs ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Known(Provider):
    """A provider whose keys and signatures are the same in every run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "EdDSA")
        self.private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
        self.publish(self.public())


@cache
def _provider() -> tuple[Known, JwtIdentities]:
    with TemporaryDirectory() as folder:
        provider = Known(Path(folder))
        return provider, JwtIdentities(provider.path, ISSUER, AUDIENCE, "penstock")


def _identified(token: bytes) -> Access | None:
    try:
        return _provider()[1].identify(token, _NOW * SECOND_NS)
    except JwtRefusedError:
        return None


def _jwt(data: bytes) -> None:
    """Nothing but a token of the provider is accepted. Its last character has bits that mean nothing."""
    if _identified(data):
        assert data[:-1] in {seed[:-1] for seed in _jwt_seeds()}


def _jwt_seeds() -> Iterator[bytes]:
    provider = _provider()[0]
    valid = provider.sign(json.dumps(USUAL).encode())
    head, claims, signature = valid.split(b".")
    yield valid
    yield provider.sign(json.dumps(USUAL).encode(), {"kid": "other"})
    for header in _HEADERS:
        yield b".".join((unpadded(json.dumps(header).encode()), claims, signature))
    yield b".".join((head, unpadded(b"[" * 5000), signature))
    yield b".."


def _jwt_claims(data: bytes) -> None:
    """Claims that are signed: whatever they are, they make an identity or a refusal."""
    access = _identified(_provider()[0].sign(data))
    if access:
        assert access.kind == "jwt"
        assert 0 < len(access.name.encode()) <= NAME_BYTES_MAX
        assert len(access.scopes) <= JWT_SCOPES_MAX


def _claim_seeds() -> Iterator[bytes]:
    for changed in _CHANGES:
        yield json.dumps(USUAL | changed).encode()
    yield b'{"exp": NaN, "exp": Infinity}'
    yield b"[" * 5000


TARGETS = [
    Target("scopes", _scopes, lambda: list(_scope_seeds())),
    Target("jwt", _jwt, lambda: list(_jwt_seeds())),
    Target("jwt-claims", _jwt_claims, lambda: list(_claim_seeds())),
]
