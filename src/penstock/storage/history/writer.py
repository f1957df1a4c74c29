"""The process that writes the Object History, and the broker's handle to it.

LMDB's binding releases the interpreter's lock for every single key, so a thread of the broker would compete with the
event loop for it each time. A process of its own does not. It takes one batch at a time, ends when no more can come,
and has no other state: killed at any moment, it leaves a history that can be continued.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from struct import Struct
from typing import IO

import msgspec

from penstock.decoding import decode_msgpack
from penstock.errors import HistoryError
from penstock.storage.directory import sync
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import Changes

_LENGTH = Struct("<Q")
_NICE = 15  # Clients come first; what a broker with a core of its own leaves is enough.


class HistoryWriter:
    """For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, changes: Changes) -> None:
        """Write durably. If this raises, the next call starts a new process."""
        if self._process is None:
            self._process = _start(self._path)
        try:
            reply = _ask(self._process, msgspec.msgpack.encode(changes))
        except OSError as error:
            reply = str(error).encode()
        if reply != b"":
            self.close()
            reason = "the process that writes it has ended" if reply is None else reply.decode("utf-8", "replace")
            raise HistoryError(f"the Object History cannot be written: {reason}")

    def close(self) -> None:
        process, self._process = self._process, None
        if process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass  # It ended before it read everything.
            process.stdout.close()
            process.wait()


def _start(path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.storage.history.writer", str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(process: subprocess.Popen[bytes], batch: bytes) -> bytes | None:
    """The reply: empty if the batch is written, None if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    _send(process.stdin, batch)
    return _receive(process.stdout)


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = pipe.read(size)
    return data if len(data) == size else None


# ── In the process ────────────────────────────────────────────────────────────────────────────────────────────


def _be_the_writer(path: Path) -> None:
    """Write what comes until nothing more can come, because the broker has stopped or died."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Meant for the broker, which may have something left to write.
    os.nice(_NICE)
    gc.disable()  # There are no cycles here, and a batch is very many objects.
    stored: StoredVersions | None = None
    while batch := _receive(sys.stdin.buffer):
        try:
            stored = stored or _open(path)
            stored.write(decode_msgpack(batch, Changes))
            stored.bound_memory()
            reply = b""
        except (HistoryError, OSError) as error:
            reply = str(error).encode()
        try:
            _send(sys.stdout.buffer, reply)
        except BrokenPipeError:
            os._exit(0)  # The broker is gone.


def _open(path: Path) -> StoredVersions:
    path.mkdir(mode=0o700, exist_ok=True)
    stored = StoredVersions(path, writable=True)
    sync(path)
    sync(path.parent)
    return stored


if __name__ == "__main__":
    _be_the_writer(Path(sys.argv[1]))
