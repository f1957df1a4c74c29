"""Every cut and every flipped bit of a small log's snapshots: they give way to what is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.errors import DamagedLogError
from penstock.limits import SECOND_NS
from penstock.model.commands import CreateQueue, Fetch, Finish, NewMessage, Publish, Tick
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.storage.log.segment import segment_path
from penstock.storage.log.snapshot import check_snapshot
from tests.support.effort import LONG
from tests.support.engine_rig import state_of
from tests.support.samples import close_log, open_log
from tests.support.spoilt_logs import SEGMENT_BYTES, engine_of, flipped, snapshot, work

STRIDE = 1 if LONG else 13  # Whole recoveries from spoilt snapshots; that each is noticed is tried for all.
State = list[tuple[str, bytes, tuple[bytes, ...]]]


class Kept(NamedTuple):
    """A directory with two snapshots and a log that reaches back to the older one, or to the beginning."""

    path: Path
    newer: Path
    older: Path
    state: State

    def recovered(self) -> State:
        log = open_log(self.path, SEGMENT_BYTES)
        try:
            return state_of(engine_of(log))
        finally:
            close_log(log)


@pytest.fixture(params=["whole log", "log from the older snapshot"])
def kept(request: pytest.FixtureRequest, fast_path: Path) -> Iterator[Kept]:
    path = fast_path / "snapshot-sample"
    log = open_log(path, SEGMENT_BYTES)
    engine = engine_of(log)
    work(engine, log, CreateQueue("dead", QueueSettings()))
    policy = RedrivePolicy(1, "dead")
    work(engine, log, CreateQueue("work", QueueSettings(redrive_policy=policy, deduplication=True)))
    work(engine, log, Publish("work", [NewMessage(b"one", content_type="a/b"), NewMessage(b"two")]))
    older = snapshot(engine, log)
    work(engine, log, Fetch("work", consumer="me"))
    work(engine, log, Publish("work", [NewMessage(b"three"), NewMessage(b"four", delay_ns=SECOND_NS)]))
    newer = snapshot(engine, log)
    work(engine, log, Finish(2, 3))
    work(engine, log, Tick())
    close_log(log)
    assert len(log.segments) >= 3
    if request.param != "whole log":
        log.segments[0].path.unlink()
    yield Kept(path, newer, older, state_of(engine))
    shutil.rmtree(path)


def spoils(data: bytes) -> Iterator[tuple[str, bytes]]:
    for bit in range(8 * len(data)):
        yield f"bit {bit} flipped", flipped(data, bit)
    for size in range(len(data)):
        yield f"cut at {size}", data[:size]


def test_unspoilt_snapshots_give_the_state_back(kept: Kept) -> None:
    assert kept.recovered() == kept.state


def test_a_snapshot_spoilt_anywhere_is_not_whole(kept: Kept) -> None:
    check_snapshot(kept.newer)
    for what, spoilt in spoils(kept.newer.read_bytes()):
        kept.newer.write_bytes(spoilt)
        try:
            check_snapshot(kept.newer)
        except DamagedLogError:
            continue
        pytest.fail(f"{what}: not noticed")


def test_a_spoilt_snapshot_gives_way_to_the_older_one(kept: Kept) -> None:
    for what, spoilt in islice(spoils(kept.newer.read_bytes()), 0, None, STRIDE):
        kept.newer.write_bytes(spoilt)
        assert kept.recovered() == kept.state, what


def test_without_a_whole_snapshot_the_log_is_replayed_or_refused(kept: Kept) -> None:
    kept.newer.write_bytes(kept.newer.read_bytes()[:-1])
    whole_log = segment_path(kept.path / "log", 0).exists()
    for what, spoilt in islice(spoils(kept.older.read_bytes()), 0, None, STRIDE):
        kept.older.write_bytes(spoilt)
        if whole_log:
            assert kept.recovered() == kept.state, what
        else:
            with pytest.raises(DamagedLogError, match="are missing: no snapshot covers them"):
                kept.recovered()


def test_a_spoilt_spare_does_not_matter_while_the_newest_is_whole(kept: Kept) -> None:
    for size in (0, 10, 100):
        kept.older.write_bytes(kept.older.read_bytes()[:size])
        assert kept.recovered() == kept.state


def test_an_unfinished_snapshot_is_removed(kept: Kept) -> None:
    unfinished = kept.newer.with_suffix(".tmp")
    unfinished.write_bytes(b"half")
    assert kept.recovered() == kept.state
    assert not unfinished.exists()


def test_a_log_that_ends_before_its_snapshot_is_refused(kept: Kept) -> None:
    for path in sorted((kept.path / "log").glob("*.log"))[1:]:
        path.unlink()
    newest = int(kept.newer.stem)
    with pytest.raises(DamagedLogError, match=f"to {newest - 1} are missing: the log ends before its snapshot"):
        kept.recovered()


def test_a_snapshot_without_its_log_is_refused(kept: Kept) -> None:
    for path in (kept.path / "log").glob("*.log"):
        path.unlink()
    with pytest.raises(DamagedLogError, match="the log is gone: a snapshot says that it reached offset"):
        kept.recovered()
