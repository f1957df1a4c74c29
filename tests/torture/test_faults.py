"""Bytes that are flipped are found again and restored, and the newest segment is left alone."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from penstock.torture.faults import Faults, Flips
from penstock.torture.history import History
from penstock.torture.process import Process
from penstock.torture.traffic.stage import Stage


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.rglob("*") if each.is_file()}


@pytest.mark.parametrize("seed", range(10))
def test_flipped_bytes_are_restored(seed: int, tmp_path: Path) -> None:
    for folder, names in {"log": ["1.log", "2.log", "3.log"], "snapshots": ["1.snapshot", "2.snapshot"]}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_bytes(b"x" * 100)
    before = contents(tmp_path)
    flips = Flips(tmp_path, random.Random(seed))
    changed = {name for name, data in contents(tmp_path).items() if data != before[name]}
    assert changed
    assert not changed & {"3.log", "1.snapshot"}
    assert all(name in str(flips) for name in changed)
    flips.restore()
    assert contents(tmp_path) == before


def test_a_segment_that_was_removed_meanwhile_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    for name in ("1.log", "2.log"):
        (tmp_path / "log" / name).write_bytes(b"x" * 100)
    flips = Flips(tmp_path, random.Random(1))
    (tmp_path / "log/1.log").unlink()
    flips.restore()
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["2.log"]


def test_there_may_be_nothing_to_flip(tmp_path: Path) -> None:
    assert str(Flips(tmp_path, random.Random(1))) == "nothing to flip yet"


def test_a_broker_that_does_not_start_after_a_kill_violates_a_rule(tmp_path: Path) -> None:
    async def run() -> list[str]:
        process = Process(tmp_path / "data", {}, tmp_path / "broker.log")
        history = History(tmp_path, lambda: 0.0)
        faults = Faults(Stage(process, history, "1", 1.0), ["kill"])
        await faults.start()
        (tmp_path / "data/penstock.json").write_text("spoilt")
        await faults.strike()
        await process.kill()
        history.close()
        return [each.rule for each in faults.violations]

    assert asyncio.run(run()) == ["comes-back"]
