"""The name of a client that shows a certificate."""

from __future__ import annotations

import asyncio
from typing import Any

_ALTERNATIVES = ("URI", "DNS")


def certificate_name(transport: asyncio.Transport) -> str:
    """The common name of the subject, or else its first URI or host name. Empty if the client shows no certificate.

    The handshake has checked that an authority of `tls.client_ca` vouches for it.
    """
    certificate: dict[str, Any] | None = transport.get_extra_info("peercert")
    return _name(certificate) if certificate else ""


def _name(certificate: dict[str, Any]) -> str:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    others = certificate.get("subjectAltName", ())
    return next((value for kind, value in others if kind in _ALTERNATIVES), "")
