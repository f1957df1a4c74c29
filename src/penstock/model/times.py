"""Times as text, in RFC 3339. Messages that came or went together share theirs: so they are kept for a while."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache

from penstock.errors import ProtocolError
from penstock.limits import SECOND_NS
from penstock.model.values import Nanos


@lru_cache(maxsize=4096)
def rfc3339(nanos: Nanos) -> bytes:
    """To the microsecond."""
    seconds, rest = divmod(nanos, SECOND_NS)
    return b"%b.%06dZ" % (_second(seconds), rest // 1000)


def nanos_of(seconds: float) -> Nanos:
    return round(seconds * SECOND_NS)


def in_seconds(nanos: Nanos) -> str:
    """A span of time for people to read."""
    return f"{Decimal(nanos) / SECOND_NS:,f} s"


def rfc3339_seconds(nanos: Nanos) -> bytes:
    """To the second, rounded down."""
    return _whole_second(nanos // SECOND_NS)


def rfc3339_nanos(nanos: Nanos) -> bytes:
    """To the nanosecond."""
    seconds, rest = divmod(nanos, SECOND_NS)
    return b"%b.%09dZ" % (_second(seconds), rest)


@lru_cache(maxsize=1024)
def _whole_second(seconds: int) -> bytes:
    return _second(seconds) + b"Z"


_MILLISECONDS_FROM = 100_000_000_000  # As seconds it is the year 5138, as milliseconds March 1973.
_SECONDS_MAX = 253_402_300_799  # The end of the year 9999.


def producer_time(given: str | float) -> str:
    """A time as a producer gives it, as text. A number counts from the epoch: seconds below 100,000,000,000, else
    milliseconds. Raises `ProtocolError` for what is no time."""
    if isinstance(given, str) and not _NUMBER.fullmatch(given):
        return _checked_time(given)
    number = Decimal(str(given))
    seconds = number if number < _MILLISECONDS_FROM else number / 1000
    if not 0 <= seconds <= _SECONDS_MAX:
        raise ProtocolError(
            f"timestamp {given} is not between 1970 and 9999 in seconds or milliseconds since the epoch"
        )
    whole, rest = divmod(int(seconds * SECOND_NS), SECOND_NS)
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{_second(whole).decode()}{fraction}Z"


_DATE_CHARACTERS = len("2026-01-31")
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{0,20})?")


def _checked_time(text: str) -> str:
    """As it was given, if it is a date and a time."""
    try:
        datetime.fromisoformat(text if len(text) > _DATE_CHARACTERS else "")
    except ValueError:
        raise ProtocolError(
            f"timestamp {text[:50]!r} is not a time: give RFC 3339 (2026-01-31T23:59:59Z), seconds or milliseconds "
            "since the epoch"
        ) from None
    return text


@lru_cache(maxsize=1024)
def _second(seconds: int) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
