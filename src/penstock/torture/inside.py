"""A broker whose disk and clock fail on command: `python -m penstock.torture.inside STATE serve …`.

It replaces the calls with which the broker writes, syncs and reads the time, and then runs the command line. Commands
come as lines of JSON on standard input; the first of them is the argument STATE.
"""

from __future__ import annotations

import errno
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from penstock.decoding import decode_json


class State(msgspec.Struct):
    """What fails now."""

    clock: float = 0.0  # Seconds that are added to the system clock.
    full: bool = False  # Writes fail: the disk is full.
    sync_fails: int = 0  # The next so many syncs fail.
    torn: float | None = None  # The next write stops after this share of its bytes, and the process dies.


class Faults:
    def __init__(self, state: State) -> None:
        self.state = state
        self._pwrite, self._fdatasync, self._fsync = os.pwrite, os.fdatasync, os.fsync
        self._fallocate, self._time_ns, self._time = os.posix_fallocate, time.time_ns, time.time

    def install(self) -> None:
        vars(os).update(
            pwrite=self.pwrite, fdatasync=self.fdatasync, fsync=self.fsync, posix_fallocate=self.posix_fallocate
        )
        vars(time).update(time_ns=self.time_ns, time=self.time)

    def listen(self) -> None:
        with Path("/dev/stdin").open("rb", buffering=0) as commands:  # A buffer would have a lock at the end.
            for line in commands:
                self.state = decode_json(line, State)
        os.kill(os.getpid(), signal.SIGKILL)  # The torture has ended: leave no broker behind.

    def pwrite(self, file: int, data: Any, at: int) -> int:
        self._check_space()
        if self.state.torn is not None:
            self._pwrite(file, memoryview(data)[: int(len(data) * self.state.torn)], at)
            os.kill(os.getpid(), signal.SIGKILL)
        return self._pwrite(file, data, at)

    def posix_fallocate(self, file: int, at: int, size: int) -> None:
        self._check_space()
        self._fallocate(file, at, size)

    def fdatasync(self, file: int) -> None:
        self._check_sync()
        self._fdatasync(file)

    def fsync(self, file: int) -> None:
        self._check_sync()
        self._fsync(file)

    def _check_space(self) -> None:
        if self.state.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _check_sync(self) -> None:
        if self.state.sync_fails:
            self.state.sync_fails -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def time_ns(self) -> int:
        return self._time_ns() + int(self.state.clock * 1_000_000_000)

    def time(self) -> float:
        return self._time() + self.state.clock


def main() -> None:
    faults = Faults(decode_json(sys.argv[1], State))
    faults.install()
    threading.Thread(target=faults.listen, name="faults", daemon=True).start()
    sys.argv = ["penstock", *sys.argv[2:]]
    runpy.run_module("penstock.cli", run_name="__main__")


if __name__ == "__main__":
    main()
