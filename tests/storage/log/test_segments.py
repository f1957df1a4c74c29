"""The log on disk: new segments, reading, and what a start does with segments that are not whole."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from penstock.errors import DamagedLogError
from penstock.model.values import Stage
from penstock.storage.log import checked
from penstock.storage.log import segments as storage
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, Segment, segment_path
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.writer import Job
from tests.support.samples import close_log, commit, logged
from tests.support.small_segments import BATCH_BYTES, BODY, SEGMENT_BYTES, reopened, write


def names(log: SegmentLog) -> list[str]:
    return sorted(path.name for path in log.directory.log.iterdir())


def test_a_full_segment_is_followed_by_one_named_by_its_first_offset(log: SegmentLog, tmp_path: Path) -> None:
    written = write(log, 7)
    assert names(log) == [segment_path(tmp_path, offset).name for offset in (0, 3, 6)]
    sizes = [segment.path.stat().st_size for segment in log.segments]
    assert sizes == [SEGMENT_BYTES] * 3, "the newest has its room reserved; the others are exactly full"
    close_log(log)
    again, found = reopened(tmp_path)
    assert found == written
    close_log(again)


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(log: SegmentLog, tmp_path: Path) -> None:
    write(log, 1)
    big = logged(2, b"y" * 5000)
    position = log.append(big)
    commit(log)
    written = write(log, 1, first=3)
    assert len(names(log)) == 3
    assert log.read(position, 5000) == big.body
    close_log(log)
    again, found = reopened(tmp_path)
    assert found[1:] == [(big, position), *written]
    assert again.read(position, 5000) == big.body
    close_log(again)


def test_positions_run_on_from_segment_to_segment(log: SegmentLog) -> None:
    positions = [position for _, position in write(log, 7)]
    assert [later - earlier for earlier, later in pairwise(positions)] == [BATCH_BYTES] * 6


def test_the_room_reserved_in_the_newest_segment_is_given_back_when_it_is_full(log: SegmentLog) -> None:
    write(log, 2)
    log.append(logged(3, b"z" * 150))  # Does not fit any more.
    commit(log)
    assert log.segments[0].path.stat().st_size == SEGMENT_HEADER_BYTES + 2 * BATCH_BYTES


def test_bodies_are_read_from_memory_while_recent_and_from_disk_when_not(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write(log, 7)
    reads: list[int] = []
    pread = os.pread

    def counted(file: int, size: int, at: int) -> bytes:
        reads.append(size)
        return pread(file, size, at)

    monkeypatch.setattr(os, "pread", counted)
    assert all(log.read(position, 100) == BODY for _, position in written)
    assert not reads
    monkeypatch.setattr(storage, "TAIL_BYTES_MAX", 2 * BATCH_BYTES)
    written += write(log, 2, first=8)
    assert all(log.read(position, 100) == BODY for _, position in written)
    assert 0 < len(reads) < 7, "who reads forward is served more than was asked for"


@pytest.mark.parametrize("seed", range(20))
def test_reads_in_any_order_between_writes_give_what_was_written(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(storage, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(storage, "_READ_AHEAD_BYTES", 700)
    random = Random(seed)
    written: list[tuple[int, bytes]] = []
    for sequence in range(1, 60):
        body = b"%06d" % sequence * random.randrange(20)
        written.append((log.append(logged(sequence, body)), body))
        if random.random() < 0.7:
            commit(log)
        start = random.randrange(len(written))
        for position, expected in written[start : start + random.randrange(6)]:
            assert log.read(position, len(expected)) == expected


def test_no_more_segments_are_open_for_reading_than_the_limit(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(checked, "_OPEN_FILES_MAX", 2)
    written = write(log, 13)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert all(log.read(position, 100) == BODY for _, position in written)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_an_empty_body_is_read_before_its_segment_exists(log: SegmentLog) -> None:
    position = log.append(logged(1, b""))
    begun, go_on = threading.Event(), threading.Event()
    synced = threading.Event()
    begin = log._writer._begin

    def begin_slowly(job: Job) -> Segment:
        begun.set()
        assert go_on.wait(30)
        return begin(job)

    log._writer._begin = begin_slowly  # type: ignore[method-assign]
    log.commit(1, lambda stage: synced.set() if stage is Stage.SYNC else None)
    assert begun.wait(30)
    assert not log.segments
    assert log.read(position, 0) == b""
    go_on.set()
    assert synced.wait(30)


def test_a_removed_segment_leaves_the_others_readable(log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "TAIL_BYTES_MAX", 0)
    written = write(log, 8)
    log.read(written[0][1], 100)
    log.remove(log.segments[0])
    assert all(log.read(position, 100) == BODY for _, position in written[3:])
    with pytest.raises(AssertionError, match="the newest segment is being written"):
        log.remove(log.segments[-1])


def test_a_torn_tail_that_was_set_aside_goes_with_its_segment(log: SegmentLog) -> None:
    write(log, 8)
    torn = [segment.path.with_suffix(".64.torn") for segment in log.segments[:2]]
    for path in torn:
        path.touch()
    log.remove(log.segments[0])
    assert [path.exists() for path in torn] == [False, True]


def test_a_segment_whose_making_was_cut_short_is_dropped(log: SegmentLog, tmp_path: Path) -> None:
    written = write(log, 3)
    close_log(log)
    for left_behind in (b"", b"\0" * 500, b"PSEG"):
        segment_path(tmp_path / "log", 3).write_bytes(left_behind)
        again, found = reopened(tmp_path)
        assert found == written
        assert names(again) == [segment_path(tmp_path, 0).name]
        close_log(again)


def test_a_segment_that_was_made_and_never_written_is_used(log: SegmentLog, tmp_path: Path) -> None:
    written = write(log, 4)
    close_log(log)
    os.truncate(segment_path(tmp_path / "log", 3), SEGMENT_HEADER_BYTES)
    again, found = reopened(tmp_path)
    assert found == written[:3]
    more = write(again, 2, first=4)
    close_log(again)
    last, found = reopened(tmp_path)
    assert found == written[:3] + more
    close_log(last)


def test_a_missing_segment_is_named_with_what_is_lost(log: SegmentLog, tmp_path: Path) -> None:
    write(log, 9)
    close_log(log)
    segment_path(tmp_path / "log", 3).unlink()
    with pytest.raises(DamagedLogError, match=r"00000\.log: events 3 to 5 are missing at its end"):
        reopened(tmp_path)


def test_a_missing_beginning_is_named_with_what_is_lost(log: SegmentLog, tmp_path: Path) -> None:
    write(log, 9)
    close_log(log)
    segment_path(tmp_path / "log", 0).unlink()
    with pytest.raises(DamagedLogError, match="events 0 to 2 are missing: no snapshot covers them"):
        reopened(tmp_path)


def test_a_segment_under_a_wrong_name_is_refused(log: SegmentLog, tmp_path: Path) -> None:
    write(log, 4)
    close_log(log)
    segment_path(tmp_path / "log", 3).rename(segment_path(tmp_path / "log", 4))
    with pytest.raises(DamagedLogError, match=r"its header has another first offset \(3\) than its name"):
        reopened(tmp_path)
