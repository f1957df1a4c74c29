"""Parses the options of `format("penstock")`, for readers and writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from penstock.client.trust import Trust
from penstock.errors import OptionError, SecretInUrlError

# Maps the name of each option, as documented, to the field that it sets and the function that reads its text.
Spelled = dict[str, tuple[str | None, Callable[[str], Any]]]


class TlsOptions(Struct, frozen=True, kw_only=True):
    """Files of TLS, on the driver and on every executor."""

    ca: str = ""
    certificate: str = ""
    certificate_key: str = ""

    @property
    def trust(self) -> Trust:
        return Trust(self.ca, self.certificate, self.certificate_key)


TLS_SPELLED: Spelled = {
    "ca": ("ca", str),
    "certificate": ("certificate", str),
    "certificateKey": ("certificate_key", str),
}


def parse_values(given: Mapping[str, str], spelled: Spelled) -> dict[str, Any]:
    """The fields that these options set. Case does not matter: Spark passes names in lower case. Raises
    `OptionError`."""
    known = {name.lower(): name for name in spelled}
    unknown = sorted(name for name in given if name.lower() not in known)
    if unknown:
        raise OptionError(f"unknown option {', '.join(unknown)}; the options are {', '.join(spelled)}")
    values: dict[str, Any] = {}
    for name, value in given.items():
        field, parse = spelled[known[name.lower()]]
        try:
            parsed = parse(value)
        except ValueError as error:
            raise OptionError(f"{known[name.lower()]} is {value!r}, but {error}") from None
        if field:
            values[field] = parsed
    return values


def read_url(text: str) -> str:
    if "@" in text:
        raise SecretInUrlError
    urls = read_list(text)
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise ValueError("it must begin with http:// or https://")
    return ",".join(url.rstrip("/") for url in urls)


def read_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def read_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("it must be a whole number")
    return int(text)


def read_name(text: str) -> str:
    if not text:
        raise ValueError("it must be a name")
    return text
