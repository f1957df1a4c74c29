"""Every cut and every flipped bit of a small log and of its snapshots.

The rule: what comes back is what was written, or the start of it up to the last batch, or a refusal that names what
is lost. Never a wrong event, never an error nobody planned.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.engine.engine import Engine
from penstock.errors import DamagedLogError
from penstock.limits import SECOND_NS
from penstock.model.answers import Delivery
from penstock.model.commands import Command, CreateQueue, Fetch, Finish, NewMessage, Publish, Tick
from penstock.model.events import Event, Logged
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Stage
from penstock.server.writer.loop import Loop
from penstock.storage.directory import DataDirectory
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, is_segment_header, segment_path
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.snapshot import check_snapshot, snapshot_path
from penstock.storage.log.trace_index import Traces
from penstock.storage.log.traces import Tracer
from penstock.storage.log.view import Extents
from tests.support.effort import LONG
from tests.support.engine_rig import state_of
from tests.support.samples import close_log, commit, logged, open_log, recover

SEGMENT_BYTES = 720
STRIDE = 1 if LONG else 13  # Whole recoveries from spoilt snapshots; that each is noticed is tried for all.
Written = list[tuple[Event, int]]
State = list[tuple[str, bytes, tuple[bytes, ...]]]


@pytest.fixture(scope="module")
def fast_path() -> Iterator[Path]:
    """Thousands of logs are opened here: in memory, where syncing costs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


class Sample(NamedTuple):
    """A log of five batches in two segments, as bytes, to be spoilt again and again."""

    directory: DataDirectory
    written: Written  # One event a batch.
    ends: list[int]  # File offset behind each batch, in its own segment.
    first: bytes
    last: bytes

    @property
    def first_path(self) -> Path:
        return segment_path(self.directory.log, 0)

    @property
    def last_path(self) -> Path:
        return segment_path(self.directory.log, 2)

    def put(self, first: bytes, last: bytes) -> None:
        for left_behind in self.directory.log.iterdir():
            left_behind.unlink()
        self.first_path.write_bytes(first)
        self.last_path.write_bytes(last)

    def open(self) -> SegmentLog:
        return SegmentLog(self.directory, segment_bytes=SEGMENT_BYTES)

    def read(self) -> Written:
        """What a recovery finds."""
        log = self.open()
        try:
            return recover(log)
        finally:
            log.close()


@pytest.fixture(scope="module")
def sample(fast_path: Path) -> Iterator[Sample]:
    log = open_log(fast_path / "log-sample", SEGMENT_BYTES)
    recover(log)
    written: Written = []
    ends: list[int] = []
    for sequence in range(1, 6):
        event = logged(sequence, b"PBAT" * (25 if sequence < 3 else 1), key=b"k", digest=b"d" * 32)
        written.append((event, log.append(event)))
        commit(log)
        ends.append(log.segments[-1].file_offset(log.end.position))
    log.close()
    first, last = (segment.path.read_bytes() for segment in log.segments)
    assert len(first) == ends[1]
    assert ends[4] + 10 < len(last), "there is reserved room"
    yield Sample(log.directory, written, ends, first, last)
    log.directory.close()


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def torn_bytes(sample: Sample) -> bytes:
    return b"".join(path.read_bytes() for path in sample.directory.log.glob("*.torn"))


def test_an_unspoilt_log_comes_back_whole(sample: Sample) -> None:
    sample.put(sample.first, sample.last)
    assert sample.read() == sample.written
    assert not torn_bytes(sample)


def test_every_cut_of_the_last_segment_leaves_whole_batches(sample: Sample) -> None:
    for size in range(len(sample.last)):
        cut = sample.last[:size]
        sample.put(sample.first, cut)
        whole = 2 + sum(end <= size for end in sample.ends[2:])
        assert sample.read() == sample.written[:whole], f"cut at {size}"
        end = sample.ends[whole - 1] if whole > 2 else SEGMENT_HEADER_BYTES
        assert torn_bytes(sample) == cut[end:].rstrip(b"\0"), f"cut at {size}"


def test_every_cut_of_an_earlier_segment_is_refused_and_named(sample: Sample) -> None:
    for size in range(len(sample.first)):
        sample.put(sample.first[:size], sample.last)
        lost = 0 if size < sample.ends[0] else 1
        with pytest.raises(DamagedLogError, match=rf"{sample.first_path.name}: .*events {lost} (to 1|and later)"):
            sample.read()
        assert sample.first_path.read_bytes() == sample.first[:size], "nothing is cleaned up"
        assert sample.last_path.read_bytes() == sample.last


