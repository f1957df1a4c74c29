"""A log on a disk that fails and loses power, in virtual time: for simulations.

Commits take time, and may fail at the write (an error, a full disk) or at the sync. Batches that were synced always
stay. A crash leaves any number of the first bytes of the batch that was being written: none, all, or a torn piece,
which the next recovery cuts. A bit in a batch before the snapshot may flip (`rot`). The seed decides it all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from penstock.errors import DamagedExtentError, LogFailedError
from penstock.limits import SECOND_NS
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.log.batch import HEADER_BYTES, Header, is_whole, read_header
from penstock.storage.memory import MemoryLog, MemorySnapshot
from penstock.storage.port import Progress, Recovered

After = Callable[[Nanos, Callable[[], None]], object]  # Calls back when this much virtual time has passed.


class Faults(NamedTuple):
    """How slow the disk is, and how likely each failure of a commit."""

    write_ns_max: Nanos = SECOND_NS // 1000
    sync_ns_max: Nanos = SECOND_NS // 100
    write_fails: float = 0.0
    disk_is_full: float = 0.0
    sync_fails: float = 0.0


def rot(durable: list[bytes], snapshot_offset: int, random: Random) -> Position | None:
    """Flip one bit in the heap of a batch that a snapshot covers; the batch's position, or None if there is none."""
    covered = [
        (index, header)
        for index, data in enumerate(durable)
        if (header := read_header(data)) and header.end.offset <= snapshot_offset
    ]
    sound = [
        (at, header) for at, header in covered if header.heap_bytes and is_whole(header, durable[at][HEADER_BYTES:])
    ]
    if not sound:
        return None
    index, header = random.choice(sound)
    data = bytearray(durable[index])
    data[HEADER_BYTES + random.randrange(header.heap_bytes)] ^= 1 << random.randrange(8)
    durable[index] = bytes(data)
    return header.base_position


class FaultyLog(MemoryLog):
    """`durable` is the disk: give the same list to the log that is opened after a crash."""

    def __init__(
        self,
        after: After,
        random: Random,
        faults: Faults = Faults(),  # noqa: B008 (a tuple does not change)
        durable: list[bytes] | None = None,
        snapshot: MemorySnapshot | None = None,
    ) -> None:
        super().__init__(durable, snapshot)
        self.faults = faults
        self.written_offset = 0  # Everything before it has been handed to the operating system.
        self._after = after
        self._random = random
        self._under_way: bytes | None = None
        self._failed: OSError | None = None
        self._rotten: set[Position] = set()  # Batches that are damaged, by their positions.
        self._gone = False  # Crashed or abandoned: what was still to happen does not.

    def recover(self) -> Recovered:
        self._cut_torn_tail()
        for data in self.durable:
            header = read_header(data)
            assert header is not None
            self.written_offset = header.end.offset
            if not is_whole(header, data[HEADER_BYTES:]):
                self._rotten.add(header.base_position)
        return super().recover()

    def _cut_torn_tail(self) -> None:
        """A bad batch that a snapshot covers was synced once: it is damaged, not torn."""
        if not self.durable:
            return
        header = read_header(self.durable[-1])
        known = self.snapshot.facts.offset if self.snapshot else 0
        if header and (header.end.offset <= known or is_whole(header, self.durable[-1][HEADER_BYTES:])):
            return
        del self.durable[-1]

    def commit(self, now: Nanos, progress: Progress) -> None:
        if self._failed:
            raise LogFailedError("the log has failed") from self._failed
        assert self._under_way is None, "one commit at a time"
        self._under_way = self._seal(now)
        end = self._batch.base_offset
        self._later(self.faults.write_ns_max, lambda: self._write(end, progress))

    def _write(self, end: int, progress: Progress) -> None:
        if self._random.random() < self.faults.write_fails:
            self._fail(OSError(errno.EIO, "the write failed"), progress)
        elif self._random.random() < self.faults.disk_is_full:
            self._fail(OSError(errno.ENOSPC, "the disk is full"), progress)
        else:
            self.written_offset = end
            progress(Stage.WRITE)
            self._later(self.faults.sync_ns_max, lambda: self._sync(progress))

    def _sync(self, progress: Progress) -> None:
        if self._random.random() < self.faults.sync_fails:
            self._fail(OSError(errno.EIO, "the sync failed"), progress)
        else:
            assert self._under_way is not None
            self.durable.append(self._under_way)
            self._under_way = None
            progress(Stage.SYNC)

    def _fail(self, error: OSError, progress: Progress) -> None:
        self._failed = error
        progress(error)

    def _later(self, delay_ns_max: Nanos, callback: Callable[[], None]) -> None:
        def unless_gone() -> None:
            if not self._gone:
                callback()

        self._after(self._random.randint(0, delay_ns_max), unless_gone)

    def read(self, position: Position, size: int) -> bytes:
        assert not self._gone, "a log that is gone cannot be read"
        return super().read(position, size)

    def _read_batch(self, header: Header, data: bytes, start: int, size: int) -> bytes:
        if header.base_position in self._rotten:
            damaged = (header.base_position, header.base_position + len(data))
            raise DamagedExtentError(f"the batch at position {header.base_position} is damaged", [damaged])
        return super()._read_batch(header, data, start, size)

    @property
    def damaged(self) -> list[tuple[Position, Position]]:
        return [(part.base_position, part.end()) for part in self.view().parts if part.base_position in self._rotten]

    def _written(self) -> list[bytes]:
        return self.durable if self._under_way is None else [*self.durable, self._under_way]

    def crash(self) -> None:
        """The power fails. The batch that was being written may be whole, torn or missing afterwards."""
        self._gone = True
        if self._under_way is not None:
            size = len(self._under_way)
            survives = self._random.choice([0, self._random.randint(0, size), size])
            if survives:
                self.durable.append(self._under_way[:survives])
            self._under_way = None

    def abandon(self) -> None:
        """Cut off what was not known to be durable."""
        self._gone = True
        self._under_way = None

    def close(self) -> None:
        self._gone = True
