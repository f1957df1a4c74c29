"""The verb `penstock reshard`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.cli.exits import Exit
from penstock.storage.directory import DataDirectory
from tests.support.backups import worked
from tests.support.command_line import Terminal, penstock


def a_store(path: Path) -> Path:
    with worked(path) as directory:
        directory.create("orders", "jobs")
        directory.publish("orders", "one", "two", "three")
        directory.publish("jobs", "four")
    return path


def test_it_prints_what_each_shard_has(tmp_path: Path) -> None:
    data = a_store(tmp_path / "data")
    done = penstock("reshard", str(data), "--shards", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()[:3]] == [
        ["shard", "queues", "messages", "bytes"],
        ["0", "1", "3", "11"],
        ["1", "1", "1", "4"],
    ]
    assert f"{data} has 2 shards: 2 queues, 4 messages. Shard 0 has the events before offset 6" in done.stdout
    again = penstock("reshard", str(data), "--shards", "2")
    assert (again.returncode, again.stdout.startswith(f"{data} has these shards already.")) == (0, True)
    again = penstock("reshard", str(data), "--shards", "4")
    assert (again.returncode, again.stdout) == (Exit.USAGE, "")
    assert "has 2 shards, and only a store with one shard can be moved to several" in again.stderr


def test_with_another_directory_the_old_one_stays_as_it_was(tmp_path: Path) -> None:
    data = a_store(tmp_path / "data")
    done = penstock("reshard", str(data), "--shards", "2", "--to", str(tmp_path / "new"), "--json")
    assert json.loads(done.stdout)["shards"][0] == {"shard": 0, "queues": 1, "messages": 3, "bytes": 11}
    with worked(data) as directory:
        assert directory.living("orders") == [1, 2, 3]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"shards", "shards.json"}


def test_a_store_that_is_in_use_is_refused(tmp_path: Path) -> None:
    data = DataDirectory(a_store(tmp_path / "data"))
    data.open()
    refused = penstock("reshard", str(data.path), "--shards", "2")
    data.close()
    assert (refused.returncode, refused.stdout) == (Exit.IN_USE, "")
    assert "is in use by process" in refused.stderr
    assert not (data.path / "resharding").exists()


def test_a_run_that_was_cut_off_is_begun_anew_and_that_is_said(tmp_path: Path) -> None:
    data = a_store(tmp_path / "data")
    (data / "resharding" / "shards" / "0000").mkdir(parents=True)
    done = penstock("reshard", str(data), "--shards", "2")
    assert done.stderr == "An earlier run was cut off. What it left was removed, and everything was done anew.\n"
    assert "2 queues, 4 messages" in done.stdout


def test_a_terminal_shows_progress(tmp_path: Path) -> None:
    data = a_store(tmp_path / "data")
    terminal = Terminal("reshard", str(data), "--shards", "2")
    assert terminal.end() == 0
    assert "moving" in terminal.shown
    assert "2 shards: 2 queues" in terminal.shown