def test_every_flipped_bit_of_an_earlier_segment_is_refused_and_named(sample: Sample) -> None:
    for bit in range(8 * len(sample.first)):
        spoilt = flipped(sample.first, bit)
        sample.put(spoilt, sample.last)
        lost = 0 if bit // 8 < sample.ends[0] else 1
        with pytest.raises(DamagedLogError, match=rf"{sample.first_path.name}: .*events {lost} (to 0|and later)"):
            sample.read()
        assert sample.first_path.read_bytes() == spoilt, "nothing is cleaned up"


def test_every_flipped_bit_of_the_last_segment_loses_the_last_batch_at_most(sample: Sample) -> None:
    for bit in range(8 * len(sample.last)):
        spoilt = flipped(sample.last, bit)
        sample.put(sample.first, spoilt)
        at = bit // 8
        if at >= sample.ends[4]:  # In the reserved room.
            assert sample.read() == sample.written, f"bit {bit}"
            assert torn_bytes(sample) == spoilt[sample.ends[4] :].rstrip(b"\0")
        elif at >= sample.ends[3]:  # In the last batch.
            assert sample.read() == sample.written[:4], f"bit {bit}"
            assert torn_bytes(sample) == spoilt[sample.ends[3] :].rstrip(b"\0")
        else:
            lost = 2 if at < sample.ends[2] else 3
            says = rf"{sample.last_path.name}: .*events {lost} (to {lost}|and later)"
            with pytest.raises(DamagedLogError, match=says):
                sample.read()
            assert sample.last_path.read_bytes() == spoilt, "nothing is cleaned up"


def test_every_lost_block_is_noticed_or_costs_the_last_batch(sample: Sample) -> None:
    """A block that never reached the disk reads as zeros."""
    for size in (16, 64, 512):
        for start in range(0, sample.ends[4], 16):
            spoilt = (sample.last[:start] + bytes(size) + sample.last[start + size :])[: len(sample.last)]
            sample.put(sample.first, spoilt)
            whole = 2 + sum(end <= start for end in sample.ends[2:])
            try:
                found = sample.read()
            except DamagedLogError:
                assert sample.last_path.read_bytes() == spoilt, "nothing is cleaned up"
            else:
                assert found == sample.written[: len(found)]
                assert len(found) >= whole, "what stands before the loss is there"


def test_a_log_goes_on_behind_every_torn_tail(sample: Sample) -> None:
    for size in range(SEGMENT_HEADER_BYTES, sample.ends[4], 7):
        sample.put(sample.first, sample.last[:size])
        log = sample.open()
        found = recover(log)
        event = logged(99, b"after the crash")
        found.append((event, log.append(event)))
        commit(log)
        log.close()
        assert sample.read() == found


def test_two_torn_tails_are_both_kept_aside(sample: Sample) -> None:
    sample.put(sample.first, sample.last[: sample.ends[3] + 70])
    sample.read()
    kept = torn_bytes(sample)
    assert kept
    sample.last_path.write_bytes(sample.last[: sample.ends[2] + 70])
    sample.read()
    assert len(torn_bytes(sample)) == len(kept) + 70


# ── Snapshots ─────────────────────────────────────────────────────────────────────────────────────────────


class Kept(NamedTuple):
    """A directory with two snapshots and a log that reaches back to the older one, or to the beginning."""

    path: Path
    newer: Path
    older: Path
    state: State

    def recovered(self) -> State:
        log = open_log(self.path, SEGMENT_BYTES)
        try:
            return state_of(engine_of(log))
        finally:
            close_log(log)


def engine_of(log: SegmentLog) -> Engine:
    engine = Engine()
    recovered = log.recover()
    if recovered.sections is not None:
        engine.restore(recovered.sections)
    for event, position in recovered.events:
        engine.evolve(event, position)
    return engine


def work(engine: Engine, log: SegmentLog, command: Command) -> None:
    for event in engine.decide(command, now=engine.time + SECOND_NS).events:
        engine.evolve(event, log.append(event))
    if log.collecting:
        commit(log)


