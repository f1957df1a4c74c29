"""The log on disk: rolling, reading, group commit, failures of the disk, and the lock."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from penstock.errors import DamagedLogError, DataDirectoryError, InUseError, LogFailedError
from penstock.model.events import Event
from penstock.model.values import Stage
from penstock.storage.directory import DataDirectory
from penstock.storage.log import checked
from penstock.storage.log import segments as storage
from penstock.storage.log.batch import HEADER_BYTES, RECORD_BYTES
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, Segment, segment_path
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.writer import Job
from tests.support.samples import close_log, commit, logged, open_log, recover

BODY = b"x" * 100
BATCH_BYTES = HEADER_BYTES + len(BODY) + RECORD_BYTES
SEGMENT_BYTES = SEGMENT_HEADER_BYTES + 3 * BATCH_BYTES  # Three batches of one message fit.


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    opened = open_log(tmp_path, SEGMENT_BYTES)
    recover(opened)
    yield opened
    close_log(opened)


def write(log: SegmentLog, count: int, first: int = 1) -> list[tuple[Event, int]]:
    """Batches of one message each."""
    written: list[tuple[Event, int]] = []
    for sequence in range(first, first + count):
        event = logged(sequence, BODY)
        written.append((event, log.append(event)))
        assert commit(log) == [Stage.WRITE, Stage.SYNC]
    return written


def names(log: SegmentLog) -> list[str]:
    return sorted(path.name for path in log.directory.log.iterdir())


def reopened(path: Path) -> tuple[SegmentLog, list[tuple[Event, int]]]:
    log = open_log(path, SEGMENT_BYTES)
    return log, recover(log)


# ── Segments ──────────────────────────────────────────────────────────────────────────────────────────────


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


# ── Group commit ──────────────────────────────────────────────────────────────────────────────────────────


def test_write_is_reported_before_the_sync_and_sync_after_it(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    ended = threading.Event()
    fdatasync = os.fdatasync

    def watched(file: int) -> None:
        seen.append(f"fdatasync at {log.end.offset}")
        fdatasync(file)

    def progress(stage: Stage | BaseException) -> None:
        assert isinstance(stage, Stage)
        seen.append(f"{stage.name} at {log.end.offset}")
        if stage is Stage.SYNC:
            ended.set()

    monkeypatch.setattr(os, "fdatasync", watched)
    log.append(logged(1, BODY))
    log.append(logged(2, BODY))
    log.commit(1, progress)
    assert ended.wait(30)
    assert seen == ["WRITE at 0", "fdatasync at 0", "SYNC at 2"]
    assert log.end.position == log.appended.position


def test_there_is_one_commit_at_a_time(log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, ended = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def slow(file: int) -> None:
        assert go_on.wait(30)
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    log.append(logged(1, BODY))
    log.commit(1, lambda stage: ended.set() if stage is Stage.SYNC else None)
    log.append(logged(2, BODY))
    with pytest.raises(AssertionError, match="one commit at a time"):
        log.commit(2, lambda _: None)
    go_on.set()
    assert ended.wait(30)
    assert commit(log) == [Stage.WRITE, Stage.SYNC]


def test_one_sync_covers_all_that_collected(log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    for sequence in range(1, 51):
        log.append(logged(sequence, b""))
    commit(log)
    assert len(synced) == 1
    assert log.end.offset == 50


# ── Failures of the disk ──────────────────────────────────────────────────────────────────────────────────


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel itself refuses to let files grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def only_error(reported: list[Stage | BaseException]) -> OSError:
    error = reported[-1]
    assert isinstance(error, OSError)
    assert Stage.SYNC not in reported
    return error


def after_failure(log: SegmentLog, path: Path, written: list[tuple[Event, int]]) -> None:
    """The log says no from now on; abandoned and opened again, it holds what was durable and goes on."""
    log.append(logged(99, BODY))
    with pytest.raises(LogFailedError):
        log.commit(1, lambda _: None)
    log.abandon()
    log.directory.close()
    again, found = reopened(path)
    assert found == written
    more = write(again, 5, first=len(written) + 1)
    close_log(again)
    last, found = reopened(path)
    assert found == written + more
    close_log(last)


@pytest.mark.parametrize("durable", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_ends_the_log_and_only_what_was_durable_stays(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, durable: int
) -> None:
    written = write(log, durable)
    log.append(logged(durable + 1, BODY))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(number))
        reported = commit(log)
    assert only_error(reported).errno == number
    assert reported[0] is Stage.WRITE
    assert (log.end.offset, log.end.position) == (durable, durable * BATCH_BYTES)
    after_failure(log, tmp_path, written)


@pytest.mark.parametrize("durable", [0, 1, 3])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "posix_fallocate", "ftruncate"])
def test_any_failed_call_ends_the_log_and_only_what_was_durable_stays(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, durable: int
) -> None:
    written = write(log, durable)
    event = logged(durable + 1, b"y" * (SEGMENT_BYTES - 300))  # Needs a new segment, so that each call is made.
    log.append(event)
    if call == "ftruncate" and not durable:
        return  # There is no segment to finish.
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.EIO))
        assert only_error(commit(log)).errno == errno.EIO
    after_failure(log, tmp_path, written)


def test_a_write_cut_short_by_the_kernel_is_continued(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, bytes(data)[:64], at))
    written = write(log, 4)
    monkeypatch.undo()
    close_log(log)
    again, found = reopened(tmp_path)
    assert found == written
    close_log(again)


@pytest.mark.parametrize("room", [0, SEGMENT_HEADER_BYTES, 1000, SEGMENT_BYTES - 1])
def test_a_real_refusal_to_grow_a_file_ends_the_log(log: SegmentLog, tmp_path: Path, room: int) -> None:
    written = write(log, 3)
    log.append(logged(4, b"y" * 2000))
    with no_file_larger_than(room):
        assert only_error(commit(log)).errno == errno.EFBIG
    after_failure(log, tmp_path, written)


def test_a_full_disk_ends_the_log_and_loses_nothing(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        log = open_log(tmp_path, SEGMENT_BYTES)
        recover(log)
        written: list[tuple[Event, int]] = []
        while True:
            event = logged(len(written) + 1, BODY)
            position = log.append(event)
            reported = commit(log)
            if reported[-1] is not Stage.SYNC:
                break
            written.append((event, position))
        assert only_error(reported).errno == errno.ENOSPC
        assert len(written) > 10
        log.abandon()
        log.directory.close()
        again, found = reopened(tmp_path)
        assert found == written
        close_log(again)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_failure_nobody_foresaw_is_reported_too(log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(_: int) -> None:
        raise ValueError("never thought of")

    monkeypatch.setattr(os, "fdatasync", surprise)
    log.append(logged(1, BODY))
    assert str(commit(log)[-1]) == "never thought of"


@pytest.mark.parametrize("synced", range(5))
def test_abandoning_cuts_exactly_to_the_durable_position(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: int
) -> None:
    write(log, synced)
    whole = {segment.path: segment.path.read_bytes() for segment in log.segments}
    log.append(logged(synced + 1, BODY))
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    commit(log)
    log.abandon()
    used = SEGMENT_HEADER_BYTES + (synced % 3 or (3 if synced else 0)) * BATCH_BYTES
    kept = sorted((tmp_path / "log").iterdir())
    assert [path.stat().st_size for path in kept[:-1]] == [SEGMENT_BYTES] * (len(kept) - 1)
    assert kept[-1].stat().st_size == used
    for path, data in whole.items():
        if path in kept:
            assert path.read_bytes() == data[: path.stat().st_size]


# ── The directory ─────────────────────────────────────────────────────────────────────────────────────────

HOLDER = """
import sys
from pathlib import Path
from penstock.storage.directory import DataDirectory
directory = DataDirectory(Path(sys.argv[1]))
directory.open()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_excludes_a_second_process_and_dies_with_the_first(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InUseError, match=f"{tmp_path} is in use by process {holder.pid}"):
            DataDirectory(tmp_path).open()
        holder.kill()
        holder.wait()
        directory = DataDirectory(tmp_path)
        directory.open()
        directory.close()


