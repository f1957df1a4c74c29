"""Certificates for tests of TLS: of servers, of clients, of an authority, good and bad ones."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LOOPBACK = x509.IPAddress(ip_address("127.0.0.1"))


class Pair:
    """A certificate and its key, in files. Without an issuer it signs itself, and can sign others."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        alternatives: tuple[x509.GeneralName, ...] = (LOOPBACK,),
        begins: timedelta = timedelta(hours=-1),
        ends: timedelta = timedelta(days=90),
        issuer: Pair | None = None,
    ) -> None:
        self.certificate, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        self._private = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(issuer._name if issuer else self._name, self._name, self._private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        self.x509 = builder.sign((issuer or self)._private, hashes.SHA256())
        self.certificate.write_bytes(self.x509.public_bytes(serialization.Encoding.PEM))
        self.write_key(serialization.NoEncryption())

    def write_key(self, protection: serialization.KeySerializationEncryption) -> None:
        form = serialization.PrivateFormat.PKCS8
        self.key.write_bytes(self._private.private_bytes(serialization.Encoding.PEM, form, protection))

    @property
    def settings(self) -> tuple[str, str]:
        """For a broker that shows this certificate."""
        return f"tls.certificate={self.certificate}", f"tls.key={self.key}"

    def trusting(self) -> ssl.SSLContext:
        """For a client that trusts this certificate, or those that it has signed."""
        return ssl.create_default_context(cafile=self.certificate)


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """What an endpoint on 127.0.0.1 shows, and the certificate to trust it by."""
    pair = Pair(folder, "endpoint")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context, pair.certificate