def snapshot(engine: Engine, log: SegmentLog) -> Path:
    log.write_snapshot(engine.sections(), log.appended, engine.time)
    log.publish_snapshot(log.appended.offset)
    return snapshot_path(log.directory.snapshots, log.appended.offset)


@pytest.fixture(params=["whole log", "log from the older snapshot"])
def kept(request: pytest.FixtureRequest, fast_path: Path) -> Iterator[Kept]:
    path = fast_path / "snapshot-sample"
    log = open_log(path, SEGMENT_BYTES)
    engine = engine_of(log)
    work(engine, log, CreateQueue("dead", QueueSettings()))
    policy = RedrivePolicy(1, "dead")
    work(engine, log, CreateQueue("work", QueueSettings(redrive_policy=policy, deduplication=True)))
    work(engine, log, Publish("work", [NewMessage(b"one", content_type="a/b"), NewMessage(b"two")]))
    older = snapshot(engine, log)
    work(engine, log, Fetch("work", consumer="me"))
    work(engine, log, Publish("work", [NewMessage(b"three"), NewMessage(b"four", delay_ns=SECOND_NS)]))
    newer = snapshot(engine, log)
    work(engine, log, Finish(2, 3))
    work(engine, log, Tick())
    close_log(log)
    assert len(log.segments) >= 3
    if request.param != "whole log":
        log.segments[0].path.unlink()
    yield Kept(path, newer, older, state_of(engine))
    shutil.rmtree(path)


def spoils(data: bytes) -> Iterator[tuple[str, bytes]]:
    for bit in range(8 * len(data)):
        yield f"bit {bit} flipped", flipped(data, bit)
    for size in range(len(data)):
        yield f"cut at {size}", data[:size]


def test_unspoilt_snapshots_give_the_state_back(kept: Kept) -> None:
    assert kept.recovered() == kept.state


def test_a_snapshot_spoilt_anywhere_is_not_whole(kept: Kept) -> None:
    check_snapshot(kept.newer)
    for what, spoilt in spoils(kept.newer.read_bytes()):
        kept.newer.write_bytes(spoilt)
        try:
            check_snapshot(kept.newer)
        except DamagedLogError:
            continue
        pytest.fail(f"{what}: not noticed")


def test_a_spoilt_snapshot_gives_way_to_the_older_one(kept: Kept) -> None:
    for what, spoilt in islice(spoils(kept.newer.read_bytes()), 0, None, STRIDE):
        kept.newer.write_bytes(spoilt)
        assert kept.recovered() == kept.state, what


def test_without_a_whole_snapshot_the_log_is_replayed_or_refused(kept: Kept) -> None:
    kept.newer.write_bytes(kept.newer.read_bytes()[:-1])
    whole_log = segment_path(kept.path / "log", 0).exists()
    for what, spoilt in islice(spoils(kept.older.read_bytes()), 0, None, STRIDE):
        kept.older.write_bytes(spoilt)
        if whole_log:
            assert kept.recovered() == kept.state, what
        else:
            with pytest.raises(DamagedLogError, match="are missing: no snapshot covers them"):
                kept.recovered()


def test_a_spoilt_spare_does_not_matter_while_the_newest_is_whole(kept: Kept) -> None:
    for size in (0, 10, 100):
        kept.older.write_bytes(kept.older.read_bytes()[:size])
        assert kept.recovered() == kept.state


def test_an_unfinished_snapshot_is_removed(kept: Kept) -> None:
    unfinished = kept.newer.with_suffix(".tmp")
    unfinished.write_bytes(b"half")
    assert kept.recovered() == kept.state
    assert not unfinished.exists()


def test_a_log_that_ends_before_its_snapshot_is_refused(kept: Kept) -> None:
    for path in sorted((kept.path / "log").glob("*.log"))[1:]:
        path.unlink()
    newest = int(kept.newer.stem)
    with pytest.raises(DamagedLogError, match=f"to {newest - 1} are missing: the log ends before its snapshot"):
        kept.recovered()


def test_a_snapshot_without_its_log_is_refused(kept: Kept) -> None:
    for path in (kept.path / "log").glob("*.log"):
        path.unlink()
    with pytest.raises(DamagedLogError, match="the log is gone: a snapshot says that it reached offset"):
        kept.recovered()


