"""`penstock demo`: it works without anything, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import penstock


def test_the_demo_shows_a_life_and_leaves_nothing(tmp_path: Path) -> None:
    ended = penstock("demo", TMPDIR=str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "to Oslo: done" in ended.stdout
    assert "E  exasperated    parcels" in ended.stdout
    assert "penstock serve" in ended.stdout
    assert not list(tmp_path.iterdir())
