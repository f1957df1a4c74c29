"""Times as text, in RFC 3339. Messages that came or went together share theirs: so they are kept for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from penstock.limits import SECOND_NS
from penstock.model import Nanos


@lru_cache(maxsize=4096)
def rfc3339(nanos: Nanos) -> bytes:
    """To the microsecond."""
    seconds, rest = divmod(nanos, SECOND_NS)
    return b"%b.%06dZ" % (_second(seconds), rest // 1000)


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


@lru_cache(maxsize=1024)
def _second(seconds: int) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
