"""The options of a reader: which log, which events, and how many at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from penstock.decoding import decode_json
from penstock.dialects.native.spark.claimed_rows import SCHEMA
from penstock.errors import OptionError
from penstock.limits import LEASE_SECONDS_MAX
from penstock.model.letters import LOGGED
from penstock.model.values import Nanos
from penstock.pipeline.options import TLS_SPELLED, Spelled, TlsOptions, parse_values, read_list, read_url
from penstock.pipeline.source.columns import COLUMNS, unknown_columns

PARTITION_BYTES = 128 << 20
MESSAGES_MAX = 100_000
LEASE_SECONDS = 600
MAX_TRIGGER_DELAY_SECONDS = 900.0
_UNITS_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
QUEUE_COLUMNS = tuple(SCHEMA.names)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Since(Struct, frozen=True):
    """The first event at this time or later."""

    time: Nanos


Place = Literal["earliest", "latest"] | int | Since
Places = Place | dict[int, Place]  # One for all shards, or one for each.


class Options(TlsOptions, frozen=True, kw_only=True):
    """Parsed options. They are sent to the executors."""

    url: str | None = None
    path: str | None = None
    token: str = ""
    columns: tuple[str, ...] = COLUMNS
    queues: frozenset[str] = frozenset()  # Empty means all, also for states.
    states: frozenset[str] = frozenset()
    start: Places = "earliest"
    end: Places = "latest"
    low: int = 0  # The filters of the query may narrow the range of offsets.
    high: int | None = None
    events_max: int | None = None  # Per batch of a stream.
    bytes_max: int | None = None
    events_min: int | None = None
    delay_seconds: float = MAX_TRIGGER_DELAY_SECONDS
    partition_bytes: int = PARTITION_BYTES
    fail_on_data_loss: bool = True
    read: str = "events"
    messages_max: int = MESSAGES_MAX  # Per batch of a stream that reads a queue.
    lease_seconds: int = LEASE_SECONDS


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises `OptionError`."""
    values = parse_values(given, _SPELLED)
    if ("url" in values) == ("path" in values):
        raise OptionError('set either the option "url" (of a broker) or "path" (of a data directory)')
    if values.get("read") == "queue":
        return _queue_options(values)
    _refuse(values, _OF_QUEUES, "events")
    if "delay_seconds" in values and "events_min" not in values:
        raise OptionError(
            "maxTriggerDelay needs minEventsPerTrigger: it limits how long a batch waits for that many events"
        )
    if values.get("events_max") is not None and values.get("events_min", 0) > values["events_max"]:
        raise OptionError(
            f"minEventsPerTrigger {values['events_min']} is above maxEventsPerTrigger {values['events_max']}"
        )
    return _with_columns(values, COLUMNS)


def _queue_options(values: dict[str, Any]) -> Options:
    _refuse(values, _OF_EVENTS, "queue")
    if len(values.get("queues", ())) != 1:
        raise OptionError('read=queue reads one queue: set the option "queue" to its name')
    return _with_columns(values, QUEUE_COLUMNS)


def _with_columns(values: dict[str, Any], known: tuple[str, ...]) -> Options:
    columns: tuple[str, ...] = values.setdefault("columns", known)
    wrong = unknown_columns(columns, known)
    if wrong:
        raise OptionError(wrong)
    return Options(**values)


def _refuse(values: dict[str, Any], fields: dict[str, str], read: str) -> None:
    strange = [spelled for field, spelled in fields.items() if field in values]
    if strange:
        raise OptionError(f"{', '.join(strange)} cannot be used with read={read}: remove it")


def _path(text: str) -> str:
    """An absolute path, because an executor may run in another directory."""
    if match := re.fullmatch(r"file:(?://)?(/.*)", text):
        return match[1]
    if "://" in text:
        raise ValueError("it must be a directory on this machine")
    return str(Path(text).absolute())


def _mode(text: str) -> str:
    if text not in ("events", "queue"):
        raise ValueError("it must be events or queue")
    return text


def _columns(text: str) -> tuple[str, ...]:
    columns = read_list(text)
    if not columns or len(set(columns)) < len(columns):
        raise ValueError("it must name one or more columns, each once")
    return columns


def _states(text: str) -> frozenset[str]:
    states = frozenset(text.replace(",", "").replace(" ", ""))
    if not states or not states <= LOGGED:
        raise ValueError(f"it must be one or more of the letters {''.join(sorted(LOGGED))}")
    return states


def parse_places(text: str) -> Places:
    """A place, or a JSON object with one for each shard, such as the offset that Spark reports."""
    if not text.startswith("{"):
        return parse_place(text)
    try:
        given = decode_json(text, dict[int, int | str])
    except msgspec.DecodeError:
        raise ValueError('it must have the form {"0": 12, "1": "latest"}') from None
    return {shard: parse_place(str(place)) for shard, place in given.items()}


def parse_place(text: str) -> Place:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("it must be earliest, latest, an offset, or a time such as 2026-05-07T01:01:00Z") from None
    if time.tzinfo is None:
        raise ValueError("a time needs a zone, such as Z or +02:00")
    passed = time - _EPOCH
    return Since((passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1000)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError("it must be a whole number above 0")
    return int(text)


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h)", text.strip())
    if not match:
        raise ValueError("it must be a whole number with a unit: 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_SECONDS[match[2]]


def _lease(text: str) -> int:
    seconds = _count(text)
    if seconds > LEASE_SECONDS_MAX:
        raise ValueError(f"it must be at most {LEASE_SECONDS_MAX}")
    return seconds


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


_SPELLED: Spelled = {
    "url": ("url", read_url),
    "path": ("path", _path),
    "token": ("token", str),
    **TLS_SPELLED,
    "read": ("read", _mode),
    "columns": ("columns", _columns),
    "queue": ("queues", lambda text: frozenset(read_list(text))),
    "state": ("states", _states),
    "startingOffset": ("start", parse_places),
    "endingOffset": ("end", parse_places),
    "maxEventsPerTrigger": ("events_max", _count),
    "maxBytesPerTrigger": ("bytes_max", _count),
    "minEventsPerTrigger": ("events_min", _count),
    "maxTriggerDelay": ("delay_seconds", _duration),
    "partitionBytes": ("partition_bytes", _count),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "maxMessagesPerTrigger": ("messages_max", _count),
    "leaseSeconds": ("lease_seconds", _lease),
}
_OF_QUEUES = {"messages_max": "maxMessagesPerTrigger", "lease_seconds": "leaseSeconds"}
_OF_EVENTS = {
    "path": "path",
    "states": "state",
    "start": "startingOffset",
    "end": "endingOffset",
    "events_max": "maxEventsPerTrigger",
    "bytes_max": "maxBytesPerTrigger",
    "events_min": "minEventsPerTrigger",
    "delay_seconds": "maxTriggerDelay",
    "partition_bytes": "partitionBytes",
}
