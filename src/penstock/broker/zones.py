"""Time zones: read from the system, or from the package tzdata where the system has none."""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import cache
from zoneinfo import ZoneInfo


def zone_of(name: str) -> tzinfo | None:
    """The zone with this IANA name; None if there is none."""
    try:
        return _read(name)
    except (OSError, ValueError, LookupError):
        return None


@cache  # There are some hundred. What cannot be read is not kept.
def _read(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)
