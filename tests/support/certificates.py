"""Certificates for tests of TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """What an endpoint on 127.0.0.1 shows, and the certificate to trust it by."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not there to make a certificate with")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=endpoint", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
