"""Takes snapshots, and frees the space of the log that is no longer needed.

A forked child writes the snapshot. It sees the state frozen at one offset while the broker continues. On the same
pass over all rows it counts how many messages of each part of the log are live, so that nothing is counted on the hot
path. Then the parts that are not needed are removed, and the live messages of a mostly dead part are carried forward,
so that the next snapshot finds it empty. A snapshot counts once its events are durable and the Object History on disk
has reached it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple, NoReturn

import msgspec

from penstock.broker.figures.measures import Samples, one
from penstock.broker.services.contract import Service, durable, in_thread, when_fetched
from penstock.broker.services.history_writes import HistoryWrites
from penstock.broker.services.live_messages import NOBODY, LiveMessage, LiveMessages
from penstock.broker.writer.port import ServicePort
from penstock.config.config import LogConfig
from penstock.decoding import decode_msgpack
from penstock.errors import DamagedExtentError, PenstockError
from penstock.limits import LOG_PER_SNAPSHOT_BYTE, REPLAY_BYTES_SHORT, SECOND_NS
from penstock.model.answers import Refused
from penstock.model.commands import Carry
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import Point
from penstock.storage.log.parts import Part
from penstock.storage.port import Section, SnapshotFacts

logger = logging.getLogger(__name__)

_LOOK_AROUND_SECONDS = 5.0
_REST_SECONDS_MAX = 0.002
_CARRIED_MAX = 50_000  # Messages carried forward after one snapshot.
_CARRIED_AT_ONCE = 32
_AT_REST = 8  # An idle broker takes a snapshot after an eighth of the usual bytes of log.
_RECLAIM_BYTES = 24 << 20  # This much unneeded log is worth a snapshot, which frees it.
_SPARSE = 0.5  # A part is emptied if less than this fraction of its messages is live.


class _Plan(NamedTuple):
    """The facts of one snapshot at the time of its fork."""

    at: Point
    time: Nanos
    parts: Sequence[Part]
    expendable: list[bool]  # By part: whether it is past retention and no recovery needs it.


class _Report(msgspec.Struct):
    """The child's findings: how many messages of each part are live, and which to carry forward."""

    alive: list[int]
    carry: list[LiveMessage]


