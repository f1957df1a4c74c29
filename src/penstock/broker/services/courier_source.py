"""What this shard owes to others: answers them when they ask, and keeps the log for those that have not.

Messages for topics are found in the log. The newest are also in memory, so that the log is read once for all shards;
one that is behind reads the log itself, a piece in each turn of the event loop. Only what is durable is sent.

What it guarantees: whatever a record of this log promises to another shard is given to it, in order, until that shard
has logged how far it has come; no segment goes that somebody still needs.

Why so: the promise is the record itself, so it cannot be lost between two steps, and nothing is kept twice. The
shard that takes asks (`courier_target.py`); one that is slow is owed more and is sent no more.

What would break it: to send what is not durable (after a crash the other shard would have what this one never said);
to let a segment go by its age alone; to promise something that cannot be found in the log by its offset.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.broker.figures.measures import Samples
from penstock.broker.services.channels_elsewhere import ChannelsElsewhere
from penstock.broker.services.contract import Service, answer_to, when_fetched
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.parcels import TextOf, Wanted, bytes_of, copy_of, moved, versions_by_shard
from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import Reply, ServicePort
from penstock.engine.couriers import ANYWHERE
from penstock.errors import DamagedExtentError, DamagedLogError, LogFailedError, PenstockError, Reason
from penstock.limits import (
    COURIER_BYTES_MAX,
    COURIER_MESSAGES_MAX,
    COURIER_PROGRESS_BYTES,
    COURIER_PROGRESS_RECORDS,
    COURIER_READ_BYTES,
    COURIER_RECENT_BYTES,
    SECOND_NS,
    VERSION_BYTES,
    VERSIONS_GATHER_SECONDS,
)
from penstock.model.answers import Owed, OwedList, Parcel, Parcels, Refused
from penstock.model.courier_commands import CollectParcels, ListOwed, NoteTaken
from penstock.model.events import Logged
from penstock.model.values import Cursor as Reached
from penstock.model.values import LearnedVersion
from penstock.storage.log.batch import Batches, Point
from penstock.storage.log.parts import part_at
from penstock.storage.log.routed import NewVersions, Promised, promised_in
from penstock.storage.log.view import Cursor, View

logger = logging.getLogger(__name__)

_GIVEN_UP = Refused(Reason.UNAVAILABLE, "this process does not serve the shard any more")


Versions = dict[int, list[LearnedVersion]]  # By the shard that answers for their keys.


class _Promise(NamedTuple):
    """What other shards are to hear of, and where its batch ends: copies with the same topics, or versions."""

    end: int
    messages: Sequence[Logged]
    options: int
    versions: Versions

    @property
    def size(self) -> int:
        return sum([len(each.body) for each in self.messages]) + sum(map(_bytes_of, self.versions.values()))


def _bytes_of(versions: list[LearnedVersion]) -> int:
    return sum([VERSION_BYTES + len(each.key) for each in versions])


class _Owed(NamedTuple):
    """What one shard gets of some promises, and the offset up to which they were looked through."""

    copies: list[Parcel]
    versions: list[LearnedVersion]
    to: int

    def __bool__(self) -> bool:
        return bool(self.copies or self.versions)


class _Promises:
    """Reads promises from the log."""

    def __init__(self, text: TextOf) -> None:
        self._text = text
        self.shards = ShardMap()

    def next(self, cursor: Cursor, view: View) -> tuple[list[_Promise], int]:
        """Those in the next piece of the log, and the offset where that ends; 0 at the end of the view."""
        batches = _batches(cursor, view)
        found = [
            self._made(header.end.offset, each)
            for header, payload in batches
            for each in promised_in(header, payload)
        ]
        return found, batches[-1][0].end.offset if batches else 0

    def _made(self, end: int, promised: Promised | NewVersions) -> _Promise:
        if isinstance(promised, NewVersions):
            return _Promise(end, (), 0, versions_by_shard(promised, self.shards, self._text))
        return _Promise(end, *promised, {})


def _batches(cursor: Cursor, view: View) -> Batches:
    """The next piece of the log. Damaged batches are skipped: what they promised is lost, and nothing else."""
    try:
        return cursor.read(view, COURIER_READ_BYTES)
    except DamagedLogError as error:
        logger.critical("courier_skips", extra={"reason": str(error)})
        sound, _ = cursor.read_sound(view, view.end.position)
        return sound or _batches(cursor, view)


class _Recent:
    """The newest promises, from one offset of the log up to its durable end."""

    def __init__(self, writer: ServicePort, promises: _Promises) -> None:
        self._writer = writer
        self._in_log = promises
        self.reset()

    def reset(self) -> None:
        """Begin at the end of the log. Some promises after it may have been made, which are not durable yet."""
        self._engine, log = self._writer.engine, self._writer.log
        self.start, self.end = log.end.offset, log.end
        self._promises: list[_Promise] = []
        self._bytes = 0
        promised = self._engine.couriers.promised
        self._before = promised if promised < log.end.position else ANYWHERE  # The newest promise before the start.
        self._found: int | None = None  # How many of all that were made; None: not known yet.

    def follow(self) -> None:
        """Begin anew if a failed log was replaced by another."""
        if self._writer.engine is not self._engine:
            self.reset()

    def read_on(self) -> bool:
        """Look through what has become durable. Whether there is something."""
        log, made = self._writer.log, self._writer.engine.couriers.routed
        if self._found == made:
            self.end = log.end  # All that were made are found, so the log need not be read.
            return False
        cursor, view, found = Cursor(self.end.position), log.view(), 0
        try:
            while (piece := self._in_log.next(cursor, view))[1]:
                self._add(piece[0])
                found += len(piece[0])
        finally:
            cursor.close()
        self.end = view.end
        if self._found is not None:
            self._found += found
        elif log.appended == view.end:  # All that were made are durable.
            self._found = made
        return found > 0

    def _add(self, found: list[_Promise]) -> None:
        self._promises += found
        self._bytes += sum([each.size for each in found])
        if self._bytes > COURIER_RECENT_BYTES:
            self._forget(len(self._promises) // 2)

    def has_all_after(self, offset: int) -> bool:
        """Whether no promise was made between an offset and the start, as far as the parts of the log show."""
        if offset >= self.start or not self._before:
            return True
        if self._before == ANYWHERE:
            return False
        view = self._writer.log.view()
        return offset >= min(view.offset_after(part_at(view.parts, self._before)), self.start)

    def _forget(self, count: int) -> None:
        """Forget the oldest, whole batches of them."""
        self._before = ANYWHERE
        self.start = self._promises[count].end
        count = bisect_right(self._promises, self.start, key=_end_of)
        self._bytes -= sum([each.size for each in self._promises[:count]])
        del self._promises[:count]

    def after(self, offset: int) -> list[_Promise]:
        return self._promises[bisect_right(self._promises, offset, key=_end_of) :]


def _end_of(promise: _Promise) -> int:
    return promise.end


class CourierSource(Service):
    def __init__(self, writer: ServicePort, reads: LogReads) -> None:
        super().__init__(writer)
        self._names = reads.names
        self._promises = _Promises(reads.names.name)
        self._home: Callable[[str], int] = lambda _: 0
        self.others: frozenset[int] = frozenset()
        self._reached: dict[int, Reached] = {}  # By shard: its cursor, as far as it has asked since the start.
        self._moved_at: dict[int, int] = {}  # By shard: where the log ended when its cursor had moved.
        self._has: dict[int, int] = {}  # By shard: it has all that it wants from before this offset.
        self._had = asyncio.Event()  # Replaced whenever one has more.
        self._recent = _Recent(writer, self._promises)
        self.channels = ChannelsElsewhere()
        self._committed = asyncio.Event()  # Replaced after each commit that someone may wait for.
        self._tasks: set[asyncio.Task[None]] = set()
        self._policies: dict[int, str] = {}  # By the number of a queue here: its dead-letter queue.
        self._named: dict[int, list[str]] = {}  # By shard: its queues that are among them, as far as asked for.
        self._told: dict[int, list[str]] = {}  # By shard: the same, as it knows them.

    def connect(self, shard: int, shards: ShardMap) -> None:
        """This is one of several shards, and others will ask."""
        self._home, self._promises.shards = shards.of_name, shards
        self.others = frozenset(range(shards.shards)) - {shard}
        self.writer.on_commit.append(self._after_commit)
        self.writer.on_queue.append(self._after_queue)

    def _after_queue(self, number: int) -> None:
        before = self._policies.get(number)
        self._note_policy(number)
        if self._policies.get(number) != before:
            self._named.clear()
            self._wake_all()

    def _note_policy(self, number: int) -> None:
        queue = self.writer.engine.queues.get(number)
        if queue and (policy := queue.settings.redrive_policy):
            self._policies[number] = policy.dead_letter_queue
        else:
            self._policies.pop(number, None)

    def start(self) -> None:
        """Also when a failed log was replaced: what was not durable is not owed, and what is may be more than those
        who wait know of."""
        self._recent.follow()
        engine, self._policies, self._named = self.writer.engine, {}, {}
        engine.channels_elsewhere = self.channels
        for number in engine.queues:
            self._note_policy(number)
        self._wake_all()
        super().start()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await super().close()

    async def stop(self) -> None:
        """The others get no answer any more; the connection to this process is lost soon."""
        await self.close()

    def kept_from(self) -> int:
        """The offset from which the log must be kept, because others have not asked for what comes after it."""
        if not self.others:
            return sys.maxsize
        return min([self._reached[each].offset if each in self._reached else 0 for each in self.others])

    async def all_have(self, offset: int) -> None:
        """Wait until all others have, durably, what they want from before this offset."""
        while any(self._has.get(each, 0) < offset for each in self.others):
            await self._had.wait()

    async def all_took(self) -> None:
        """Wait until all others have, durably, what has left for them up to now."""
        left = {shard: outbox.last for shard, outbox in self.writer.engine.couriers.outboxes.items()}
        while any(shard not in self._reached or self._reached[shard].serial < last for shard, last in left.items()):
            await self._had.wait()

    def _note_has(self, shard: int, offset: int) -> None:
        self._has[shard] = offset
        had, self._had = self._had, asyncio.Event()
        had.set()

    def state(self) -> Iterable[tuple[str, Samples]]:
        if self.others:
            outboxes = self.writer.engine.couriers.outboxes
            waiting = {shard: len(outbox.messages) for shard, outbox in outboxes.items()}
            samples: Samples = [((str(shard),), waiting.get(shard, 0)) for shard in sorted(self.others)]
            yield "penstock_courier_outbox_messages", samples

    def _after_commit(self) -> None:
        if self._read_on() or self._is_worth_waking():
            self._wake_all()

    def _wake_all(self) -> None:
        """Let all who wait look again."""
        committed, self._committed = self._committed, asyncio.Event()
        committed.set()

    def _read_on(self) -> bool:
        """Those who ask read the log themselves if it cannot be read now."""
        try:
            return self._recent.read_on()
        except (PenstockError, OSError) as error:
            logger.error("courier_failed", extra={"reason": str(error)})
            self._recent.reset()
            return True

    def _is_worth_waking(self) -> bool:
        outboxes, reached = self.writer.engine.couriers.outboxes, self._reached
        if any(outbox.messages for outbox in outboxes.values()):
            return True
        end = self._recent.end.offset
        return any(self._is_far_behind(shard, each.offset, end) for shard, each in reached.items())

    def _is_far_behind(self, shard: int, cursor: int, offset: int) -> bool:
        """Whether a cursor is worth moving, though nothing was found: the log is kept for it."""
        grown = self.writer.log.end.position - self._moved_at.get(shard, 0)
        return offset - cursor > COURIER_PROGRESS_RECORDS or (offset > cursor and grown > COURIER_PROGRESS_BYTES)

    # ── An answer ───────────────────────────────────────────────────────────────────────────────────────────

    def collect(self, command: CollectParcels, reply: Reply) -> asyncio.Task[None]:
        """Answer another shard when there is something for it. Cancelled if it does not want the answer any more."""
        before, self._reached[command.shard] = self._reached.get(command.shard), command.after
        if before is None or before.offset != command.after.offset:
            self._moved_at[command.shard] = self.writer.log.end.position
        self._note_has(command.shard, command.after.offset)
        if command.channels is not None:
            self.channels.learn(command.shard, command.channels)
            self._told.pop(command.shard, None)  # It may know nothing yet.
        self._note_taken(command)
        task = asyncio.create_task(self._answer(command, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _note_taken(self, command: CollectParcels) -> None:
        outbox = self.writer.engine.couriers.outboxes.get(command.shard)
        if outbox and next(iter(outbox.messages), sys.maxsize) <= command.after.serial:
            self.writer.submit(NoteTaken(command.shard, command.after.serial), lambda _: None)

    async def _answer(self, command: CollectParcels, reply: Reply) -> None:
        try:
            reply(await self._found(command))
        except asyncio.CancelledError:
            reply(_GIVEN_UP)  # Or the other shard would wait for an answer without end.
            raise
        except (PenstockError, OSError) as error:
            if not self.writer.failure:  # Why the log has failed is logged already.
                logger.error("courier_failed", extra={"reason": str(error), "shard": command.shard})
            reply(Refused(Reason.UNAVAILABLE, str(error)))

    async def _found(self, command: CollectParcels) -> Parcels | Refused:
        """What is owed after a cursor. If nothing is in time, the same cursor and no messages."""
        wanted, offset = Wanted(command.shard, command.patterns, self._home), command.after.offset
        running = asyncio.get_running_loop()
        deadline = gathered_at = running.time() + command.wait_ns / SECOND_NS
        while True:
            committed, end = self._committed, self._recent.end.offset
            found = await self._promised(wanted, offset)
            offset = found.to
            if not found:
                self._note_has(command.shard, offset)
            if found.versions and not found.copies and running.time() < gathered_at:
                gathered_at = 0.0  # Once: others may join them.
                await asyncio.sleep(VERSIONS_GATHER_SECONDS)
                offset = command.after.offset
                continue
            owed = await self._owed(command)
            if isinstance(owed, Refused):
                return owed
            parcels, serial = owed
            named = self._dead_letters(command.shard)
            facts = (named, found.versions, end)
            is_told, self._told[command.shard] = self._told.get(command.shard) == named, named
            if found or parcels or self._is_far_behind(command.shard, command.after.offset, offset):
                return Parcels(Reached(offset, serial), self.writer.now(), [*found.copies, *parcels], *facts)
            if not is_told:
                return Parcels(command.after, self.writer.now(), [], *facts)
            try:
                async with asyncio.timeout_at(deadline):
                    await committed.wait()
            except TimeoutError:
                return Parcels(command.after, self.writer.now(), [], *facts)

    def _dead_letters(self, shard: int) -> list[str]:
        """The queues of a shard that queues here name as their dead-letter queue."""
        if shard not in self._named:
            self._named[shard] = [name for name in sorted({*self._policies.values()}) if self._home(name) == shard]
        return self._named[shard]

    async def _promised(self, wanted: Wanted, offset: int) -> _Owed:
        """What was promised after an offset, as much as fits."""
        if not self._recent.has_all_after(offset):
            return await self._promised_in_log(wanted, offset)
        end = self._recent.end.offset
        return self._chosen(wanted, self._recent.after(offset), end)

    async def _promised_in_log(self, wanted: Wanted, offset: int) -> _Owed:
        view = self.writer.log.view()
        start = await when_fetched(partial(self._start_of, view, offset))
        cursor, found = Cursor(start.position), _Owed([], [], offset)
        try:
            while not found and (piece := await when_fetched(partial(self._sound_promises, cursor, view)))[1]:
                found = self._chosen(wanted, *piece)
                await asyncio.sleep(0)
        finally:
            cursor.close()
        return found

    def _start_of(self, view: View, offset: int) -> Point:
        """Where the batch with an offset begins. Raises `BeingFetchedError` rather than wait for another machine."""
        wanted = max(offset, view.earliest().offset)
        if wanted < view.end.offset:
            self.writer.log.require(view.parts[view.part_of(wanted)].base_position)
        return view.point_of(wanted)

    def _sound_promises(self, cursor: Cursor, view: View) -> tuple[list[_Promise], int]:
        """Raises `LogFailedError` if the log is being replaced: what looks damaged then may not be; and
        `BeingFetchedError` rather than wait for another machine."""
        if cursor.position < view.end.position:
            self.writer.log.require(cursor.position)
        piece = self._promises.next(cursor, view)
        if self.writer.failure:
            raise LogFailedError(self.writer.failure)
        return piece

    def _chosen(self, wanted: Wanted, promises: list[_Promise], end: int) -> _Owed:
        copies, versions, size = list[Parcel](), list[LearnedVersion](), 0
        for at, promise in enumerate(promises):
            if promise.versions:
                mine = promise.versions.get(wanted.shard, [])
                versions += mine
                size += _bytes_of(mine)
            elif promise.messages and wanted.wants(topics := self._names.name(promise.messages[0].topics) or ""):
                copies += [copy_of(each, promise.options, topics, self._names.name) for each in promise.messages]
                size += promise.size
            is_full = size > COURIER_BYTES_MAX or len(copies) > COURIER_MESSAGES_MAX
            if is_full and at + 1 < len(promises) and promises[at + 1].end > promise.end:
                return _Owed(copies, versions, promise.end)  # A cursor is between two batches.
        return _Owed(copies, versions, end)

    async def _owed(self, command: CollectParcels) -> tuple[list[Parcel], int] | Refused:
        """The messages in the outbox, and the serial of the last. They are durable, because the answer is."""
        outbox, after = self.writer.engine.couriers.outboxes.get(command.shard), command.after.serial
        if outbox is None or outbox.last <= after:
            return [], after
        answer: OwedList | Refused = await answer_to(
            self.writer, ListOwed(command.shard, after, COURIER_MESSAGES_MAX)
        )
        if isinstance(answer, Refused):
            return answer
        parcels, size = list[Parcel](), 0
        for each in answer.messages:
            if (parcel := await when_fetched(partial(self._parcel, each))) is not None:
                parcels.append(parcel)
            after, size = each.serial, size + bytes_of(each)
            if size > COURIER_BYTES_MAX:
                break
        return parcels, after

    def _parcel(self, owed: Owed) -> Parcel | None:
        try:
            return moved(owed, self.writer.log.read(owed.position, bytes_of(owed)) if bytes_of(owed) else b"")
        except DamagedExtentError as error:
            self.writer.report_damage(error)
            logger.critical("message_lost", extra={"reason": str(error), "target": owed.target})
            return None
