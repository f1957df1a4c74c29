"""Logs that several tests of storage use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage.log.segments import SegmentLog
from tests.support.samples import close_log, open_log, recover
from tests.support.small_segments import SEGMENT_BYTES


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    opened = open_log(tmp_path, SEGMENT_BYTES)
    recover(opened)
    yield opened
    close_log(opened)


@pytest.fixture(scope="module")
def fast_path() -> Iterator[Path]:
    """Thousands of logs are opened here: in memory, where syncing costs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)
