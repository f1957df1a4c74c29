"""Snapshots, and the space that they give back.

A snapshot is written by a forked child, which sees the state frozen at one offset while the broker goes on. The same
walk over all rows tells how much of each segment is still alive, so that nothing is counted on the hot path. When the
snapshot counts, segments that nobody needs any more are removed, and the living messages of a mostly dead one are
carried forward, so that the next snapshot finds it empty. The Object History is no part of a snapshot, unless it is
all in memory: a snapshot counts when what is on the disk has come as far.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, NoReturn, Protocol

import msgspec

from penstock.errors import DamagedExtentError
from penstock.limits import SECOND_NS
from penstock.model.commands import Carry
from penstock.model.values import Nanos, Position
from penstock.server.services.history import Remembering
from penstock.server.services.segment_use import NOBODY, Living, Tally
from penstock.server.writer.port import ServicePort
from penstock.storage.log.batch import Point
from penstock.storage.log.parts import Part
from penstock.storage.port import Log, Section, SnapshotFacts

logger = logging.getLogger(__name__)

_REST_SECONDS_MAX = 0.002
_CARRIED_MAX = 50_000  # Messages, after one snapshot.
_CARRIED_AT_ONCE = 32
_AT_REST = 8  # A broker at rest takes a snapshot after an eighth of the log that it takes at work.
_COSTS_AT_MOST = 4  # Bytes of log for each byte of a snapshot.
_RECLAIM_BYTES = 24 << 20  # Of log that nobody wants: worth a snapshot, which frees it.
_SPARSE = 0.5  # A segment with less than this part of its messages alive is worth emptying.


class SpaceSettings(Protocol):
    @property
    def snapshot_bytes(self) -> int: ...
    @property
    def retention_seconds(self) -> int: ...
    @property
    def retention_bytes(self) -> int: ...


class _Round(NamedTuple):
    """One snapshot, from its fork to its end."""

    child: int
    began: float
    at: Point
    time: Nanos
    noted: Position  # It counts only when the Object History on the disk has reached this.
    parts: Sequence[Part]
    expendable: list[bool]  # By part: no reader has a right to it any more, and no recovery needs it.


class _Report(msgspec.Struct):
    """What the child tells: how many messages of each segment are alive, and which to carry forward."""

    alive: list[int]
    carry: list[Living]


class Housekeeper:
    def __init__(
        self, loop: ServicePort, log: Log, settings: SpaceSettings, remembering: Remembering | None = None
    ) -> None:
        """Without `remembering`, snapshots hold the Object History too."""
        self._loop = loop
        self._log = log
        self._settings = settings
        self._remembering = remembering
        self._round: _Round | None = None
        self._report: bytes | None = None  # Of a round whose last events, or versions, are not durable yet.
        self._carrying = False
        self._rested_at: Position = 0
        self._failed_at: Position | None = None  # Where the log ended when the last snapshot failed.
        self.last_seconds = 0.0  # How long the last snapshot took.

    def after_commit(self) -> None:
        """Called after each commit: is it time for a snapshot?"""
        if self._report is not None:
            self._conclude()
        elif self._round is None and not self._carrying and self._grown() >= self._interval():
            self._begin()

    def look_around(self) -> None:
        """Called now and then: a broker that has come to rest gives back the space of its last burst."""
        at_rest = self._rested_at == self._log.end.position
        self._rested_at = self._log.end.position
        if at_rest and self._round is None and self._grown() >= self._interval() // _AT_REST:
            self._begin()

    @property
    def newest(self) -> SnapshotFacts | None:
        return self._log.snapshots[0] if self._log.snapshots else None

    @property
    def under_way(self) -> bool:
        """Is a snapshot being taken, or what it found carried forward?"""
        return self._round is not None or self._carrying

    def _grown(self) -> int:
        """Bytes of log since the last snapshot, or since one was tried in vain."""
        since = self.newest.position if self.newest else 0
        return self._log.end.position - (since if self._failed_at is None else self._failed_at)

    def _interval(self) -> int:
        """A deep broker takes its large snapshots less often: they cost at most a quarter of what the log does. One
        that keeps little of its log takes small ones more often, because each gives space back."""
        settings = self._settings
        kept = settings.retention_bytes if settings.retention_seconds else 0
        least = min(settings.snapshot_bytes, max(kept, _RECLAIM_BYTES))
        return max(least, _COSTS_AT_MOST * self.newest.bytes if self.newest else 0)

    # ── A snapshot ──────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        read_end, write_end = os.pipe()
        log, now = self._log, self._loop.now()
        parts = log.view().parts
        expendable = self._expendable(parts, now)
        noted = self._remembering.history.noted if self._remembering else 0
        ongoing = _Round(0, time.monotonic(), log.appended, now, noted, parts, expendable)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # The child only reads, writes a file and exits.
            child = os.fork()
        if child == 0:
            _be_the_child(write_end, self._loop, log, ongoing)
        os.close(write_end)
        self._round = ongoing._replace(child=child)
        if self._remembering:
            self._remembering.reach(noted)
        received = bytearray()
        running = asyncio.get_running_loop()

        def on_readable() -> None:
            data = os.read(read_end, 1 << 16)
            received.extend(data)
            if not data:
                running.remove_reader(read_end)
                os.close(read_end)
                self._finish(bytes(received))

        running.add_reader(read_end, on_readable)

    def _finish(self, report: bytes) -> None:
        """The child has ended."""
        ongoing = self._round
        if ongoing is None:
            return  # Given up.
        _, status = os.waitpid(ongoing.child, 0)
        self._failed_at = ongoing.at.position if status else None
        if status:
            self._round = None
            reason = report.decode(errors="replace")
            logger.error("snapshot_failed", extra={"offset": ongoing.at.offset, "status": status, "reason": reason})
        elif self._serves():
            self._report = report
            self._conclude()

    def _conclude(self) -> None:
        """Let the snapshot count, once every event in it is durable, and the Object History is as far."""
        ongoing, report = self._round, self._report
        if ongoing is None or report is None or self._log.end.offset < ongoing.at.offset:
            return
        if self._remembering and self._remembering.history.reached < ongoing.noted:
            return
        self._round = self._report = None
        self._log.publish_snapshot(ongoing.at.offset)
        self.last_seconds = time.monotonic() - ongoing.began
        tally = msgspec.msgpack.decode(report, type=_Report)
        self._reclaim(ongoing, tally.alive)
        self._carry(tally.carry)

    def _serves(self) -> bool:
        """Is this log still the one the broker writes?"""
        return not self._loop.failure and self._loop.log is self._log

    def final_snapshot(self) -> None:
        """The state at a clean stop, so that the next start replays nothing."""
        self.stop()
        log = self._log
        if self.newest is None or self.newest.offset != log.appended.offset:
            log.write_snapshot(self._loop.engine.sections(), log.appended, self._loop.now())
            log.publish_snapshot(log.appended.offset)

    def stop(self) -> None:
        """Give up a snapshot that is being written."""
        ongoing, report = self._round, self._report
        self._round = self._report = None
        if ongoing and report is None:
            os.kill(ongoing.child, signal.SIGKILL)
            os.waitpid(ongoing.child, 0)

    # ── Space ───────────────────────────────────────────────────────────────────────────────────────────────

    def _expendable(self, parts: Sequence[Part], now: Nanos) -> list[bool]:
        """Parts past the Event Log's retention and before today's newest snapshot, which will be the spare."""
        covered = self.newest.offset if self.newest else 0
        oldest_wanted = now - self._settings.retention_seconds * SECOND_NS
        first_wanted = self._log.appended.position - self._settings.retention_bytes
        return [
            following.base_offset <= covered
            and (following.created <= oldest_wanted or following.base_position <= first_wanted)
            for following in parts[1:]
        ] + [False]  # The newest part is being written.

    def _reclaim(self, ongoing: _Round, alive: list[int]) -> None:
        for part, count, expendable in zip(ongoing.parts, alive, ongoing.expendable, strict=False):
            if expendable and not count:
                self._log.remove(part)
                logger.info("segment_removed", extra={"first_offset": part.base_offset})

    def _carry(self, living: list[Living]) -> None:
        """A few at a time, each batch when the last one is durable, so that nobody waits for it."""
        self._carrying = bool(living) and self._serves()
        if self._carrying:
            stop = _CARRIED_AT_ONCE
            while stop < len(living) and living[stop].position == living[stop - 1].position:
                stop += 1  # Those that share an extent are carried together, so that they still do.
            now, later = living[:stop], living[stop:]
            there = self._read(now)
            messages = [(*each[:3], extent) for each, extent in there if each.receiver == NOBODY]
            results = [
                (each.queue, each.sequence, each.receiver, each.position, result)
                for each, result in there
                if each.receiver != NOBODY
            ]
            self._loop.submit(Carry(messages, results), lambda _: self._carry(later))

    def _read(self, living: list[Living]) -> list[tuple[Living, bytes]]:
        """What is damaged is left where it is, and its segment stays for it."""
        read = lru_cache(maxsize=1)(self._log.read)
        there: list[tuple[Living, bytes]] = []
        for each in living:
            try:
                if self._is_there(each):
                    there.append((each, read(each.position, each.size)))
            except DamagedExtentError as error:
                self._loop.report_damage(error)
        return there

    def _is_there(self, message: Living) -> bool:
        """A message that has gone in the meantime may have taken its segment with it."""
        queue = self._loop.engine.queues.get(message.queue)
        if queue is None:
            return False
        if message.receiver != NOBODY:
            return queue.groups.holds(message.receiver, message.sequence, message.position)
        row = queue.rows.get(message.sequence)
        return row is not None and row.position == message.position


# ── In the child ──────────────────────────────────────────────────────────────────────────────────────────


def _be_the_child(write_end: int, loop: ServicePort, log: Log, ongoing: _Round) -> NoReturn:
    """Write the snapshot and report."""
    status = 1
    try:
        gc.disable()
        os.nice(5)  # Clients come first; but a snapshot that gets no time at all lets the log grow without end.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Connections that the broker closes must not stay open here.
        os.closerange(3, write_end)
        os.closerange(write_end + 1, os.sysconf("SC_OPEN_MAX"))
        tally = Tally([part.base_position for part in ongoing.parts])
        log.write_snapshot(_at_ease(tally.watch(loop.engine.sections())), ongoing.at, ongoing.time)
        sparse = _sparse(ongoing, tally.alive)
        carry = tally.living_in(_at_ease(loop.engine.sections()), sparse, _CARRIED_MAX) if any(sparse) else []
        _write_all(write_end, msgspec.msgpack.encode(_Report(tally.alive, carry)))
        status = 0
    except BaseException:
        _write_all(write_end, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _at_ease(sections: Iterable[Section]) -> Iterator[Section]:
    """Rest after each piece as long as it took: on a broker with one core, whoever waits for it waits for a piece at
    most, and not for a time slice of the scheduler."""
    began = time.perf_counter()
    for section in sections:
        yield section
        time.sleep(min(time.perf_counter() - began, _REST_SECONDS_MAX))
        began = time.perf_counter()


def _sparse(ongoing: _Round, alive: list[int]) -> list[bool]:
    """Expendable parts that are mostly dead: few living messages for all the records in them."""
    records = [following.base_offset - part.base_offset for part, following in pairwise(ongoing.parts)]
    return [
        expendable and 0 < count < _SPARSE * total
        for expendable, count, total in zip(ongoing.expendable, alive, [*records, 0], strict=True)
    ]


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