class Snapshots(Service):
    def __init__(
        self,
        writer: ServicePort,
        settings: LogConfig,
        history: HistoryWrites | None = None,
        is_pinned: Callable[[], bool] = lambda: False,
        kept_from: Callable[[], int] = lambda: sys.maxsize,
        log_per_byte: int = LOG_PER_SNAPSHOT_BYTE,
    ) -> None:
        """Without `history`, snapshots contain the Object History too. While the log `is_pinned`, nothing of it is
        removed, and never what comes after the offset that it is `kept_from`. `log_per_byte`: how many bytes of log
        are at least written for each byte of a snapshot."""
        super().__init__(writer)
        self._is_pinned = is_pinned
        self._kept_from = kept_from
        self._log_per_byte = log_per_byte
        self._settings = settings
        self._history = history
        self._failed_at: Position | None = None  # Where the log ended when the last snapshot failed.
        self._last_seconds = 0.0  # How long the last snapshot took.
        self._one_at_a_time = asyncio.Lock()  # Two snapshots at a time could end in the wrong order.
        self.idle = asyncio.Event()  # No snapshot is being taken, and no messages are being carried forward.
        self.idle.set()
        writer.on_commit.append(self._after_commit)

    def start(self) -> None:
        self._failed_at = None
        super().start()

    async def run(self) -> None:
        # Nothing else frees it while there is no traffic, as after retention was lowered.
        await self._take_if(lambda: self._past_retention() >= self._interval())
        while not self.writer.failure:
            await self._take_if(lambda: self._grown() >= self._interval())
            before = self.writer.log.end.position
            woken = await self.rest(_LOOK_AROUND_SECONDS)
            if not woken and before == self.writer.log.end.position:
                # The broker is at rest: a snapshot frees the space of the last burst.
                await self._take_if(lambda: self._grown() >= self._interval() // _AT_REST)

    async def shorten_replay(self) -> None:
        """Take a snapshot if whoever opens the log next would have much to replay. If none can be taken, because the
        log is lost by now, they replay more."""
        try:
            await self._take_if(lambda: self._grown() > REPLAY_BYTES_SHORT and not self.writer.failure)
        except (OSError, PenstockError) as error:
            logger.warning("snapshot_failed", extra={"offset": self.writer.log.end.offset, "reason": str(error)})

    async def stop(self) -> None:
        """Take a snapshot at a clean stop, so that the next start replays nothing."""
        await super().stop()
        log = self.writer.log
        if self.newest is None or self.newest.offset != log.appended.offset:
            log.write_snapshot(self.writer.engine.sections(), log.appended, self.writer.now())
            log.publish_snapshot(log.appended.offset)

    def state(self) -> Iterable[tuple[str, Samples]]:
        if self.newest:
            yield "penstock_snapshot_age_seconds", one((self.writer.now() - self.newest.time) / SECOND_NS)
            yield "penstock_snapshot_bytes", one(self.newest.bytes)
        yield "penstock_snapshot_seconds", one(self._last_seconds)

    @property
    def newest(self) -> SnapshotFacts | None:
        snapshots = self.writer.log.snapshots
        return snapshots[0] if snapshots else None

    def _after_commit(self) -> None:
        if self.idle.is_set() and self._grown() >= self._interval():
            self.wake()

    def _grown(self) -> int:
        """Bytes of log since the last snapshot or failed attempt."""
        since = self.newest.position if self.newest else 0
        return self.writer.log.end.position - (since if self._failed_at is None else self._failed_at)

    def _interval(self) -> int:
        """Bytes of log between snapshots. A broker with many messages takes its large snapshots less often: they
        write at most a fraction of what the log does. One that keeps little of its log takes small ones more often,
        because each frees space."""
        settings = self._settings
        kept = settings.retention_bytes if settings.retention_seconds else 0
        least = min(settings.snapshot_bytes, max(kept, _RECLAIM_BYTES))
        return max(least, self._log_per_byte * self.newest.bytes if self.newest else 0)

    # ── A snapshot ──────────────────────────────────────────────────────────────────────────────────────────

    async def _take_if(self, is_due: Callable[[], bool]) -> None:
        """Take a snapshot if one is due once no other is being taken."""
        async with self._one_at_a_time:
            if not is_due():
                return
            self.idle.clear()
            try:
                await self._snapshot()
            except Exception:
                self._failed_at = self.writer.log.end.position  # Do not try again before the log has grown.
                raise
            finally:
                self.idle.set()

    async def _snapshot(self) -> None:
        """Take one snapshot, then free space."""
        began, log = time.monotonic(), self.writer.log
        parts, now = log.view().parts, self.writer.now()
        plan = _Plan(log.begin_snapshot(), now, parts, self._expendable(parts, now))
        noted = self._history.history.noted if self._history else 0
        events = durable(self.writer)
        if self._history:
            self._history.want(noted)
        found = await self._forked(plan)
        if found is None or isinstance(await events, Refused):
            return
        if self._history:
            await self._history.reach(noted)
        await in_thread(partial(log.publish_snapshot, plan.at.offset))
        self._last_seconds = time.monotonic() - began
        self._reclaim(plan, found.alive)
        await self._carry(found.carry)

    async def _forked(self, plan: _Plan) -> _Report | None:
        """Let a child write the snapshot. Returns its report; None if it failed."""
        child, pipe = _fork(self.writer, plan)
        try:
            report = await _read_all(pipe)
        except asyncio.CancelledError:
            os.kill(child, signal.SIGKILL)
            _wait_for(child)
            raise
        status = _wait_for(child)
        if not status:
            self._failed_at = None
            return decode_msgpack(report, _Report)
        self._failed_at = plan.at.position
        reason = report.decode(errors="replace")
        logger.error("snapshot_failed", extra={"offset": plan.at.offset, "status": status, "reason": reason})
        return None

    # ── Space ───────────────────────────────────────────────────────────────────────────────────────────────

    def _past_retention(self) -> int:
        """Bytes of log that a snapshot could free, if no living message is there."""
        parts = self.writer.log.view().parts
        expendable = self._expendable(parts, self.writer.now())
        return sum(
            following.base_position - part.base_position
            for (part, following), may_go in zip(pairwise(parts), expendable, strict=False)
            if may_go
        )

    def _expendable(self, parts: Sequence[Part], now: Nanos) -> list[bool]:
        """For each part, whether it is past the Event Log's retention, before the newest snapshot, which will be the
        spare one, and not wanted by other shards."""
        covered = min(self.newest.offset if self.newest else 0, self._kept_from())
        oldest_wanted = now - self._settings.retention_seconds * SECOND_NS
        first_wanted = self.writer.log.appended.position - self._settings.retention_bytes
        return [
            following.base_offset <= covered
            and (following.created <= oldest_wanted or following.base_position <= first_wanted)
            for following in parts[1:]
        ] + [False]  # The newest part is being written.

    def _reclaim(self, plan: _Plan, alive: list[int]) -> None:
        if self._is_pinned():
            return  # The next snapshot finds the same parts.
        for part, count, expendable in zip(plan.parts, alive, plan.expendable, strict=False):
            if expendable and not count:
                self.writer.log.remove(part)
                logger.info("segment_removed", extra={"first_offset": part.base_offset})

    async def _carry(self, live: list[LiveMessage]) -> None:
        """Write messages again at the end of the log: a few at a time, after the last ones are durable."""
        while live:
            stop = _CARRIED_AT_ONCE
            while stop < len(live) and live[stop].position == live[stop - 1].position:
                stop += 1  # Messages that share an extent are carried together, so that they still share it.
            found, live = await when_fetched(partial(self._read, live[:stop])), live[stop:]
            messages = [(*each[:3], extent) for each, extent in found if each.receiver == NOBODY]
            results = [
                (each.queue, each.sequence, each.receiver, each.position, result)
                for each, result in found
                if each.receiver != NOBODY
            ]
            if isinstance(await self.ask(Carry(messages, results)), Refused):
                return

    def _read(self, live: list[LiveMessage]) -> list[tuple[LiveMessage, bytes]]:
        """Read messages that still exist. A damaged one stays where it is, and its part with it."""
        read = lru_cache(maxsize=1)(self.writer.log.read)
        found: list[tuple[LiveMessage, bytes]] = []
        for each in live:
            try:
                if self._is_there(each):
                    found.append((each, read(each.position, each.size)))
            except DamagedExtentError as error:
                self.writer.report_damage(error)
        return found

    def _is_there(self, message: LiveMessage) -> bool:
        """Whether a message still exists at its position."""
        queue = self.writer.engine.queues.get(message.queue)
        if queue is None:
            return False
        if message.receiver != NOBODY:
            return queue.groups.holds(message.receiver, message.sequence, message.position)
        row = queue.rows.get(message.sequence)
        return row is not None and row.position == message.position


def _fork(writer: ServicePort, plan: _Plan) -> tuple[int, int]:
    """Fork the child that writes the snapshot. Returns its process id, and the pipe to read its report from."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # The child only reads, writes a file and exits.
        child = os.fork()
    if child == 0:
        _be_the_child(write_end, writer, plan)
    os.close(write_end)
    return child, read_end


def _wait_for(child: int) -> int:
    """Wait for a child to end. Returns its status."""
    return os.waitpid(child, 0)[1]


# ── In the child ──────────────────────────────────────────────────────────────────────────────────────────


def _be_the_child(write_end: int, writer: ServicePort, plan: _Plan) -> NoReturn:
    """Write the snapshot, report, and exit."""
    status = 1
    try:
        gc.disable()
        os.nice(5)  # Clients come first. But without any processor time for snapshots the log would grow without end.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Connections that the broker closes must not stay open here.
        os.closerange(3, write_end)
        os.closerange(write_end + 1, os.sysconf("SC_OPEN_MAX"))
        live, sections = LiveMessages([part.base_position for part in plan.parts]), writer.engine.sections
        writer.log.write_snapshot(_at_ease(live.watch(sections())), plan.at, plan.time)
        sparse = _sparse(plan, live.alive)
        carry = live.living_in(_at_ease(sections()), sparse, _CARRIED_MAX) if any(sparse) else []
        _write_all(write_end, msgspec.msgpack.encode(_Report(live.alive, carry)))
        status = 0
    except BaseException:
        _write_all(write_end, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _at_ease(sections: Iterable[Section]) -> Iterator[Section]:
    """Pause after each piece as long as it took. On a machine with one core, clients then wait for one piece at most,
    and not for a time slice of the scheduler."""
    began = time.perf_counter()
    for section in sections:
        yield section
        time.sleep(min(time.perf_counter() - began, _REST_SECONDS_MAX))
        began = time.perf_counter()


def _sparse(plan: _Plan, alive: list[int]) -> list[bool]:
    """For each part, whether it is expendable and mostly dead: it has few live messages for its number of records."""
    records = [following.base_offset - part.base_offset for part, following in pairwise(plan.parts)]
    return [
        expendable and 0 < count < _SPARSE * total
        for expendable, count, total in zip(plan.expendable, alive, [*records, 0], strict=True)
    ]


async def _read_all(pipe: int) -> bytes:
    """Everything up to the end of a pipe."""
    running = asyncio.get_running_loop()
    received, ended = bytearray(), running.create_future()

    def on_readable() -> None:
        data = os.read(pipe, 1 << 16)
        received.extend(data)
        if not data and not ended.done():
            ended.set_result(None)

    running.add_reader(pipe, on_readable)
    try:
        await ended
    finally:
        running.remove_reader(pipe)
        os.close(pipe)
    return bytes(received)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
