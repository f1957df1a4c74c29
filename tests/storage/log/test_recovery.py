"""Every cut and every flipped bit of a small log.

The rule: what comes back is what was written, or the start of it up to the last batch, or a refusal that names what
is lost. Never a wrong event, never an error nobody planned.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.errors import DamagedLogError
from penstock.storage.directory import DataDirectory
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, segment_path
from penstock.storage.log.segments import SegmentLog
from tests.support.samples import commit, logged, open_log, recover
from tests.support.spoilt_logs import SEGMENT_BYTES, Written, flipped


class Sample(NamedTuple):
    """A log of five batches in two segments, as bytes, to be spoilt again and again."""

    directory: DataDirectory
    written: Written  # One event a batch.
    ends: list[int]  # File offset behind each batch, in its own segment.
    first: bytes
    last: bytes

    @property
    def first_path(self) -> Path:
        return segment_path(self.directory.log, 0)

    @property
    def last_path(self) -> Path:
        return segment_path(self.directory.log, 2)

    def put(self, first: bytes, last: bytes) -> None:
        for left_behind in self.directory.log.iterdir():
            left_behind.unlink()
        self.first_path.write_bytes(first)
        self.last_path.write_bytes(last)

    def open(self) -> SegmentLog:
        return SegmentLog(self.directory, segment_bytes=SEGMENT_BYTES)

    def read(self) -> Written:
        """What a recovery finds."""
        log = self.open()
        try:
            return recover(log)
        finally:
            log.close()


@pytest.fixture(scope="module")
def sample(fast_path: Path) -> Iterator[Sample]:
    log = open_log(fast_path / "log-sample", SEGMENT_BYTES)
    recover(log)
    written: Written = []
    ends: list[int] = []
    for sequence in range(1, 6):
        event = logged(sequence, b"PBAT" * (25 if sequence < 3 else 1), key=b"k", digest=b"d" * 32)
        written.append((event, log.append(event)))
        commit(log)
        ends.append(log.segments[-1].file_offset(log.end.position))
    log.close()
    first, last = (segment.path.read_bytes() for segment in log.segments)
    assert len(first) == ends[1]
    assert ends[4] + 10 < len(last), "there is reserved room"
    yield Sample(log.directory, written, ends, first, last)
    log.directory.close()


def torn_bytes(sample: Sample) -> bytes:
    """What was set aside, for the eyes of its owner only."""
    paths = list(sample.directory.log.glob("*.torn"))
    assert all(path.stat().st_mode & 0o77 == 0 for path in paths)
    return b"".join(path.read_bytes() for path in paths)


def test_an_unspoilt_log_comes_back_whole(sample: Sample) -> None:
    sample.put(sample.first, sample.last)
    assert sample.read() == sample.written
    assert not torn_bytes(sample)


def test_what_is_read_is_on_the_disk_before_anybody_acts_on_it(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed may have written it and never synced it."""
    sample.put(sample.first, sample.last)
    synced, fsync = list[int](), os.fsync

    def watched(file: int) -> None:
        fsync(file)
        synced.append(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    log = sample.open()
    events = log.recover().events
    assert sample.last_path.stat().st_ino in synced
    assert len(list(events)) == len(sample.written)
    log.close()


def test_a_torn_tail_is_cut_on_the_disk_too(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = sample.ends[3]
    sample.put(sample.first, sample.last[: cut + 100])
    synced, fsync = list[tuple[int, int]](), os.fsync

    def watched(file: int) -> None:
        fsync(file)
        synced.append((os.fstat(file).st_ino, os.fstat(file).st_size))

    monkeypatch.setattr(os, "fsync", watched)
    assert sample.read() == sample.written[:4]
    assert (sample.last_path.stat().st_ino, cut) in synced


def test_every_cut_of_the_last_segment_leaves_whole_batches(sample: Sample) -> None:
    for size in range(len(sample.last)):
        cut = sample.last[:size]
        sample.put(sample.first, cut)
        whole = 2 + sum(end <= size for end in sample.ends[2:])
        assert sample.read() == sample.written[:whole], f"cut at {size}"
        end = sample.ends[whole - 1] if whole > 2 else SEGMENT_HEADER_BYTES
        assert torn_bytes(sample) == cut[end:].rstrip(b"\0"), f"cut at {size}"


def test_every_cut_of_an_earlier_segment_is_refused_and_named(sample: Sample) -> None:
    for size in range(len(sample.first)):
        sample.put(sample.first[:size], sample.last)
        lost = 0 if size < sample.ends[0] else 1
        with pytest.raises(DamagedLogError, match=rf"{sample.first_path.name}: .*events {lost} (to 1|and later)"):
            sample.read()
        assert sample.first_path.read_bytes() == sample.first[:size], "nothing is cleaned up"
        assert sample.last_path.read_bytes() == sample.last


def test_every_flipped_bit_of_an_earlier_segment_is_refused_and_named(sample: Sample) -> None:
    for bit in range(8 * len(sample.first)):
        spoilt = flipped(sample.first, bit)
        sample.put(spoilt, sample.last)
        lost = 0 if bit // 8 < sample.ends[0] else 1
        with pytest.raises(DamagedLogError, match=rf"{sample.first_path.name}: .*events {lost} (to 0|and later)"):
            sample.read()
        assert sample.first_path.read_bytes() == spoilt, "nothing is cleaned up"


def test_every_flipped_bit_of_the_last_segment_loses_the_last_batch_at_most(sample: Sample) -> None:
    for bit in range(8 * len(sample.last)):
        spoilt = flipped(sample.last, bit)
        sample.put(sample.first, spoilt)
        at = bit // 8
        if at >= sample.ends[4]:  # In the reserved room.
            assert sample.read() == sample.written, f"bit {bit}"
            assert torn_bytes(sample) == spoilt[sample.ends[4] :].rstrip(b"\0")
        elif at >= sample.ends[3]:  # In the last batch.
            assert sample.read() == sample.written[:4], f"bit {bit}"
            assert torn_bytes(sample) == spoilt[sample.ends[3] :].rstrip(b"\0")
        else:
            lost = 2 if at < sample.ends[2] else 3
            says = rf"{sample.last_path.name}: .*events {lost} (to {lost}|and later)"
            with pytest.raises(DamagedLogError, match=says):
                sample.read()
            assert sample.last_path.read_bytes() == spoilt, "nothing is cleaned up"


def test_every_lost_block_is_noticed_or_costs_the_last_batch(sample: Sample) -> None:
    """A block that never reached the disk reads as zeros."""
    for size in (16, 64, 512):
        for start in range(0, sample.ends[4], 16):
            spoilt = (sample.last[:start] + bytes(size) + sample.last[start + size :])[: len(sample.last)]
            sample.put(sample.first, spoilt)
            whole = 2 + sum(end <= start for end in sample.ends[2:])
            try:
                found = sample.read()
            except DamagedLogError:
                assert sample.last_path.read_bytes() == spoilt, "nothing is cleaned up"
            else:
                assert found == sample.written[: len(found)]
                assert len(found) >= whole, "what stands before the loss is there"


def test_a_log_goes_on_behind_every_torn_tail(sample: Sample) -> None:
    for size in range(SEGMENT_HEADER_BYTES, sample.ends[4], 7):
        sample.put(sample.first, sample.last[:size])
        log = sample.open()
        found = recover(log)
        event = logged(99, b"after the crash")
        found.append((event, log.append(event)))
        commit(log)
        log.close()
        assert sample.read() == found


def test_two_torn_tails_are_both_kept_aside(sample: Sample) -> None:
    sample.put(sample.first, sample.last[: sample.ends[3] + 70])
    sample.read()
    kept = torn_bytes(sample)
    assert kept
    sample.last_path.write_bytes(sample.last[: sample.ends[2] + 70])
    sample.read()
    assert len(torn_bytes(sample)) == len(kept) + 70
