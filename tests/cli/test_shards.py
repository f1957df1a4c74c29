"""The offline verbs on a store with several shards: on all of them, or on one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.broker.shard_map import ShardMap
from penstock.cli.exits import CommandError, Exit
from penstock.cli.log.rebuild import rebuild
from penstock.cli.log.salvage import salvage, salvage_shards
from penstock.cli.log.state import examine
from penstock.cli.reshard.making import reshard
from penstock.cli.shards import directories, one_directory
from penstock.engine.engine import Engine
from penstock.model.commands import NewMessage, Publish
from penstock.storage.backup.making import Progress
from penstock.storage.directory import DataDirectory
from penstock.storage.shards import read_shards, shard_directory
from tests.support.backups import living, worked
from tests.support.command_line import penstock
from tests.support.spoilt_logs import work

SHARDS = 3
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Queues a and d are in shard 0, b in 1 and c in 2."""
    with worked(tmp_path / "store") as directory:
        directory.create(*NAMES)
        for name in NAMES:
            directory.publish(name, *(f"{name} {number}" * 20 for number in range(6)))
            work(directory.engine, directory.log, Publish(name, [NewMessage(b"x", object="o", key=name.encode())]))
    reshard(tmp_path / "store", SHARDS, None, Progress())
    return tmp_path / "store"


def state(directory: DataDirectory) -> Engine:
    report, engine = examine(directory)
    assert engine, report.problems
    return engine


def queues(store: Path) -> dict[str, list[int]]:
    """The living messages of all queues."""
    stored = read_shards(store)
    assert stored
    engines = [state(shard_directory(store, shard)) for shard in range(stored.shards)]
    return {name: living(engine, name) for engine in engines for name in engine.numbers}


WHOLE = {name: list(range(1, 8)) for name in NAMES}


def damage(store: Path, shard: int) -> None:
    """Spoil the identity of a log's newest segment."""
    newest = max(shard_directory(store, shard).log.iterdir())
    newest.write_bytes(b"?" + newest.read_bytes()[1:])


# ── Which shards ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_verb_is_about_all_shards_or_the_chosen_one(store: Path) -> None:
    assert [each.path.name for each in directories(store)] == ["0000", "0001", "0002"]
    assert [each.path.name for each in directories(store, 1)] == ["0001"]
    assert one_directory(store, 2).path.name == "0002"
    with pytest.raises(CommandError, match="has 3 shards; choose one with --shard"):
        one_directory(store, None)
    with pytest.raises(CommandError, match="has the shards 0 to 2, and --shard is 3"):
        directories(store, 3)


def test_a_store_with_one_shard_has_shard_0(tmp_path: Path) -> None:
    with worked(tmp_path):
        pass
    assert one_directory(tmp_path, None).path == one_directory(tmp_path, 0).path == tmp_path
    with pytest.raises(CommandError, match="has only shard 0, and --shard is 1"):
        one_directory(tmp_path, 1)


# ── penstock log ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_worst_of_all_shards_is_the_verdict(store: Path) -> None:
    whole = penstock("log", "verify", str(store))
    assert (whole.returncode, whole.stdout.count(": whole: ")) == (0, SHARDS)
    damage(store, 1)
    assert penstock("log", "verify", str(store)).returncode == 2
    assert penstock("log", "verify", str(store), "--shard", "0").returncode == 0


def test_all_shards_are_inspected_or_one(store: Path) -> None:
    every = json.loads(penstock("log", "inspect", str(store), "--json").stdout)["shards"]
    assert [[queue["name"] for queue in each["queues"]] for each in every] == [["a", "d"], ["b"], ["c"]]
    assert json.loads(penstock("log", "inspect", str(store), "--json", "--shard", "2").stdout) == every[2]
    refused = penstock("log", "inspect", str(store), "--events")
    assert (refused.returncode, refused.stdout) == (Exit.USAGE, "")


def test_a_store_is_salvaged_as_a_whole(store: Path, tmp_path: Path) -> None:
    stored = read_shards(store)
    assert stored
    damage(store, 1)
    losses = salvage_shards(store, stored, tmp_path / "out", Progress())
    assert [not each.events for each in losses] == [True, True, True]
    assert queues(tmp_path / "out") == WHOLE
    assert read_shards(tmp_path / "out") == stored


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_shard_that_has_lost_its_snapshot_is_salvaged_from_the_past_of_all(
    store: Path, tmp_path: Path, shard: int
) -> None:
    source = shard_directory(store, shard)
    for path in source.snapshots.iterdir():
        path.unlink()
    losses = salvage(source.path, tmp_path / "out", lambda _: None, lambda _: None)
    assert not any(each.lost for each in losses.queues)
    engine = state(DataDirectory(tmp_path / "out"))
    assert {name: living(engine, name) for name in engine.numbers} == {
        name: WHOLE[name] for number, name in enumerate(NAMES) if number % SHARDS == shard
    }


def test_a_shard_whose_newest_events_are_lost_goes_on_where_no_other_shard_has_been(
    store: Path, tmp_path: Path
) -> None:
    source = shard_directory(store, 1)
    lost = DataDirectory(source.path).read_identity().lineage[0][1]
    max(source.log.iterdir()).unlink()
    losses = salvage(source.path, tmp_path / "out", lambda _: None, lambda _: None)
    engine = state(DataDirectory(tmp_path / "out"))
    assert losses.offset > lost + 1_000_000
    assert all(engine.couriers.outbox(other).last > 1_000_000 for other in (0, 2))
    assert DataDirectory(tmp_path / "out").read_identity().lineage[-1][1] == lost


def test_each_shard_rebuilds_the_history_of_the_keys_that_it_answers_for(store: Path) -> None:
    homes = [ShardMap(SHARDS).of_object("o", name.encode()) for name in NAMES]
    for shard in range(SHARDS):
        keys = homes.count(shard)
        assert rebuild(shard_directory(store, shard), show=False) == [f"The Object History has {keys} keys."]
    done = penstock("log", "rebuild-history", str(store))
    assert done.stdout.count("The Object History has") == SHARDS


# ── Backups ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_store_is_backed_up_checked_and_restored_as_a_whole(store: Path, tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    assert penstock("backup", str(backup), "--data", str(store)).stdout.count("holds everything") == SHARDS
    assert penstock("backup", str(backup), "--verify").stdout.count("whole: ") == SHARDS
    done = penstock("restore", str(backup), str(restored), "--json")
    assert [len(each["queues"]) for each in json.loads(done.stdout)["shards"]] == [2, 1, 1]
    assert queues(restored) == WHOLE
    assert read_shards(restored) == read_shards(store)
    lines = [shard_directory(restored, shard).read_identity().lineage for shard in range(SHARDS)]
    assert [len(line) for line in lines] == [2] * SHARDS


def test_a_backup_of_several_shards_and_one_of_a_single_shard_do_not_share_a_directory(
    store: Path, tmp_path: Path
) -> None:
    with worked(tmp_path / "single") as directory:
        directory.create("a")
    assert penstock("backup", str(tmp_path / "backup"), "--data", str(store)).returncode == 0
    refused = penstock("backup", str(tmp_path / "backup"), "--data", str(tmp_path / "single"))
    assert "is a backup of a store with 3 shards; choose another directory" in refused.stderr


def test_tokens_of_a_stopped_store_are_those_of_shard_0(store: Path) -> None:
    made = penstock("tokens", "create", "ada", "--scope", "admin", "--data", str(store))
    assert made.returncode == 0, made
    assert [len(state(shard_directory(store, shard)).tokens) for shard in range(SHARDS)] == [1, 0, 0]
