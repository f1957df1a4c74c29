from __future__ import annotations

import pytest

from penstock.engine.reasons import Reasons, kept, matches
from penstock.limits import REASON_CHARACTERS_KEPT


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("card expired", "card expired", True),
        ("card", "card expired", False),
        ("card*", "card expired", True),
        ("*expired", "card expired", True),
        ("order * of * failed", "order 7 of Ada failed", True),
        ("order * of * failed", "order 7 failed", False),
        ("a*a", "a", False),
        ("*", "", True),
        ("a**b", "ab", True),
        ("*" * 200 + "x", "y" * 200, False),
    ],
)
def test_a_star_in_a_reason_stands_for_any_characters(pattern: str, text: str, expected: bool) -> None:
    assert matches(pattern, text) is expected


def test_memory_keeps_the_first_line_of_a_reason_shortened() -> None:
    assert kept(b"\n  ValueError: no\ntrace") == "ValueError: no"
    assert len(kept("ä".encode() * 500)) == REASON_CHARACTERS_KEPT
    assert kept(b"\xff\xfe") == "\ufffd\ufffd"
    assert kept(b"") == ""


def test_a_snapshot_has_all_reasons_in_bounded_sections() -> None:
    reasons, restored = Reasons(), Reasons()
    for sequence in range(5000):
        reasons.note((1, sequence), b"the bank is closed")
    sections = list(reasons.sections())
    for _, facts, columns in sections:
        restored.restore(facts, columns)
    assert len(sections) == 2
    assert restored.by_place == reasons.by_place


def test_no_reasons_leave_no_trace_in_a_snapshot() -> None:
    reasons = Reasons()
    reasons.note((1, 1), b"")
    assert not list(reasons.sections())
