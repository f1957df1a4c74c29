"""Whoever adds a dialect finds out here what belongs to it."""

from __future__ import annotations

import pytest

from penstock.torture.traffic import DIALECTS as TRAFFIC
from tests.support.documentation import ROOT
from tests.support.quota_clients import CLIENTS

FOLDER = ROOT / "src/penstock/dialects"
NO_DIALECTS = {"wire", "openapi", "asyncapi", "__init__", "__pycache__"}
DIALECTS = sorted({path.stem for path in FOLDER.iterdir()} - NO_DIALECTS)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_is_tried_described_and_documented(dialect: str) -> None:
    assert dialect in TRAFFIC, "src/penstock/torture/traffic/__init__.py"
    assert any(name.startswith(dialect) for name in CLIENTS), "tests/support/quota_clients.py"
    assert [*(ROOT / "tests/conformance" / dialect).iterdir()]
    assert [*FOLDER.glob(f"openapi/{dialect}.json"), *FOLDER.glob(f"asyncapi/{dialect}.json")]
    assert [*ROOT.glob(f"docs/{dialect}.md"), *ROOT.glob(f"docs/{dialect}/")]
    assert dialect in (ROOT / "docs/dialects.md").read_text().lower()
