"""The certificate that a broker shows, whether it is trusted or not."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from penstock.cli.profiles import TRUST, Target
from penstock.client.trust import Trust
from penstock.shells.certificate import Certificate, from_der

_SECONDS_MAX = 5.0


def trust_of(target: Target) -> Trust:
    return Trust(*(target.trust[key].text for key in TRUST))


def shown_by(target: Target) -> Certificate:
    """Raises OSError if there is no TLS, and ValueError if the certificate cannot be read."""
    where = urlsplit(target.url.text)
    if where.scheme != "https":
        raise ValueError("there is no certificate without https://")
    context = trust_of(target).context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((where.hostname or "", where.port or 443), _SECONDS_MAX) as raw,
        context.wrap_socket(raw, server_hostname=where.hostname) as link,
    ):
        return from_der(link.getpeercert(binary_form=True) or b"")
