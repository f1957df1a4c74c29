"""Which disk is measured is said, not guessed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documentation import ROOT


@pytest.mark.parametrize("what", [("bench",), ("bench", "deep"), ("bench.hostile",), ("bench.search",)])
def test_a_scratch_directory_that_is_missing_is_named_and_not_made(tmp_path: Path, what: tuple[str, ...]) -> None:
    missing = tmp_path / "disk" / "scratch"
    module, *rest = what
    ended = subprocess.run(
        [sys.executable, "-m", module, *rest, "--scratch", str(missing)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert f"{missing} is no directory. Name one on the disk to measure, or make it first" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not missing.parent.exists()
