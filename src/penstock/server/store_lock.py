"""The lock of a store that several processes serve: nobody else may make or serve it meanwhile."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from penstock.storage.directory import check_files, in_use, is_locked, lock_holder, take_lock
from penstock.storage.plain_files import make_private

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05


def lock_store(data: Path, seconds: float) -> int:
    """The lock, released by closing the descriptor. Workers whose supervisor was killed finish what is under way:
    wait this long for them. Raises `InUseError`."""
    check_files(data)
    make_private(data)
    lock = take_lock(data / "lock")
    if lock is None:
        raise in_use(data, data / "lock")
    deadline = time.monotonic() + seconds
    for each in sorted((*data.glob("shards/*/lock"), *data.glob("worker-*/lock"))):
        check_files(each.parent)
        _await(each, deadline)
    return lock


def _await(lock: Path, deadline: float) -> None:
    said = ""
    while is_locked(lock):
        if time.monotonic() > deadline:
            raise in_use(lock.parent, lock)
        if said != (holder := lock_holder(lock)):
            said = holder
            logger.warning("waiting_for_directory", extra={"directory": str(lock.parent), "holder": holder})
        time.sleep(_LOOK_SECONDS)
