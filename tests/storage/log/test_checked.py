"""Damage before a snapshot costs exactly the messages of the damaged batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.broker.writer.loop import Loop
from penstock.engine.engine import Engine
from penstock.errors import DamagedLogError
from penstock.limits import SECOND_NS
from penstock.model.answers import Delivery
from penstock.model.commands import CreateQueue, Fetch, NewMessage, Publish
from penstock.model.events import Logged
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, is_segment_header
from penstock.storage.log.trace_index import Traces
from penstock.storage.log.traces import Tracer
from penstock.storage.log.view import Extents
from tests.support.effort import LONG
from tests.support.samples import close_log, commit, open_log
from tests.support.spoilt_logs import SEGMENT_BYTES, engine_of, flipped, snapshot, work

STRIDE = 1 if LONG else 13  # Whole recoveries from spoilt snapshots; that each is noticed is tried for all.


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
    for bit in range(0, 8 * (covered.batches[-1].stop + 10), 1 if LONG else 31):
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
    for bit in range(0, 8 * covered.batches[-1].stop, 3 if LONG else 37):
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
