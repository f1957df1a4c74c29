"""`penstock tls`: make a certificate to try TLS with, and look at certificates."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.session import Session, verb

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName

app = typer.Typer(help="Make a certificate to try TLS with, and look at certificates.", no_args_is_help=True)

_LOOPBACK = ["localhost", "127.0.0.1", "::1"]
_AGO = timedelta(hours=1)  # Clocks of other machines may be slow.
_MADE = """\
certificate  {certificate}, for {names}, until {ends}
key          {key}, which only you can read

Start a broker with it:
  penstock serve --tls-certificate {certificate} --tls-key {key}

Use it (other machines need a copy of the certificate, and never the key):
  curl --cacert {certificate} https://{host}:7843/health
  penstock doctor --url https://{host}:7843 --ca {certificate}
  Python  Client("https://{host}:7843", ca="{certificate}")
  Spark   .option("url", "https://{host}:7843").option("ca", "{certificate}")
"""


@app.command("self-signed")
def self_signed(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where penstock.pem and penstock.key go.")],
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="A name or address of the broker. May be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it is valid.")] = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace the files that are there.")] = False,
) -> None:
    """Make a certificate that vouches for itself, and its key."""
    certificate, key = directory / "penstock.pem", directory / "penstock.key"
    there = [path for path in (certificate, key) if path.exists()]
    if there and not force:
        raise CommandError(f"{there[0]} is already there; replace it with --force", Exit.IN_USE)
    hosts = list(dict.fromkeys([*(names or [socket.gethostname()]), *_LOOPBACK]))
    ends = write_pair(certificate, key, hosts, days)
    about = {"certificate": certificate, "key": key, "names": ", ".join(hosts), "ends": f"{ends:%Y-%m-%d}"}
    print(_MADE.format(**about, host=names[0] if names else "localhost"), end="")


@app.command()
@verb
def show(
    session: Session,
    file: Annotated[Path | None, typer.Argument(help="A certificate in PEM form [default: the broker's]")] = None,
) -> None:
    """Show the names in a certificate, and when it ends."""
    from penstock.cli.certificates import shown_by
    from penstock.shells.certificate import from_pem

    try:
        certificate = from_pem(file.read_bytes()) if file else shown_by(session.target)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{file or session.target.url.text}: {getattr(error, 'strerror', None) or error}"
        ) from None
    days = certificate.days_left(time.time())
    found = {
        "common_name": certificate.common_name,
        "names": list(certificate.names),
        "begins": certificate.begins.isoformat(),
        "ends": certificate.ends.isoformat(),
        "days_left": int(days),
    }
    if session.as_json:
        output.emit(found)
    else:
        found |= {"names": ", ".join(certificate.names), "days_left": f"{days:.0f}"}
        output.table(("field", "value"), list(found.items()))


def write_pair(certificate: Path, key: Path, hosts: list[str], days: int) -> datetime:
    """Write both files. Returns when the certificate ends."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    made = _sign(private, hosts, days)
    certificate.parent.mkdir(parents=True, exist_ok=True)
    form = serialization.PrivateFormat.PKCS8
    secret = private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    key.unlink(missing_ok=True)  # So that it gets the right mode.
    key.touch(mode=0o600)
    key.write_bytes(secret)
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return made.not_valid_after_utc


def _sign(private: EllipticCurvePrivateKey, hosts: list[str], days: int) -> Certificate:
    """It is no authority: whoever trusts it trusts this broker only."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0][:64])])
    public, now = private.public_key(), datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    return (
        x509.CertificateBuilder(
            name, name, public, x509.random_serial_number(), now - _AGO, now + timedelta(days=days)
        )
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(private, hashes.SHA256())
    )


def _general_name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise CommandError(f"{host} is neither a host name nor an address", Exit.USAGE) from None
