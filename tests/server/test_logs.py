"""Whatever is logged comes out as one line that a machine, or a person, can read."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from penstock.config.config import Address
from penstock.server.logs import JsonFormatter, TextFormatter, Tracebacks

SOURCE = Path(__file__).parents[2] / "src" / "penstock"


def record(event: str, args: tuple[object, ...] = (), extra: Mapping[str, object] | None = None) -> logging.LogRecord:
    made = logging.getLogger("penstock.test").makeRecord(
        "penstock.test", logging.INFO, "file.py", 1, event, args, None, extra=extra
    )
    made.created = 1_767_225_600.25  # 2026-01-01, a quarter of a second past midnight.
    return made


def as_json(event: str, /, *args: object, **extra: object) -> dict[str, Any]:
    line = JsonFormatter().format(record(event, args, extra))
    assert "\n" not in line
    assert line.isascii()
    fields: dict[str, Any] = json.loads(line, parse_constant=_no_constant)
    return fields


def as_text(event: str, /, *args: object, **extra: object) -> str:
    return TextFormatter().format(record(event, args, extra))


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


# JSON


def test_a_line_has_the_time_the_level_the_event_and_what_is_known_of_it() -> None:
    assert as_json("listening", http="127.0.0.1:7843", queues=3) == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "info",
        "logger": "penstock.test",
        "event": "listening",
        "http": "127.0.0.1:7843",
        "queues": 3,
    }


class Colour(IntEnum):
    RED = 3


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no words")


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1 << 100, 1 << 100),
        (Colour.RED, 3),
        (b"caf\xc3\xa9 \xff", "café \\xff"),
        (Path("/data"), "/data"),
        (Address("::1", 80), "[::1]:80"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        ((1, {"a": b"b", 2: {3}}), [1, {"a": "b", "2": [3]}]),
        ("two\nlines \udc80", "two\nlines \udc80"),
        (Broken(), "<Broken that cannot be shown>"),
    ],
)
def test_any_value_can_be_logged(value: object, shown: object) -> None:
    assert as_json("seen", value=value)["value"] == shown


def test_a_value_that_contains_itself_ends() -> None:
    assert "[...]" in json.dumps(as_json("seen", value=CYCLE))


def test_a_field_named_like_one_of_ours_is_kept_beside_it() -> None:
    fields = as_json("seen", time="noon", level=9, event="other", event_="third", logger="mine")
    assert (fields["event"], fields["event_"], fields["event__"]) == ("seen", "other", "third")
    assert (fields["level"], fields["level_"]) == ("info", 9)
    assert (fields["time"], fields["time_"]) == ("2026-01-01T00:00:00.250Z", "noon")
    assert (fields["logger"], fields["logger_"]) == ("penstock.test", "mine")


def test_no_fact_has_a_name_that_logging_keeps_for_itself() -> None:
    """Such a call would fail, whatever it is about."""
    reserved = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime"}
    found = [
        f"{path.name}:{key.lineno} {key.value}"
        for path in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        for given in call.keywords
        if given.arg == "extra"
        for facts in ast.walk(given.value)
        if isinstance(facts, ast.Dict)
        for key in facts.keys
        if isinstance(key, ast.Constant) and key.value in reserved
    ]
    assert not found


def test_every_line_of_a_worker_has_its_number_and_facts_of_that_name_stay() -> None:
    story = (
        "import logging; from penstock.server.logs import set_up, set_worker; set_up('info', 'json'); set_worker(3);"
    )
    story += "logging.info('linked', extra={'worker': 1})"
    ended = subprocess.run([sys.executable, "-c", story], capture_output=True, check=True)
    fields = json.loads(ended.stderr)
    assert (fields["worker"], fields["worker_"]) == (3, 1)


def test_arguments_are_put_into_the_event_and_wrong_ones_do_not_lose_it() -> None:
    assert as_json("%d queues", 3)["event"] == "3 queues"
    assert as_json("%d queues", "many")["event"] == "%d queues"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_exception_comes_with_its_traceback(formatter: logging.Formatter) -> None:
    failed = record("request_failed")
    try:
        raise OSError("disk on fire")
    except OSError as error:
        failed.exc_info = (OSError, error, error.__traceback__)
    line = formatter.format(failed)
    if isinstance(formatter, JsonFormatter):
        assert "\n" not in line
        line = json.loads(line)["traceback"]
    assert "Traceback (most recent call last)" in line
    assert line.endswith("OSError: disk on fire")


def test_an_event_with_a_traceback_is_logged_once_a_second_with_how_many_were_left_out() -> None:
    now = 100.0
    tracebacks = Tracebacks(lambda: now)

    def passes(event: str, *, failed: bool = True) -> int | None:
        """How many were left out before it; None if it is left out itself."""
        seen = record(event)
        seen.exc_info = (OSError, OSError(), None) if failed else None
        return getattr(seen, "left_out", 0) if tracebacks.filter(seen) else None

    assert [passes("request_failed") for _ in range(1000)] == [0] + [None] * 999
    assert passes("service_failed") == 0, "another event is not left out"
    assert [passes("request_failed", failed=False) for _ in range(3)] == [0, 0, 0]
    now += 1
    assert [passes("request_failed") for _ in range(3)] == [999, None, None]
    assert passes("service_failed") == 0
    for number in range(1000):
        passes(f"somebody's text {number}")
    assert len(tracebacks._seen) <= 100


# Text


def test_text_reads_in_the_order_time_level_event_facts_origin() -> None:
    assert (
        as_text("listening", http="127.0.0.1:7843", queues=3)
        == "2026-01-01T00:00:00.250Z INFO     listening http=127.0.0.1:7843 queues=3 (penstock.test)"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "so"', '"say \\"so\\""'),
        ("forged\n2026 INFO all is well", '"forged\\n2026 INFO all is well"'),
        ("\x1b[31mred", '"\\u001b[31mred"'),
        ("café", "café"),
        (["a", 1], '["a", 1]'),
    ],
)
def test_text_keeps_a_value_in_its_line_and_its_place(value: object, shown: str) -> None:
    line = as_text("seen", value=value)
    assert line == f"2026-01-01T00:00:00.250Z INFO     seen value={shown} (penstock.test)"


def test_text_keeps_an_event_in_its_line() -> None:
    assert '"forged\\nline"' in as_text("forged\nline")


# Set-up, in a process of its own: it changes what the whole process says.

PROGRAM = """
import logging, sys, warnings
from penstock.server.logs import set_up
logger = logging.getLogger("penstock.test")
set_up("info", "text")
set_up(sys.argv[1], sys.argv[2])
logger.debug("hidden", extra={"a": 1})
logger.info("shown", extra={"queue": "caf\\u00e9"})
warnings.warn("old ways", UserWarning)
"""


def said(level: str, style: str, encoding: str = "utf-8") -> list[str]:
    command = [sys.executable, "-c", PROGRAM, level, style]
    environment = {"PYTHONIOENCODING": encoding, "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(command, capture_output=True, env=environment, check=True, timeout=60)
    assert ended.stdout == b""
    return ended.stderr.decode(encoding).splitlines()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_goes_to_standard_error_once_and_warnings_with_it(encoding: str) -> None:
    shown, warning = (json.loads(line) for line in said("info", "json", encoding))
    assert (shown["event"], shown["queue"]) == ("shown", "café")
    assert (warning["level"], warning["logger"]) == ("warning", "py.warnings")
    assert "old ways" in warning["event"]


def test_the_level_decides_what_is_said() -> None:
    assert [json.loads(line)["event"] for line in said("debug", "json")][:2] == ["hidden", "shown"]
    assert said("error", "json") == []


def test_text_goes_to_standard_error() -> None:
    assert said("info", "text")[0].endswith(" INFO     shown queue=café (penstock.test)")


# Documentation


def test_the_manual_explains_every_event_that_is_logged() -> None:
    root = Path(__file__).parents[2]
    sources = "".join(path.read_text("utf-8") for path in (root / "src" / "penstock").rglob("*.py"))
    events = set(re.findall(r'logger\.(?:info|warning|error|critical|exception)\(\s*"(\w+)"', sources))
    assert {"listening", "draining"} <= events  # The one is a broker's, the other a worker's.
    manual = "".join((root / "docs" / page).read_text("utf-8") for page in ("operating.md", "tasks.md"))
    assert {event for event in events if f"`{event}`" not in manual} == set()