# ── Messages before a snapshot ────────────────────────────────────────────────────────────────────────────────


class Covered(NamedTuple):
    """A log of several segments whose events are all in a snapshot, to be spoilt again and again."""

    path: Path
    whole: dict[Path, bytes]  # The segments, the oldest first.
    bodies: list[bytes]
    batches: list[range]  # By batch: which bytes of all segments together it takes, and …
    held: list[set[bytes]]  # … which messages have their bytes in it.

    def spoil(self, bit: int) -> None:
        for path, content in self.whole.items():
            path.write_bytes(flipped(content, bit) if 0 <= bit < 8 * len(content) else content)
            bit -= 8 * len(content)

    def received(self) -> tuple[list[bytes], int]:
        """What a broker delivers, one message at a time; and how many messages it has set aside."""
        log = open_log(self.path, SEGMENT_BYTES)
        try:
            loop = Loop(engine_of(log), log, lambda: 10**15, NoTurns())
            bodies: list[bytes] = []
            for queue in ("one", "two"):
                while answer := fetched(loop, queue):
                    bodies += [delivery.body for delivery in answer]
            return bodies, loop.engine.damaged
        finally:
            close_log(log)

    def found(self) -> Iterator[bytes]:
        """What a search can read."""
        log = open_log(self.path, SEGMENT_BYTES)
        try:
            rows = [(queue, *place) for queue, place in _rows(engine_of(log))]
            extents = Extents(log.view())
            for _, _, position, size in rows:
                with suppress(DamagedLogError):
                    yield extents.read(position, size)
        finally:
            close_log(log)

    def traced(self) -> set[bytes]:
        """The bodies of the messages whose first record can still be found."""
        log = open_log(self.path, SEGMENT_BYTES)
        try:
            found = set()
            for queue, (sequence, _, _) in _rows(engine_of(log)):
                tracer = Tracer(Traces(), log.view(), (queue, sequence))
                while tracer.step():
                    pass
                found |= {event.body for _, event in tracer.trace().events if isinstance(event, Logged)}
            return found
        finally:
            close_log(log)


def _rows(engine: Engine) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Of every message: its queue, its sequence, and where its bytes are."""
    for queue in engine.queues.values():
        for sequence in range(1, queue.last_sequence + 1):
            row = queue.rows.get(sequence)
            assert row is not None
            yield queue.number, (sequence, row.position, row.body_bytes)


class NoTurns:
    """A scheduler for a loop that is asked, and never commits."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Not now."""

    from_thread = soon

    def after(self, _: int, __: Callable[[], None]) -> NoTurns:
        return self

    def cancel(self) -> None:
        """There is nothing to cancel."""


def fetched(loop: Loop, queue: str) -> list[Delivery]:
    answers: list[list[Delivery]] = []
    loop.submit(Fetch(queue, confirm=False), answers.append, Stage.READY)
    loop.decide_collected()
    return answers[0]


@pytest.fixture(scope="module")
def covered(fast_path: Path) -> Iterator[Covered]:
    path = fast_path / "covered-sample"
    log = open_log(path, SEGMENT_BYTES)
    engine = engine_of(log)
    batches: list[range] = []
    held: list[set[bytes]] = []
    bodies = [b"%s message %d" % (queue, number) for number in range(6) for queue in (b"one", b"two")]
    for name in ("one", "two"):
        work(engine, log, CreateQueue(name, QueueSettings()))
    for first in range(0, len(bodies), 2):
        begin = log.appended.position
        for queue, body in zip(("one", "two"), bodies[first : first + 2], strict=True):
            for event in engine.decide(Publish(queue, [NewMessage(body)]), now=engine.time + SECOND_NS).events:
                engine.evolve(event, log.append(event))
        commit(log)
        batches.append(range(begin, log.end.position))
        held.append(set(bodies[first : first + 2]))
    snapshot(engine, log)
    close_log(log)
    assert len(log.segments) >= 3
    whole = {segment.path: segment.path.read_bytes() for segment in log.segments}
    starts = dict(zip(whole, accumulate([len(content) for content in whole.values()], initial=0), strict=False))
    in_files = []
    for batch in batches:
        segment = [each for each in log.segments if each.base_position <= batch.start][-1]
        first_byte = starts[segment.path] + segment.file_offset(batch.start)
        in_files.append(range(first_byte, first_byte + len(batch)))
    yield Covered(path, whole, bodies, in_files, held)
    shutil.rmtree(path)


