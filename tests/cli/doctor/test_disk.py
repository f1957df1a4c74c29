"""What doctor says about the data directory."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.doctor.disk import findings
from penstock.cli.doctor.finding import State
from penstock.storage.shards import open_shards


def test_a_store_with_several_shards_says_how_many(tmp_path: Path) -> None:
    open_shards(tmp_path / "data", 4)
    found = next(findings(tmp_path / "data"))
    assert (found.state, found.found) == (State.OK, f"{tmp_path / 'data'} (4 shards)")


def test_a_move_to_several_shards_that_was_cut_off_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "resharding").mkdir()
    found = next(findings(tmp_path))
    assert (found.state, found.remedy) == (
        State.WARN,
        "a move to several shards was cut off; run `penstock reshard` again",
    )
