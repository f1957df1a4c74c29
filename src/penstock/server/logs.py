"""The broker's own log: one line per entry on standard error, as JSON or as text.

The message of a log call is the name of the entry, and the `extra` fields are its facts:
`logger.info("listening", extra={"http": "127.0.0.1:7843"})`. Whatever the fields hold, exactly one line is written.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

_DEPTH_MAX = 8
_TRACEBACK_SECONDS = 1.0
_EVENTS_MAX = 100  # Those of ours are a few dozen; libraries make up texts.
# The attributes of every record; all others came with `extra`.
_RECORD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_OF_PROCESS: dict[str, Any] = {}  # The facts that every entry of this process has.


def set_up(level: str, format: Literal["auto", "json", "text"]) -> None:  # noqa: A002 - The name of the setting.
    """Log to standard error. Call again to change the level or the format."""
    if format == "auto":
        format = "text" if sys.stderr.isatty() else "json"  # noqa: A001
    handler = _StandardError()
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _StandardError)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def set_worker(number: int) -> None:
    """Have every line say which process of a broker has written it."""
    _OF_PROCESS["worker"] = number


class JsonFormatter(logging.Formatter):
    """A JSON object per line, in ASCII, which no locale and no terminal can break."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _event(record),
        }
        traceback = _traceback(record, self)
        if traceback:
            fields["traceback"] = traceback
        return json.dumps(_both(fields, _extra(record)))


class TextFormatter(logging.Formatter):
    """The same fields as text; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), f"{record.levelname:<8}", _word(_event(record), inner_spaces=True)]
        words += [f"{_word(name)}={_word(value)}" for name, value in _extra(record).items()]
        words.append(f"({record.name})")
        traceback = _traceback(record, self)
        return " ".join(words) + (f"\n{traceback}" if traceback else "")


class _StandardError(logging.StreamHandler[Any]):
    """A type of our own, so that `set_up` can find and replace it."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.addFilter(Tracebacks())


class Tracebacks(logging.Filter):
    """Lets an event with a traceback through once a second at most. A client may have found out how to cause it.

    The next one says how many were left out before it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}  # By event: when the last one passed, how many have not since.

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info:
            return True
        now, event = self._clock(), str(record.msg)
        passed_at, left_out = self._seen.pop(event, (-math.inf, 0))
        if now - passed_at < _TRACEBACK_SECONDS:
            self._seen[event] = passed_at, left_out + 1
            return False
        if len(self._seen) >= _EVENTS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[event] = now, 0
        if left_out:
            record.left_out = left_out
        return True


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _event(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # The arguments do not fit the message: log it without them.
        return str(_plain(record.msg))


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    facts = {name: _plain(value) for name, value in record.__dict__.items() if name not in _RECORD_FIELDS}
    return _both(_OF_PROCESS, facts)


def _both(fields: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A fact whose name is taken gets another one."""
    joined = dict(fields)
    for name, value in more.items():
        while name in joined:
            name = f"{name}_"
        joined[name] = value
    return joined


def _traceback(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    if record.exc_info and record.exc_info[0]:
        return formatter.formatException(record.exc_info)
    return formatter.formatStack(record.stack_info) if record.stack_info else ""


def _plain(value: Any, depth: int = 0) -> Any:
    """The value in terms of JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "backslashreplace")
    if depth < _DEPTH_MAX and isinstance(value, Mapping):
        return {_text(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if depth < _DEPTH_MAX and type(value) in (list, tuple, set, frozenset):  # An Address has a text of its own.
        return [_plain(inner, depth + 1) for inner in value]
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # Its __str__ is broken; the line is written all the same.
        return f"<{type(value).__name__} that cannot be shown>"


def _word(value: object, *, inner_spaces: bool = False) -> str:
    """Text without line ends or ambiguity: quoted as JSON unless it is plain."""
    if not isinstance(value, str):
        return json.dumps(value)
    forbidden = '"' if inner_spaces else '" ='
    plain = value and value.isprintable() and not any(character in value for character in forbidden)
    return value if plain else json.dumps(value)
