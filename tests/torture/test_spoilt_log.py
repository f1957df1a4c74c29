"""Every cut and every flipped bit of a log of 64 KiB: what comes back is what was written, or the start of it.

The rule of `tests/storage/log/test_recovery.py`, with a log of many batches of many sizes. Nothing comes back that
was not written. A cut loses what it cuts off. A flipped bit costs the last batch, or the start is refused.

    TORTURE=long      every cut and every bit, in as many processes as there are cores, instead of one in 1009
    TORTURE_SEED=n    the log of an earlier run
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.errors import DamagedLogError
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES
from penstock.storage.log.segments import SegmentLog
from tests.support.effort import LONG
from tests.support.samples import close_log, commit, logged, open_log, recover
from tests.support.spoilt_logs import Written, flipped

SEED = os.environ.get("TORTURE_SEED", "1")
LOG_BYTES = 64 << 10
SEGMENT_BYTES = LOG_BYTES + 4096
STEP = 1 if LONG else 1009  # A prime: all bits of a byte, and all parts of a batch, have their turn.
SLICE = 4096


class Sample(NamedTuple):
    """A log in one segment: its bytes without reserved room, its events, and where each batch ends."""

    data: bytes
    written: Written
    ends: list[tuple[int, int]]  # Bytes and events up to the end of each batch.


def make_sample(path: Path) -> Sample:
    chance, log = random.Random(SEED), open_log(path, SEGMENT_BYTES)
    recover(log)
    written: Written = []
    ends: list[tuple[int, int]] = [(SEGMENT_HEADER_BYTES, 0)]
    while ends[-1][0] < LOG_BYTES:
        for _ in range(chance.choice([1, 1, 2, 9])):
            body = chance.randbytes(chance.choice([0, 10, 700, 2000]))
            event = logged(len(written) + 1, body, key=b"k" * chance.randrange(3))
            written.append((event, log.append(event)))
        commit(log)
        ends.append((log.segments[-1].file_offset(log.end.position), len(written)))
    close_log(log)
    return Sample(log.segments[0].path.read_bytes()[: ends[-1][0]], written, ends)


class Spoiler:
    """Spoils one log again and again, and looks at what a recovery finds."""

    def __init__(self, sample: Sample, path: Path) -> None:
        self._sample = sample
        self._log = open_log(path, SEGMENT_BYTES)
        self._folder = self._log.directory.log
        self._path = self._folder / f"{0:020d}.log"

    def close(self) -> None:
        self._log.directory.close()

    def found(self, data: bytes) -> Written | None:
        """The events of a recovery; None if it is refused."""
        for left_behind in self._folder.iterdir():
            left_behind.unlink()
        self._path.write_bytes(data)
        log = SegmentLog(self._log.directory, segment_bytes=SEGMENT_BYTES)
        try:
            return recover(log)
        except DamagedLogError:
            return None
        finally:
            log.close()

    def check_cut(self, size: int) -> None:
        whole = max((count for end, count in self._sample.ends if end <= size), default=0)
        assert self.found(self._sample.data[:size]) == self._sample.written[:whole], f"cut at {size}"

    def check_flip(self, bit: int) -> None:
        sample, found = self._sample, self.found(flipped(self._sample.data, bit))
        in_last = bit // 8 >= sample.ends[-2][0]
        expected = sample.written[: sample.ends[-2][1]] if in_last else None
        assert found == expected, f"bit {bit}: {found and len(found)} of {len(sample.written)} events"


def spoil(sample: Sample, what: str, cases: range) -> int:
    """Try some cases, in memory, where syncing costs nothing."""
    logging.disable()  # Each torn tail is a warning, and here there are thousands.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        spoiler = Spoiler(sample, Path(path) / "data")
        check = spoiler.check_cut if what == "cut" else spoiler.check_flip
        try:
            for case in cases:
                check(case)
        finally:
            spoiler.close()
    return len(cases)


def slices(cases: int) -> Iterator[range]:
    every = range(0, cases, STEP)
    return (every[start : start + SLICE] for start in range(0, len(every), SLICE))


@pytest.mark.torture
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("what", ["cut", "flip"])
def test_nothing_wrong_ever_comes_back_from_a_spoilt_log(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = make_sample(tmp_path / "data")
    size = len(sample.data)
    cases = size if what == "cut" else 8 * size
    with ProcessPoolExecutor(os.cpu_count() if LONG else 1, get_context("spawn")) as pool:
        tried = sum(pool.map(partial(spoil, sample, what), slices(cases)))
    assert tried == len(range(0, cases, STEP))
    with capsys.disabled():
        print(f"\ntorture: seed {SEED}, {tried:,} of {cases:,} times a {what} of {size:,} bytes", end="", flush=True)
