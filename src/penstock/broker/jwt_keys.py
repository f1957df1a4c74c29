"""The public keys that sign JWTs: a JWKS file on this machine (RFC 7517), read again when it changes.

The type of a key decides the one algorithm that it verifies, whatever a token says. So a public key is never taken
for the secret of an HMAC, and `none` is no algorithm.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.decoding import decode_json
from penstock.errors import ConfigError
from penstock.limits import JWT_KEYS_BYTES_MAX, JWT_KEYS_MAX

if TYPE_CHECKING:
    from jwt import PyJWK

logger = logging.getLogger(__name__)

_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
_RSA_MODULUS_CHARACTERS_MIN = 342  # 2048 bits in base64url.
_KEY_ID = re.compile(r"[ -~]{1,256}")


class JwtKeys:
    """The keys of one file by their id. A file that is wrong later changes nothing: the keys before it stay."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = self._read_version()
        self.by_id = _read_keys(path)

    def refresh(self) -> bool:
        """Read the file again if it has changed. Returns whether there are other keys now."""
        version = self._read_version()
        if version == self._version:
            return False
        self._version = version
        try:
            self.by_id = _read_keys(self._path)
        except ConfigError as error:
            logger.error("jwt_keys_unusable", extra={"reason": str(error)})
            return False
        logger.info("jwt_keys_read", extra={"keys": len(self.by_id)})
        return True

    def _read_version(self) -> object:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _read_keys(path: Path) -> Mapping[str, PyJWK]:
    try:
        with path.open("rb") as file:
            text = file.read(JWT_KEYS_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"auth.jwt_keys = {path}: cannot be read: {error.strerror or error}") from None
    try:
        entries = decode_json(text, dict[str, Any])["keys"] if len(text) <= JWT_KEYS_BYTES_MAX else None
        keys = _keys_of(msgspec.convert(entries, list[dict[str, Any]]))
    except (KeyError, ValueError) as error:
        reason = str(error) if type(error) is ValueError else f"not a JWK set of at most {JWT_KEYS_BYTES_MAX} bytes"
        raise ConfigError(f"auth.jwt_keys = {path}: {reason}") from None
    if not keys:
        raise ConfigError(f"auth.jwt_keys = {path}: no key for RS256, ES256 or EdDSA; each needs a kid")
    return keys


def _keys_of(entries: list[dict[str, Any]]) -> Mapping[str, PyJWK]:
    """The keys that can verify a token. Those for other purposes are passed over."""
    if len(entries) > JWT_KEYS_MAX:
        raise ValueError(f"more than {JWT_KEYS_MAX} keys")
    keys: dict[str, PyJWK] = {}
    for number, entry in enumerate(entries, 1):
        if "d" in entry or "k" in entry:
            raise ValueError(f"key {number} is secret; the file must hold public keys only")
        if algorithm := _algorithm_of(entry):
            if entry["kid"] in keys:
                raise ValueError(f"key {number} has the kid of an earlier key")
            keys[entry["kid"]] = _key(entry, algorithm, number)
    return keys


def _algorithm_of(entry: dict[str, Any]) -> str | None:
    """The algorithm of a key for signatures that has an id, or None."""
    key_id, family = entry.get("kid"), entry.get("kty")
    algorithm = _ALGORITHMS.get((str(family), None if family == "RSA" else str(entry.get("crv"))))
    named = isinstance(key_id, str) and _KEY_ID.fullmatch(key_id)
    meant = entry.get("use", "sig") == "sig" and entry.get("alg", algorithm) == algorithm
    return algorithm if named and meant else None


def _key(entry: dict[str, Any], algorithm: str, number: int) -> PyJWK:
    from jwt import PyJWK, PyJWTError

    if algorithm == "RS256" and len(str(entry.get("n"))) < _RSA_MODULUS_CHARACTERS_MIN:
        raise ValueError(f"key {number} has fewer than 2048 bits")
    try:
        return PyJWK(entry, algorithm)
    except (PyJWTError, ValueError, TypeError):  # The error may show the key.
        raise ValueError(f"key {number} is not a valid {algorithm} key") from None
