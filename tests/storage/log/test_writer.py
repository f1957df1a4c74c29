"""Group commit: what one sync covers, when it is reported, and what a failure of the disk leaves."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LogFailedError
from penstock.model.events import Event
from penstock.model.values import Stage
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, segment_path
from penstock.storage.log.segments import SegmentLog
from tests.support.samples import close_log, commit, logged, open_log, recover
from tests.support.small_segments import BATCH_BYTES, BODY, SEGMENT_BYTES, reopened, write


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


def test_a_new_segment_is_on_the_disk_before_its_first_batch(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, 1)
    old, new = (segment_path(tmp_path / "log", offset).name for offset in (0, 1))
    calls = watch_files(monkeypatch)
    log.append(logged(2, b"y" * (SEGMENT_BYTES - 300)))
    commit(log)
    assert calls == [
        *(f"ftruncate {old}", f"fsync {old}"),
        *(f"posix_fallocate {new}", f"pwrite {new}", f"fsync {new}", "fsync log"),
        *(f"pwrite {new}", f"fdatasync {new}"),
    ]


def test_room_is_reserved_on_the_disk_before_the_first_commit_after_a_start(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, 1)
    close_log(log)
    calls = watch_files(monkeypatch)
    again, _ = reopened(tmp_path)
    name = again.segments[-1].path.name
    assert calls[-2:] == [f"posix_fallocate {name}", f"fsync {name}"]
    close_log(again)


def watch_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to files from now on, each call with the name of its file."""
    calls: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def noted(file: int, *more: Any) -> Any:
            calls.append(f"{name} {Path(f'/proc/self/fd/{file}').readlink().name}")
            return call(file, *more)

        return noted

    for name in ("ftruncate", "posix_fallocate", "pwrite", "fsync", "fdatasync"):
        monkeypatch.setattr(os, name, watched(name))
    return calls


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
