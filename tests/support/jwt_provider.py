"""An identity provider for tests: it has keys, publishes them as a file, and signs tokens."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

ISSUER = "https://provider.example"
AUDIENCE = "penstock"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def new_key(algorithm: str) -> PrivateKey:
    if algorithm.startswith("RS"):
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else ed25519.Ed25519PrivateKey.generate()


class Provider:
    def __init__(self, folder: Path, algorithm: str = "ES256", key_id: str = "first") -> None:
        self.path = folder / "keys.json"
        self.algorithm, self.key_id = algorithm, key_id
        self.private = new_key(algorithm)
        self.publish(self.public())

    @property
    def settings(self) -> tuple[str, ...]:
        """Of a broker that accepts its tokens."""
        return f"auth.jwt_keys={self.path}", f"auth.jwt_issuer={ISSUER}", f"auth.jwt_audience={AUDIENCE}"

    def public(self) -> dict[str, Any]:
        to_jwk = get_default_algorithms()[self.algorithm].to_jwk
        return {**json.loads(to_jwk(self.private.public_key())), "kid": self.key_id}

    def publish(self, *keys: dict[str, Any]) -> None:
        """Replace the file, as a program does that fetches it."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"keys": keys}))
        new.replace(self.path)

    def token(self, sub: str = "ann", headers: dict[str, Any] | None = None, **claims: Any) -> bytes:
        """A token that is valid for a minute. A claim that is None is left out."""
        now = int(time.time())
        usual = {"sub": sub, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "nbf": now, "exp": now + 60}
        given = {name: value for name, value in (usual | claims).items() if value is not None}
        return self.sign(json.dumps(given).encode(), headers)

    def sign(self, payload: bytes, headers: dict[str, Any] | None = None) -> bytes:
        signed = jwt.PyJWS().encode(payload, self.private, self.algorithm, {"kid": self.key_id, **(headers or {})})
        return signed.encode()


def unpadded(data: bytes) -> bytes:
    """In base64url, as the parts of a token are."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")
