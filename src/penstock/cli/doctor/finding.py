"""What one check of the doctor found."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """One line of the report. What is not `ok` has a remedy."""

    check: str
    state: State
    found: str
    remedy: str = ""


def graded(check: str, found: str, *, fails: bool, warns: bool, remedy: str) -> Finding:
    """A finding whose state follows from two questions."""
    state = State.FAIL if fails else State.WARN if warns else State.OK
    return Finding(check, state, found, "" if state is State.OK else remedy)
