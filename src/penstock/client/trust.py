"""TLS of a client: whom it trusts, which certificate it shows, and what people read when either fails."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from os import PathLike
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.errors import ConfigError

FilePath = str | PathLike[str]

_EXPIRED = 10
_OTHER_NAME = (62, 64)  # For a host name, and for an address.
_NOT_TLS = frozenset(("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"))
_SHOW_ONE = (
    "Pass --certificate FILE (certificate= in Python, the option certificate in Spark) or set PENSTOCK_CERTIFICATE"
)


class Trust(NamedTuple):
    """Paths of files in PEM form. Empty: the authorities of the system, no certificate, a key beside it."""

    ca: FilePath = ""
    certificate: FilePath = ""
    certificate_key: FilePath = ""

    def or_environment(self, environ: Mapping[str, str] = os.environ) -> Trust:
        """What is not given is taken from PENSTOCK_CA, PENSTOCK_CERTIFICATE and PENSTOCK_CERTIFICATE_KEY."""
        named = (environ.get(f"PENSTOCK_{field.upper()}", "") for field in self._fields)
        return Trust(*(given or other for given, other in zip(self, named, strict=True)))

    def context(self) -> ssl.SSLContext:
        """Raises ConfigError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"ca = {self.ca} cannot be used: {_reason(error)}. Name a file in PEM form") from None
        if self.ca:
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # It may be the broker's own certificate.
        if self.certificate:
            self._load_own(context)
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        try:
            # Without this password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.certificate_key or None, lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"certificate = {self.certificate} cannot be used: {_reason(error)}. Name a file in PEM form that"
                " also has the key, without a password, or name the key as certificate_key"
            ) from None


def explain(error: BaseException | None, url: str) -> str:
    """What people can do about a handshake that failed; empty if the next one may succeed."""
    host = urlsplit(url).hostname
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return f"the certificate of {host} has expired: renew it where the broker runs"
        if error.verify_code in _OTHER_NAME:
            return f"the certificate of {host} is for other names: {error.verify_message}. Use one of its names"
        return (
            f"the certificate of {host} is not trusted: {error.verify_message}. Pass --ca FILE (ca= in Python, the"
            " option ca in Spark) or set PENSTOCK_CA, with the certificate of its authority"
        )
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if reason in _NOT_TLS:
        return f"{host} does not use TLS at this port: use {url.replace('https:', 'http:', 1)}"
    if "CERTIFICATE_REQUIRED" in reason:
        return f"{host} requires a certificate of the client. {_SHOW_ONE}"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"{host} does not accept the certificate of this client ({reason}). {_SHOW_ONE} that it accepts"
    return ""


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
