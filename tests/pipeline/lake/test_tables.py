"""The lake: its tables are what another engine makes of the same events, whatever has happened meanwhile."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.errors import LakeError, SparkError
from penstock.model.events import Event, Fetched, NameDefined, QueueRemoved, Succeeded
from penstock.model.kinds import LETTERS, Kind
from penstock.pipeline.lake import compaction
from penstock.pipeline.lake.compaction import compact, rebuild, vacuum
from penstock.pipeline.lake.delta import LakeTable
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.publication import publish_all
from penstock.pipeline.lake.tables import TABLES, parts_table
from penstock.pipeline.lake.views import view
from tests.support.broker import Broker
from tests.support.lakes import FilledLake, assert_same_tables, events_of
from tests.support.offline import definitions, make_log, messages
from tests.support.power_cuts import PowerCutError, fill_until_cut
from tests.support.samples import logged
from tests.support.traffic import kinds_of

OBJECTS = ("customer", "invoice")


def versions(seed: int, first: int, count: int) -> list[Event]:
    """Messages of a few objects, of which many say what was said before."""
    chance = random.Random(seed)
    return [
        logged(
            sequence,
            chance.choice([b"one", b"two", b"three"]),
            time=sequence * 7_000_000_000,
            object=chance.choice([0, 2, 3]),
            key=chance.choice([b"", b"a", b"b", b"c"]),
        )
        for sequence in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with versions of objects, in several batches."""
    names = [NameDefined(1, number, name) for number, name in enumerate(OBJECTS, start=2)]
    steps: Sequence[Sequence[Event]] = [versions(at, at, 20) for at in range(1, 100, 20)]
    return make_log(tmp_path_factory.mktemp("objects") / "data", [*definitions(), *names], *steps)


@pytest.fixture(scope="module")
def filled_once(spark: SparkSession, objects: Path, tmp_path_factory: pytest.TempPathFactory) -> FilledLake:
    filled = FilledLake(spark, tmp_path_factory.mktemp("filled") / "lake", path=str(objects))
    filled.fill(maxEventsPerTrigger=120)
    return filled


@pytest.fixture
def filled(filled_once: FilledLake, objects: Path, tmp_path: Path) -> FilledLake:
    """A lake with those versions, from several batches, for a test of its own."""
    shutil.copytree(filled_once.lake.path, tmp_path / "lake")
    return FilledLake(filled_once.spark, tmp_path / "lake", path=str(objects))


def test_the_tables_are_what_another_engine_makes_of_the_same_events(past_lake: FilledLake, past: Broker) -> None:
    assert len(past_lake.written) > 2
    assert_same_tables(past_lake, events_of(past.data))


def test_the_traffic_that_is_compared_has_every_letter_and_every_kind(past: Broker) -> None:
    of_retention = {Kind.CARRIED, Kind.RECEIVER_MOVED, Kind.RESULT_CARRIED, Kind.NAME_FORGOTTEN}  # Nothing new.
    of_damage = {Kind.DAMAGED, Kind.RESTORED}  # Only a broken disk makes them.
    of_tokens = {Kind.TOKEN_SET, Kind.TOKEN_REVOKED}  # No message is concerned.
    of_departures = {Kind.ROUTED, Kind.VERSIONED, Kind.SENT, Kind.SENT_AS_DEAD, Kind.PROMISED, Kind.TAKEN}
    of_arrivals = {Kind.ARRIVED, Kind.CAME_FROM, Kind.COPIED_FROM, Kind.COLLECTED, Kind.LEARNED}
    of_shards = of_departures | of_arrivals | {Kind.DECIDED}
    assert set(Kind) - kinds_of(past.data) == of_retention | of_damage | of_tokens | of_shards
    assert set(events_of(past.data)["letter"].to_pylist()) == set("".join(LETTERS.values())) - {"B"}


def test_objects_that_change_are_told_from_those_that_do_not(filled: FilledLake, objects: Path) -> None:
    assert_same_tables(filled, events_of(objects))
    changes = filled.rows("changes")
    assert 8 < len(changes) < 100
    assert sum(row["versions"] for row in filled.rows("object_history")) == len(changes)


def test_compaction_leaves_one_row_a_message_and_changes_nothing(
    spark: SparkSession, filled: FilledLake, objects: Path
) -> None:
    for table in TABLES.values():
        compact(spark, filled.lake, table, everything=True)
        assert len(parts_table(filled.lake, table).files()) == (1 if table.name != "leases" else 0)
    assert_same_tables(filled, events_of(objects))
    kept = sorted((filled.lake.path / "events").rglob("*.parquet"))
    assert vacuum(filled.lake) == 0
    assert sorted((filled.lake.path / "events").rglob("*.parquet")) == kept
    assert vacuum(filled.lake, hours=0) > 0
    assert_same_tables(filled, events_of(objects))


