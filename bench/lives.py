"""Writes a data directory with complete lives of messages, without a broker: millions of events in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.limits import NEVER_NS
from penstock.model.events import Event, FetchedRun, LoggedRun, NameDefined, QueueCreated, SucceededRun
from penstock.model.settings import QueueSettings
from penstock.storage.directory import DataDirectory
from penstock.storage.log.encode import Batch
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, Segment, segment_path

EVENTS_PER_MESSAGE = 5  # L Q, F, S X.
QUEUES = tuple(f"queue-{number}" for number in range(1, 17))
CONSUMERS = 32
RUN = 250  # Messages that are logged, fetched and finished together.
BODY_BYTES = 100
SEGMENT_BYTES = 16 << 20
BEGIN_NS = 1_767_225_600_000_000_000
SECOND_NS = 1_000_000_000


def make(path: Path, messages: int) -> None:
    """Write a log with this many messages, each of which is logged, fetched and finished."""
    directory = DataDirectory(path)
    directory.open()
    directory.close()
    batch = Batch(0, 0)
    segment = Segment(segment_path(directory.log, 0), 0, 0, 0, BEGIN_NS)
    file = segment.path.open("wb")
    file.write(segment.header())
    for events in _steps(messages):
        for event in events:
            batch.add(event)
        data = batch.seal(events[-1].time)
        if file.tell() > SEGMENT_HEADER_BYTES and file.tell() + len(data) > SEGMENT_BYTES:
            file.close()
            base = batch.base_offset
            segment = Segment(segment_path(directory.log, base), 0, base, batch.base_position, events[-1].time)
            file = segment.path.open("wb")
            file.write(segment.header())
        file.write(data)
        batch = Batch(*batch.end)
    file.close()


def _steps(messages: int) -> Iterator[list[Event]]:
    """The events of each commit: first the definitions, then runs of messages."""
    queues = [QueueCreated(BEGIN_NS, number, name, QueueSettings()) for number, name in enumerate(QUEUES, start=1)]
    texts = ["application/json", "shop", *(f"worker-{number}" for number in range(CONSUMERS))]
    yield [*queues, *(NameDefined(BEGIN_NS, number, text) for number, text in enumerate(texts, start=1))]
    bodies = [bytes([at % 256]) * BODY_BYTES for at in range(RUN)]
    next_sequence = [1] * (len(QUEUES) + 1)
    made = 0
    while made < messages:
        count = min(RUN, messages - made)
        queue = made // RUN % len(QUEUES) + 1
        now = BEGIN_NS + made * 20_000
        sequences = list(range(next_sequence[queue], next_sequence[queue] + count))
        next_sequence[queue] += count
        facts = (queue, sequences, [now] * count, [1] * count, [3 + at % CONSUMERS for at in range(count)])
        yield [
            LoggedRun(now, queue, sequences[0], now, NEVER_NS, made % 3, 1, 2, 0, 0, 0, bodies[:count]),
            FetchedRun(now + 1000, *facts, now + 30 * SECOND_NS),
            SucceededRun(now + 2000, *facts),
        ]
        made += count
