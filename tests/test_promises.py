"""Every promise in `docs/promises.md`, and every claim in `SECURITY.md`, names a test that exists."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.documentation import ROOT

PAGE = (ROOT / "docs/promises.md").read_text()
CLAIMS = PAGE + (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", CLAIMS)))


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_promise_names_a_test_that_exists(path: str, name: str) -> None:
    assert name.startswith("test_")
    assert name in functions_of(path)


def test_every_promise_is_shown_by_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    unshown = [row for row in rows if "shown by" not in row and "::test_" not in row]
    assert [row.split("|")[1].strip() for row in unshown] == ["no notice asked for", "… `discarded: true`"]
    assert len(NAMED) > 50
