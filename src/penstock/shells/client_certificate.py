"""The name of a client that shows a certificate."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

_ALTERNATIVES = ("URI", "DNS")


def certificate_name(transport: asyncio.Transport) -> str:
    """The common name of the subject, or else its first URI or host name. Empty if the client shows no certificate
    that can be read.

    The handshake has checked that an authority of `tls.client_ca` vouches for it.
    """
    certificate: dict[str, Any] | None
    try:
        certificate = transport.get_extra_info("peercert")
    except (ssl.SSLError, ValueError):  # An authority may have signed names that are no text.
        return ""
    return _name(certificate) if certificate else ""


def _name(certificate: dict[str, Any]) -> str:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    others = certificate.get("subjectAltName", ())
    return next((value for kind, value in others if kind in _ALTERNATIVES), "")
