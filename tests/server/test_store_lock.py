"""The lock of a store that several processes serve."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InUseError
from penstock.server.store_lock import lock_store
from tests.support.waiting import wait_until

HOLD = """
import sys; from pathlib import Path; from penstock.storage.directory import take_lock
path = Path(sys.argv[1]); path.parent.mkdir(parents=True); take_lock(path); print(flush=True); sys.stdin.read()
"""


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a shard of the store, and ends when its input does."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "shards/0000/lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def test_a_store_waits_for_workers_that_are_about_to_end(
    orphan: subprocess.Popen[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Ending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert orphan.stdin
            orphan.stdin.close()

    log = logging.getLogger("penstock.server.store_lock")
    log.addHandler(ending := Ending())
    os.close(lock_store(tmp_path, 60))
    log.removeHandler(ending)
    (entry,) = caplog.records
    assert entry.message == "waiting_for_directory"
    assert entry.holder.startswith(f"process {orphan.pid} since 20")  # type: ignore[attr-defined]
    assert wait_until(lambda: orphan.poll() == 0, "it has ended")


def test_a_store_does_not_wait_for_ever(orphan: subprocess.Popen[bytes], tmp_path: Path) -> None:
    with pytest.raises(InUseError, match=f"shards/0000 is in use by process {orphan.pid} since 20"):
        lock_store(tmp_path, 0)


def test_a_store_with_a_supervisor_is_refused_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "data/lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        with pytest.raises(InUseError, match=f"data is in use by process {process.pid} since 20"):
            lock_store(tmp_path / "data", 60)
