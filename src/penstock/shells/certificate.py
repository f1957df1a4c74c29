"""Reads an X.509 certificate (RFC 5280): whom it names, and when it ends. The standard library reads only
certificates that it trusts, and an operator wants to know about the others too."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import NamedTuple

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_COMMON_NAME = bytes.fromhex("550403")
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_UTC_TIME = 0x17
_DNS, _URI, _IP = 0x82, 0x86, 0x87
_LONG_FORM = 0x80


class Certificate(NamedTuple):
    common_name: str  # Empty if it has none.
    names: tuple[str, ...]  # Hosts, addresses and URIs.
    begins: datetime
    ends: datetime

    def days_left(self, now: float) -> float:
        return (self.ends.timestamp() - now) / 86_400


def from_pem(text: bytes) -> Certificate:
    """The first certificate of a file, which is the one that a server shows. Raises ValueError."""
    found = _PEM.search(text)
    if found is None:
        raise ValueError("no certificate")
    return from_der(base64.b64decode(found[1]))


def from_der(data: bytes) -> Certificate:
    """Raises ValueError if these bytes are no certificate."""
    try:
        return _read(data)
    except IndexError as error:
        raise ValueError("not a certificate") from error


class _Value(NamedTuple):
    tag: int
    content: bytes


def _read(data: bytes) -> Certificate:
    signed = _first(_first(data).content)
    parts = [part for part in _values(signed.content) if part.tag != _VERSION]
    _serial, _algorithm, _issuer, validity, subject, *rest = parts
    begins, ends = (_time(value) for value in _values(validity.content))
    extensions = [part.content for part in rest if part.tag == _EXTENSIONS]
    names = tuple(_alternative_names(extensions[0])) if extensions else ()
    return Certificate(_common_name(subject.content), names, begins, ends)


def _values(data: bytes) -> Iterator[_Value]:
    """The values that stand one after the other in DER."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size >= _LONG_FORM:
            width = size - _LONG_FORM
            size = int.from_bytes(data[at : at + width])
            at += width
        if at + size > len(data):
            raise ValueError("a value is cut off")
        yield _Value(tag, data[at : at + size])
        at += size


def _first(data: bytes) -> _Value:
    for value in _values(data):
        return value
    raise ValueError("a value is missing")


def _time(value: _Value) -> datetime:
    text = value.content.decode("ascii")
    if value.tag == _UTC_TIME:  # Two digits for the year, from 1950 to 2049.
        text = f"{'19' if text >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _common_name(subject: bytes) -> str:
    for part in _values(subject):
        kind, text = _values(_first(part.content).content)
        if kind.content == _COMMON_NAME:
            return text.content.decode("utf-8", "replace")
    return ""


def _alternative_names(extensions: bytes) -> Iterator[str]:
    for extension in _values(_first(extensions).content):
        kind, *_critical, value = _values(extension.content)
        if kind.content == _ALTERNATIVE_NAMES:
            yield from filter(None, map(_name, _values(_first(value.content).content)))


def _name(value: _Value) -> str:
    if value.tag in (_DNS, _URI):
        return value.content.decode("ascii", "replace")
    return str(ip_address(value.content)) if value.tag == _IP else ""
