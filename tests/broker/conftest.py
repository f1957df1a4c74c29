"""The log of a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage.directory import DataDirectory
from penstock.storage.log.segments import SegmentLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    log = SegmentLog(directory, segment_bytes=64 << 10)
    assert list(log.recover().events) == []
    yield log
    log.close()
    directory.close()