def test_the_identity_stays_with_the_data(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "new" / "data")
    first = directory.open()
    assert directory.read_identity() == first
    directory.close()
    assert directory.open() == first
    directory.close()
    assert first.id_key != DataDirectory(tmp_path / "other").open().id_key


def test_a_log_without_its_identity_is_not_touched(log: SegmentLog, tmp_path: Path) -> None:
    write(log, 1)
    close_log(log)
    (tmp_path / "penstock.json").unlink()
    with pytest.raises(DataDirectoryError, match=r"has a log, but penstock\.json is missing"):
        DataDirectory(tmp_path).open()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is damaged: .*backup"),
        (b"{}", "is damaged: .*missing required field"),
        (b"[1, 2]", "is damaged"),
        (b"\xff\x00", "is damaged"),
        (b'{"format":1,"shard":0,"id_key":"\xff"}', "is damaged"),
        (b'{"format":1,"shard":0,"id_key":"no key"}', "is damaged: id_key is not 32 hexadecimal digits"),
        (b'{"format":1,"shard":0,"id_key":"00"}', "is damaged: id_key is not 32"),
        (b'{"format":1,"shard":4096,"id_key":"%b"}' % (b"00" * 16), "is damaged: shard is 4096"),
        (b'{"format":9,"shard":0,"id_key":""}', "has format 9"),
    ],
)
def test_an_identity_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "penstock.json").write_bytes(content)
    with pytest.raises(DataDirectoryError, match=says):
        DataDirectory(tmp_path).open()


def in_another_process(path: Path) -> subprocess.CompletedProcess[str]:
    """Opens the directory there: a lock is no obstacle to the process that has it."""
    code = "import sys, pathlib, penstock.storage.directory as d; d.DataDirectory(pathlib.Path(sys.argv[1])).open()"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)


def test_a_directory_whose_lock_file_was_removed_is_still_in_use(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.open()
    (tmp_path / "lock").unlink()
    other = in_another_process(tmp_path)
    assert "is in use by another process, though its lock file was removed" in other.stderr
    directory.close()
    assert in_another_process(tmp_path).returncode == 0


def test_whoever_has_a_directory_can_find_out_that_it_was_taken_away(tmp_path: Path) -> None:
    data = tmp_path / "data"
    directory = DataDirectory(data)
    directory.open()
    assert directory.lost() is None
    lock = data / "lock"
    lock.rename(data / "kept")
    assert "lock file" in str(directory.lost())
    lock.touch()
    assert "lock file" in str(directory.lost()), "another file of the same name"
    lock.unlink()
    (data / "kept").rename(lock)
    assert directory.lost() is None
    data.rename(tmp_path / "elsewhere")
    assert f"the data directory {data} was removed" in str(directory.lost())
    assert "in use" in in_another_process(tmp_path / "elsewhere").stderr, "to look has released no lock"
    directory.close()


def test_a_directory_that_cannot_be_made_is_the_operators_business(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirectoryError, match="is not a directory"):
        DataDirectory(tmp_path / "file" / "data").open()


def test_looking_at_a_directory_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="is not a Penstock data directory"):
        DataDirectory(tmp_path).read_identity()
