"""The parameters in the query string of a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import msgspec

from penstock.dialects.wire.http import Request, whole_number
from penstock.errors import Fault, ProtocolError, RequestError
from penstock.limits import NEVER_NS, SECOND_NS, SHARD_MAX
from penstock.model.values import Nanos

Given = dict[str, list[str]]

_REPEATED = ("queue", "topic")


def parameters(request: Request, *known: str) -> Given:
    """The parameters of a request by name. An unknown or repeated one is refused."""
    try:
        pairs = parse_qsl(request.query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise ProtocolError("the query string is not percent-encoded ASCII") from None
    given: Given = {}
    for name, value in pairs:
        if name not in known:
            raise ProtocolError(f"unknown parameter {name!r}; this path takes {', '.join(known) or 'none'}")
        given.setdefault(name, []).append(value)
        if len(given[name]) > 1 and name not in _REPEATED:
            raise ProtocolError(f"{name} is given more than once")
    return given


def values_of(request: Request, name: str) -> list[str]:
    """What is given for a parameter in a query that may be wrong in something else."""
    pairs = parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)
    return [value for each, value in pairs if each == name]


def once(given: Given, name: str, bytes_max: int) -> str:
    """A text that may be given once; empty if it is not given."""
    values = given.get(name, [""])
    if len(values) > 1:
        raise ProtocolError(f"{name} is given more than once")
    if len(values[0].encode()) > bytes_max:
        raise ProtocolError(f"{name} has at most {bytes_max} bytes")
    return values[0]


def number(given: Given, name: str, low: int, high: int, default: int) -> int:
    return whole_number(given[name][0].encode(), name, low, high) if name in given else default


def shard_in(given: Given, shards: int) -> int | None:
    """The shard that a request is about; None: all of several. Raises `RequestError` if there is none with its
    number."""
    if "shard" not in given and shards > 1:
        return None
    shard = number(given, "shard", 0, SHARD_MAX, 0)
    if shard >= shards:
        raise RequestError(Fault.NO_SHARD, f"{shard}; the last one is {shards - 1}")
    return shard


def one_shard(given: Given, shards: int) -> int:
    """The same, where only one shard can be meant."""
    shard = shard_in(given, shards)
    if shard is None:
        raise ProtocolError(f"shard is missing; there are {shards}, numbered from 0")
    return shard


def seconds(given: Given, name: str, high: float, *, above_0: bool = False) -> float | None:
    """A number of seconds, or None if it is not given."""
    if name not in given:
        return None
    try:
        value = msgspec.convert(given[name][0], float, strict=False)
    except msgspec.ValidationError:
        value = -1.0
    if not 0 <= value <= high or (above_0 and not value):
        raise ProtocolError(f"{name} must be a number of seconds up to {high}")
    return value


def flag(given: Given, name: str, *, default: bool) -> bool:
    if name not in given:
        return default
    if given[name][0] not in ("true", "false"):
        raise ProtocolError(f"{name} must be true or false")
    return given[name][0] == "true"


def moment(given: Given, name: str, default: Nanos) -> Nanos:
    return time_of(given[name][0], name) if name in given else default


def time_of(text: str, what: str) -> Nanos:
    """RFC 3339, or seconds since the epoch."""
    if match := re.fullmatch(r"([0-9]{1,10})(?:\.([0-9]{1,9}))?", text):
        return min(int(match[1]) * SECOND_NS + int((match[2] or "").ljust(9, "0")), NEVER_NS)
    try:
        # In a query string a plus sign is a blank, unless it was escaped.
        time = datetime.fromisoformat(text[:11] + text[11:].replace(" ", "+"))
        if time.tzinfo is None:
            raise ProtocolError(f"{what} has no time zone; add one such as Z, or give seconds since the epoch")
        passed = time - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ProtocolError(f"{what} must be a time of RFC 3339 or seconds since the epoch") from None
    nanos = (passed.days * 86_400 + passed.seconds) * SECOND_NS + passed.microseconds * 1000
    return min(max(nanos, 0), NEVER_NS)


def choice(given: Given, name: str, choices: Sequence[str]) -> str:
    """One of some words; the first if none is given. Raises `ProtocolError`."""
    chosen = given.get(name, choices)[0]
    if chosen not in choices:
        raise ProtocolError(f"{name} must be one of {', '.join(choices)}")
    return chosen