def test_every_flipped_bit_before_a_snapshot_costs_exactly_the_messages_of_its_batch(covered: Covered) -> None:
    newest = sum(len(content) for content in list(covered.whole.values())[:-1])
    for bit in range(0, 8 * (covered.batches[-1].stop + 10), 1 if LONG else 7):
        covered.spoil(bit)
        if newest <= bit // 8 < newest + SEGMENT_HEADER_BYTES:
            with pytest.raises(DamagedLogError, match="segment header is damaged"):
                covered.received()
            continue
        lost = [held for batch, held in zip(covered.batches, covered.held, strict=True) if bit // 8 in batch]
        expected = set(covered.bodies).difference(*lost)
        bodies, damaged = covered.received()
        assert set(bodies) == expected, f"bit {bit}"
        assert (len(bodies), damaged) == (len(expected), len(covered.bodies) - len(expected)), f"bit {bit}"


def test_every_flipped_bit_before_a_snapshot_is_noticed_by_searches_and_costs_one_batch(
    covered: Covered,
) -> None:
    """They read in a thread of their own, by an index of the headers of batches."""
    newest = sum(len(content) for content in list(covered.whole.values())[:-1])
    for bit in range(0, 8 * covered.batches[-1].stop, 3 if LONG else 11):
        if newest <= bit // 8 < newest + SEGMENT_HEADER_BYTES:
            continue
        covered.spoil(bit)
        lost = [held for batch, held in zip(covered.batches, covered.held, strict=True) if bit // 8 in batch]
        assert set(covered.found()) == set(covered.bodies).difference(*lost), f"bit {bit}"


def test_every_flipped_bit_before_a_snapshot_leaves_the_traces_of_other_messages(covered: Covered) -> None:
    for bit in range(8 * covered.batches[0].start, 8 * covered.batches[-1].stop, 41 if LONG else 211):
        covered.spoil(bit)
        lost = [held for batch, held in zip(covered.batches, covered.held, strict=True) if bit // 8 in batch]
        headers = [path for path in covered.whole if not is_segment_header(path.read_bytes()[:SEGMENT_HEADER_BYTES])]
        if not headers:
            assert covered.traced() == set(covered.bodies).difference(*lost), f"bit {bit}"


def test_a_lost_block_before_a_snapshot_costs_what_was_in_it(covered: Covered) -> None:
    """A block that the disk has lost reads as zeros: all batches that it touches are damaged, and no other."""
    path, content = next(iter(covered.whole.items()))
    for start in range(SEGMENT_HEADER_BYTES, len(content), 40):
        covered.spoil(-1)
        end = min(start + 128, len(content))
        path.write_bytes(content[:start] + bytes(end - start) + content[end:])
        touched = zip(covered.batches, covered.held, strict=True)
        lost = [held for batch, held in touched if batch.start < end and start < batch.stop]
        bodies, damaged = covered.received()
        assert set(bodies) == set(covered.bodies).difference(*lost), f"{start} to {end}"
        assert damaged == len(covered.bodies) - len(bodies)


def test_damage_in_a_batch_that_is_only_partly_in_the_snapshot_stops_the_start(fast_path: Path) -> None:
    path = fast_path / "partly-sample"
    log = open_log(path, SEGMENT_BYTES)
    engine = engine_of(log)
    work(engine, log, CreateQueue("one", QueueSettings()))
    begin = log.appended.position
    for body in (b"in the snapshot", b"after it"):
        for event in engine.decide(Publish("one", [NewMessage(body)]), now=engine.time + SECOND_NS).events:
            engine.evolve(event, log.append(event))
        if body == b"in the snapshot":
            snapshot(engine, log)
    commit(log)
    close_log(log)
    segment = log.segments[-1]
    whole = segment.path.read_bytes()
    for bit in range(8 * segment.file_offset(begin), 8 * segment.file_offset(log.end.position), 5):
        segment.path.write_bytes(flipped(whole, bit))
        log = open_log(path, SEGMENT_BYTES)
        with pytest.raises(DamagedLogError, match="damaged at byte"):
            engine_of(log)
        close_log(log)
        assert segment.path.read_bytes() == flipped(whole, bit), "nothing is cut off"
    shutil.rmtree(path)
