"""The broker's certificate and key: loaded at the start, and again when their files change."""

from __future__ import annotations

import asyncio
import getpass
import logging
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from penstock.broker.figures.measures import Samples, one
from penstock.config.config import TlsConfig
from penstock.errors import ConfigError
from penstock.shells.certificate import Certificate, from_pem

logger = logging.getLogger(__name__)

CERTIFICATE_DAYS_GOOD = 30  # With fewer left, people are warned.
_WATCH_SECONDS = 1.0
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # Of TLS 1.2: those that keep recorded traffic secret if the key leaks.
_MAKE_ONE = "`penstock tls self-signed DIR` makes a pair to try"

Version = tuple[tuple[int, int, int], ...]  # Tells whether files have changed.


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    certificate: Certificate


class Tls:
    """What new connections are encrypted with. Open connections keep what they began with."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises ConfigError if the files are not a pair that clients would accept."""
        self._config = config
        self._loaded_version = self._seen = self._version()
        self._use(load(config))
        self.handshakes = 0
        self.handshakes_failed = 0
        self._reloads = 0
        self._reloads_failed = 0

    def _use(self, loaded: _Loaded) -> None:
        self.context, self.certificate = loaded
        days = self.certificate.days_left(time.time())
        logger.log(
            logging.WARNING if days < CERTIFICATE_DAYS_GOOD else logging.INFO,
            "certificate_loaded",
            extra={"names": self.names, "expires": self.certificate.ends.isoformat(), "days_left": int(days)},
        )

    @property
    def names(self) -> str:
        return ",".join(self.certificate.names) or self.certificate.common_name

    def state(self) -> Iterator[tuple[str, Samples]]:
        yield "penstock_tls_certificate_expires_timestamp_seconds", one(self.certificate.ends.timestamp())
        yield "penstock_tls_reloads_total", one(self._reloads)
        yield "penstock_tls_reloads_failed_total", one(self._reloads_failed)
        yield "penstock_tls_handshakes_total", one(self.handshakes)
        yield "penstock_tls_handshakes_failed_total", one(self.handshakes_failed)

    def use_settings(self, config: TlsConfig) -> None:
        """Load the files that these settings name, also if they have not changed. Raises ConfigError, and changes
        nothing."""
        self._use(load(config))
        self._config = config
        self._loaded_version = self._seen = self._version()
        self._reloads += 1

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Load the files again when they have changed, and then stayed the same for one round: whoever writes them
        may write one after the other."""
        version = self._version()
        settled, self._seen = version == self._seen, version
        if not settled or version == self._loaded_version:
            return
        self._loaded_version = version
        try:
            loaded = load(self._config)
        except ConfigError as error:
            self._reloads_failed += 1
            logger.error("certificate_refused", extra={"reason": str(error), "still_used": self.names})
            return
        self._reloads += 1
        self._use(loaded)

    def _version(self) -> Version:
        return tuple(
            _version_of(Path(name)) for name in (self._config.certificate, self._config.key, self._config.client_ca)
        )


def load(config: TlsConfig) -> _Loaded:
    """The context that the settings describe. Raises ConfigError with what is wrong, and what to do."""
    texts = {key: _read(f"tls.{key}", getattr(config, key)) for key in ("certificate", "key")}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    certificate = _checked(config, texts["certificate"])
    _load_pair(context, config, texts["key"])
    if config.client_ca:
        _load_client_ca(context, config)
    return _Loaded(context, certificate)


def _read(key: str, name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{key} = {name}: there is no such file. Correct the path; {_MAKE_ONE}") from None
    except PermissionError:
        raise ConfigError(
            f"{key} = {name} cannot be read by the user {getpass.getuser()}, who runs the broker. Give the file to"
            f" that user: chown {getpass.getuser()} {name}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{key} = {name} cannot be read: {error.strerror}") from None


def _checked(config: TlsConfig, text: bytes) -> Certificate:
    name = f"tls.certificate = {config.certificate}"
    try:
        certificate = from_pem(text)
    except ValueError:
        raise ConfigError(
            f"{name} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----); {_MAKE_ONE}"
        ) from None
    now = time.time()
    if certificate.ends.timestamp() <= now:
        raise ConfigError(f"{name} expired on {certificate.ends:%Y-%m-%d %H:%M} UTC. Renew it")
    if certificate.begins.timestamp() > now:
        raise ConfigError(
            f"{name} is not valid before {certificate.begins:%Y-%m-%d %H:%M} UTC. Check the clock of this machine"
        )
    return certificate


def _load_pair(context: ssl.SSLContext, config: TlsConfig, key_text: bytes) -> None:
    name = f"tls.key = {config.key}"
    if b"PRIVATE KEY-----" not in key_text:
        raise ConfigError(f"{name} holds no private key in PEM form (-----BEGIN PRIVATE KEY-----); {_MAKE_ONE}")
    try:
        context.load_cert_chain(config.certificate, config.key, _ask_for_password)
    except _EncryptedError:
        raise ConfigError(
            f"{name} is protected by a password, and the broker has nobody to ask for it. Write it without one:"
            f" openssl pkey -in {config.key} -out NEW"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{name} does not belong to tls.certificate = {config.certificate}. Name the key that the"
                " certificate was made with"
            ) from None
        raise ConfigError(
            f"tls.certificate = {config.certificate} and {name} cannot be used: {error.reason or error}"
        ) from None


class _EncryptedError(Exception):
    """The key is protected by a password."""


def _ask_for_password() -> NoReturn:
    raise _EncryptedError


def _load_client_ca(context: ssl.SSLContext, config: TlsConfig) -> None:
    _read("tls.client_ca", config.client_ca)
    try:
        context.load_verify_locations(config.client_ca)
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls.client_ca = {config.client_ca} holds no certificate in PEM form: {error.reason or error}. Name the"
            " certificate of the authority that signed those of the clients"
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED if config.client_required else ssl.CERT_OPTIONAL


def _version_of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