def test_small_neighbours_become_one_file(
    spark: SparkSession, filled: FilledLake, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLES["object_history"]
    before = parts_table(filled.lake, table).files()
    assert compact(spark, filled.lake, table) == 0
    monkeypatch.setattr(compaction, "LAKE_FILES_MIN", 2)
    assert compact(spark, filled.lake, table) == len(before) - 1
    assert_same_tables(filled, events_of(objects))


def test_a_compaction_that_somebody_else_was_faster_with_is_given_up(
    spark: SparkSession, filled: FilledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLES["messages"]
    settle = LakeTable._settle

    def overtaken(self: LakeTable, first: int, end: int) -> Any:
        monkeypatch.setattr(LakeTable, "_settle", settle)
        others = parts_table(filled.lake, table, "_other")
        others.compact(others.files()[:1], {})  # It has nothing to put in its place, and so takes away rows.
        return settle(self, first, end)

    monkeypatch.setattr(LakeTable, "_settle", overtaken)
    before = len(parts_table(filled.lake, table).files())
    with pytest.raises(LakeError, match="another process changed"):
        compact(spark, filled.lake, table, everything=True)
    assert len(parts_table(filled.lake, table).files()) == before - 1


def test_tables_can_be_made_anew_from_the_events(
    spark: SparkSession, past: Broker, tmp_path: Path, past_lake: FilledLake
) -> None:
    shutil.copytree(past_lake.lake.path, tmp_path / "lake")
    copy = FilledLake(spark, tmp_path / "lake", path=str(past.data))
    for table in TABLES.values():
        if table.name != "events":
            shutil.rmtree(parts_table(copy.lake, table).path)
            rebuild(spark, copy.lake, table)
    assert_same_tables(copy, events_of(past.data), published=True)
    assert sorted(map(repr, copy.rows("leases"))) == sorted(map(repr, past_lake.rows("leases")))


def test_a_crash_between_any_two_commits_loses_and_doubles_nothing(
    spark: SparkSession, objects: Path, tmp_path: Path
) -> None:
    filled = FilledLake(spark, tmp_path / "lake", path=str(objects))
    for survived in range(len(TABLES)):  # The first batch is tried six times, each time with one commit more.
        fill_until_cut(filled, survived, maxEventsPerTrigger=90)
    filled.fill(maxEventsPerTrigger=120)
    assert_same_tables(filled, events_of(objects))


def test_leases_are_replaced_only_after_what_is_made_from_them(
    spark: SparkSession, objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash between the two would leave deliveries of earlier batches out of the minutes."""
    filled = FilledLake(spark, tmp_path / "lake", path=str(objects))
    commit = LakeTable._commit

    def dying(self: LakeTable, *given: Any, **more: Any) -> None:
        if self.name == "queue_minutes":
            raise PowerCutError
        commit(self, *given, **more)

    monkeypatch.setattr(LakeTable, "_commit", dying)
    with pytest.raises(SparkError, match="PowerCutError"):
        filled.fill()
    assert parts_table(filled.lake, TABLES["leases"]).reached(filled.lake.origin()) == (0,)


def test_a_lost_checkpoint_costs_nothing(
    spark: SparkSession, filled: FilledLake, objects: Path, tmp_path: Path
) -> None:
    longer = tmp_path / "data"
    shutil.copytree(objects, longer)
    make_log(longer, versions(7, 101, 20))
    shutil.rmtree(filled.lake.checkpoint)
    again = FilledLake(spark, filled.lake.path, path=str(longer))
    again.fill()
    assert_same_tables(again, events_of(longer))


def test_a_lake_is_of_one_log(spark: SparkSession, filled: FilledLake, tmp_path: Path) -> None:
    other = make_log(tmp_path / "other", definitions())
    with pytest.raises(LakeError, match="the lake of another log"):
        FilledLake(spark, tmp_path / "lake", path=str(other)).fill()


def test_where_there_is_no_lake_the_error_says_how_to_get_one(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"no lake in .* yet: fill one with penstock pipeline run"):
        view(spark, Lake(tmp_path), "events")


def test_events_are_not_rebuilt(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="cannot be rebuilt"):
        rebuild(spark, Lake(tmp_path), TABLES["events"])


def test_the_messages_of_a_removed_queue_are_gone_with_it_in_every_table(spark: SparkSession, tmp_path: Path) -> None:
    """The removal comes in a later batch than they do; a queue beside it stays as it is."""
    there = [
        *definitions(),
        *messages(1, 4),
        *messages(1, 2, queue=2),
        Fetched(60_000_000, 1, 2, 2, 1, 0, visible_at=9),
    ]
    data = make_log(tmp_path / "data", there, [Succeeded(70_000_000, 1, 1, 1, 0, 0, complete=True, result=b"")])
    filled = FilledLake(spark, tmp_path / "lake", path=str(data))
    filled.fill()
    publish_all(filled.lake)
    make_log(data, [QueueRemoved(200_000_000_000_000, 1)])  # Another day.
    filled.fill()
    publish_all(filled.lake)
    assert_same_tables(filled, events_of(data), published=True)
    (removed,) = [row for row in filled.rows("events") if row["state"] == "D"]
    assert (removed["queue"], removed["kind"], removed["sequence"]) == ("orders", Kind.QUEUE_REMOVED, None)
    found = {(row["queue_number"], row["sequence"]): row for row in filled.rows("messages")}
    assert "".join(found[1, sequence]["state"] for sequence in (1, 2, 3, 4)) == "XDDD"
    assert [found[1, sequence]["gone"] == removed["time"] for sequence in (1, 2, 3, 4)] == [False, True, True, True]
    assert [found[2, sequence]["queued"] for sequence in (1, 2)] == [True, True]
    last = max(
        (row for row in filled.rows("queue_minutes") if row["queue_number"] == 1), key=lambda row: row["minute"]
    )
    assert (last["depth"], last["deleted"]) == (0, 0)
    assert filled.rows("leases") == []
