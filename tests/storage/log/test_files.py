"""A log read from its files, while it is written and without a broker."""

from __future__ import annotations

import pytest

from penstock.errors import DamagedLogError
from penstock.storage.directory import DataDirectory
from penstock.storage.log.files import LogFiles
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, segment_path
from penstock.storage.log.segments import SegmentLog
from tests.support.samples import close_log
from tests.support.small_segments import BATCH_BYTES, write


def test_files_show_what_the_log_shows_as_it_grows(log: SegmentLog) -> None:
    files = LogFiles(log.directory)
    assert files.view().end == (0, 0)
    for count in range(1, 9):
        write(log, 1, first=count)
        view = files.view()
        assert (view.parts, view.end) == (log.view().parts, log.view().end)


def test_a_segment_that_is_removed_is_gone_from_the_next_view(log: SegmentLog) -> None:
    write(log, 8)
    files = LogFiles(log.directory)
    assert files.view().earliest() == (0, 0)
    log.remove(log.segments[0])
    assert files.view().earliest() == log.start


def test_a_batch_that_is_being_written_is_not_shown(log: SegmentLog) -> None:
    write(log, 2)
    close_log(log)
    with log.segments[-1].path.open("r+b") as file:
        file.truncate(SEGMENT_HEADER_BYTES + 2 * BATCH_BYTES - 1)
    assert LogFiles(log.directory).view().end == (1, BATCH_BYTES)


def test_a_segment_that_is_being_made_is_not_shown(log: SegmentLog) -> None:
    write(log, 3)
    segment_path(log.directory.log, 3).write_bytes(bytes(100))
    assert LogFiles(log.directory).view().end == log.end


def test_damage_before_a_whole_batch_is_refused(log: SegmentLog) -> None:
    write(log, 3)
    path = log.segments[-1].path
    data = bytearray(path.read_bytes())
    data[SEGMENT_HEADER_BYTES + BATCH_BYTES + 70] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedLogError, match=f"damaged at byte {SEGMENT_HEADER_BYTES + BATCH_BYTES}"):
        LogFiles(log.directory).view()


def test_a_damaged_header_of_an_older_segment_is_refused(log: SegmentLog) -> None:
    write(log, 4)
    path = log.segments[0].path
    path.write_bytes(b"X" + path.read_bytes()[1:])
    with pytest.raises(DamagedLogError, match="the segment header is damaged"):
        LogFiles(DataDirectory(log.directory.path)).view()
