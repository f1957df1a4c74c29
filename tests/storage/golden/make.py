"""Makes the golden files of the log format: `python -m tests.storage.golden.make`.

They are made once for each format number and then never again: what a version has written, every later version of
that format must read to the very same events, and write the very same bytes for them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model import (
    Carried,
    DeadLettered,
    Deleted,
    Event,
    Exasperated,
    Expired,
    Fetched,
    Kicked,
    Logged,
    NameDefined,
    Position,
    QueueChanged,
    QueueCreated,
    QueueRemoved,
    QueueSettings,
    RedrivePolicy,
    Retried,
    Stage,
    Succeeded,
)
from penstock.storage.batch import events_of
from penstock.storage.directory import DIRECTORY_FORMAT, DataDirectory, Identity, write_durably
from penstock.storage.segment import SegmentReader, open_segment
from penstock.storage.segments import SegmentLog
from penstock.storage.snapshot import list_snapshots, publish_snapshot, read_snapshot, write_snapshot

HERE = Path(__file__).parent
GOLDEN = HERE / "format-1"
EXPECTED = HERE / "format-1.json"

BEGIN = 1_767_225_600_000_000_000  # The first moment of 2026.
ID_KEY = bytes(range(16))
SEGMENT_BYTES = 4096
SNAPSHOT_AFTER = 3  # Commits.

About = tuple[int, int, int, int, int, int]  # Time, queue, sequence, created, receives, consumer.

BODY = b'{"order": 7}'
SETTINGS = QueueSettings(
    redrive_policy=RedrivePolicy(max_receives=3, dead_letter_queue="dead"),
    retention_ns=3600 * SECOND_NS,
    visibility_ns=20 * SECOND_NS,
    delay_ns=SECOND_NS,
    deduplication=True,
    retries=5,
    keep="finished",
)


def at(milliseconds: int) -> int:
    return BEGIN + milliseconds * 1_000_000


def logged(time: int, sequence: int, body: bytes, *, queue: int = 2, **more: Any) -> Logged:
    facts: dict[str, Any] = {"visible_at": at(time), "expires_at": NEVER_NS, "priority": 0}
    facts |= dict.fromkeys(("content_type", "sender", "object", "topics", "lease_ns"), 0)
    facts |= dict.fromkeys(("key", "headers", "digest"), b"")
    return Logged(time=at(time), queue=queue, sequence=sequence, body=body, **facts | more)


def about(time: int, sequence: int, created: int, receives: int = 0, consumer: int = 0) -> About:
    return (at(time), 2, sequence, at(created), receives, consumer)


COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "orders", SETTINGS),
        NameDefined(at(10), 1, "application/json"),
        NameDefined(at(10), 2, "shop"),
        NameDefined(at(10), 3, "Größe"),
        NameDefined(at(10), 4, "orders.new\norders.all"),
    ],
    [
        logged(
            *(10, 1, BODY),
            expires_at=at(3_600_010),
            priority=9,
            content_type=1,
            sender=2,
            object=3,
            topics=4,
            key=b"order-7",
            headers=b'{"trace": "a1"}',
            digest=sha256(BODY).digest(),
        ),
        logged(20, 2, b"\x00\xff not text", visible_at=at(5020)),
        logged(20, 3, b"", key=b"empty"),
        logged(20, 4, b"four", digest=sha256(b"four").digest()),
        logged(20, 5, b"five"),
        logged(20, 6, b"six", expires_at=at(90)),
        logged(20, 7, b"seven", lease_ns=7 * SECOND_NS),
        logged(20, 8, b"eight", headers=b"{}"),
        logged(20, 9, b"nine", priority=4_294_967_295),
    ],
    [
        NameDefined(at(30), 5, "worker-1"),
        Fetched(*about(30, 1, 10, 1, 5), visible_at=at(20_030)),
        Succeeded(*about(40, 1, 10, 1, 5), complete=True, result=b"done"),
        Fetched(*about(50, 3, 20, 1, 5), visible_at=at(60)),
        Retried(*about(60, 3, 20, 1, 5), visible_at=at(1060)),
        Fetched(*about(70, 4, 20, 3, 5), visible_at=at(80)),
        DeadLettered(
            *about(80, 4, 20, 3, 5), fetched=False, visible_at=at(80), expires_at=NEVER_NS, to_queue=1, to_sequence=1
        ),
        Expired(*about(90, 6, 20)),
    ],
    [
        DeadLettered(
            *about(100, 5, 20, 3, 5),
            fetched=True,
            visible_at=at(20_100),
            expires_at=at(99_000),
            to_queue=1,
            to_sequence=2,
        ),
        Kicked(*about(110, 7, 20, 1, 5)),
        Fetched(*about(120, 9, 20, 5, 5), visible_at=at(130)),
        Exasperated(*about(130, 9, 20, 5, 5)),
    ],
    [
        Carried(*about(140, 8, 20), extent=b"eight{}"),
        QueueChanged(at(150), 2, QueueSettings(deduplication=True, keep="all")),
        QueueCreated(at(160), 3, "short-lived", QueueSettings(confirmations=2, detect_unchanged=True)),
        logged(170, 1, b"goes with its queue", queue=3),
        QueueRemoved(at(180), 3),
    ],
    [
        Deleted(*about(190, 3, 20, 1)),
        logged(200, 10, b"after the snapshot", digest=sha256(b"after the snapshot").digest()),
    ],
]


def make(path: Path) -> None:
    """Write the events to a data directory, as a broker would, with a snapshot on the way."""
    path.mkdir()
    write_durably(path / "penstock.json", msgspec.json.encode(Identity(DIRECTORY_FORMAT, 0, ID_KEY.hex())) + b"\n")
    directory = DataDirectory(path)
    directory.open()
    log = SegmentLog(directory, segment_bytes=SEGMENT_BYTES)
    assert list(log.recover().events) == []
    engine = Engine()
    for count, events in enumerate(COMMITS, start=1):
        for event in events:
            engine.evolve(event, log.append(event))
        now = events[-1].time
        commit(log, now + 1)
        if count == SNAPSHOT_AFTER:
            facts = {"offset": log.next_offset, "position": log.end_position, "time": now + 2}
            publish_snapshot(write_snapshot(directory.snapshots, engine.sections(), **facts))
    end, last = log.end_position, log.segments[-1]
    log.close()
    directory.close()
    (path / "lock").unlink()
    with last.path.open("r+b") as file:
        file.truncate(last.file_offset(end))  # The reserved room is zeros, and of no interest.


def commit(log: SegmentLog, now: int) -> None:
    synced = threading.Event()

    def progress(stage: Stage | BaseException) -> None:
        assert isinstance(stage, Stage)
        if stage is Stage.SYNC:
            synced.set()

    log.commit(now, progress)
    assert synced.wait(30)


# ── What is in a directory, as JSON ───────────────────────────────────────────────────────────────────────


def describe(path: Path) -> dict[str, Any]:
    directory = DataDirectory(path)
    found = list(all_events(directory))
    engine = Engine()
    engine.restore(read_snapshot(list_snapshots(directory.snapshots)[0]))
    snapshot = describe_state(engine)
    return {
        "events": [describe_event(offset, event, position) for offset, event, position in found],
        "state at the snapshot": snapshot,
        "state at the end": describe_state(replayed((event, position) for _, event, position in found)),
    }


def all_events(directory: DataDirectory) -> Iterator[tuple[int, Event, Position]]:
    offset = 0
    for path in sorted(directory.log.glob("*.log")):
        for _, header, payload in SegmentReader(open_segment(path)).batches():
            assert header.base_offset == offset
            for event, position in events_of(header, payload):
                yield offset, event, position
                offset += 1


def replayed(events: Iterable[tuple[Event, Position]]) -> Engine:
    engine = Engine()
    for event, position in events:
        engine.evolve(event, position)
    return engine


def describe_event(offset: int, event: Event, position: Position) -> dict[str, Any]:
    return {"offset": offset, "position": position, "kind": event.kind.name, **as_plain(event)}


def describe_state(engine: Engine) -> dict[str, Any]:
    return {
        "time": engine.time,
        "last queue": engine.last_queue,
        "names": engine.names.texts,
        "moved": [[*origin, *place] for origin, place in sorted(engine.moved.items())],
        "queues": {
            queue.name: {
                "number": queue.number,
                "settings": as_plain(queue.settings),
                "last sequence": queue.last_sequence,
                "rows": {
                    str(sequence): row._asdict()
                    for sequence in range(1, queue.last_sequence + 1)
                    if (row := queue.rows.get(sequence))
                },
                "digests": {digest.hex(): sequence for digest, sequence in sorted(queue.digests.items())},
            }
            for queue in engine.queues.values()
        },
    }


def as_plain(value: msgspec.Struct) -> dict[str, Any]:
    """A struct as JSON knows it, bytes in hexadecimal."""
    return {
        name: field.hex() if isinstance(field, bytes) else msgspec.to_builtins(field)
        for name, field in msgspec.structs.asdict(value).items()
    }


if __name__ == "__main__":
    make(GOLDEN)
    EXPECTED.write_text(json.dumps(describe(GOLDEN), indent=1, ensure_ascii=False) + "\n")
