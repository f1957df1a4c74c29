"""The rules: all in the documentation, by the same names, and each shown to be able to fail."""

from __future__ import annotations

import re

import pytest

from penstock.torture.checker import RULES, violation
from tests.support.documentation import ROOT

TESTS = [*(ROOT / "tests/torture").rglob("test_*.py"), *(ROOT / "tests/cli").glob("test_torture.py")]


def test_the_documentation_lists_every_rule() -> None:
    page = (ROOT / "docs/torture.md").read_text()
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", page, re.M)).items() >= RULES.items()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_violated_by_a_test(rule: str) -> None:
    assert any(f'== ["{rule}"]' in path.read_text() for path in TESTS)


def test_a_violation_has_a_known_rule() -> None:
    with pytest.raises(AssertionError):
        violation("no-such-rule", "p.1", 0, "")
