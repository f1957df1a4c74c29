"""Events of every kind, and logs worked by hand."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from penstock.limits import NEVER_NS
from penstock.model.events import (
    Admitted,
    Answered,
    Arrived,
    BatchCommitted,
    CameFrom,
    Carried,
    Completed,
    CopiedFrom,
    Damaged,
    DeadLettered,
    Declined,
    DeclinedForOne,
    Deleted,
    Delivered,
    Event,
    Expired,
    Extended,
    Failed,
    FailedForAll,
    Fetched,
    GivenBack,
    HandedOver,
    HandedToReceiver,
    Invalidated,
    InvalidatedForOne,
    Logged,
    MessageEvent,
    Moved,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
    QueuedRun,
    QueueRemoved,
    ReceiverMoved,
    Rescheduled,
    Restored,
    ResultCarried,
    ResultStored,
    Retried,
    Sent,
    SentAsDead,
    Staged,
    Succeeded,
    TimedOut,
    Unchanged,
    Unstaged,
)
from penstock.model.schedules import Schedule, ScheduleRan, ScheduleRemoved, ScheduleSet, ScheduleSkipped
from penstock.model.settings import Push, QueueSettings, RedrivePolicy
from penstock.model.shard_events import Collected, Decided, Learned, Promised, Routed, Taken, Versioned
from penstock.model.tokens import Token, TokenRevoked, TokenSet
from penstock.model.values import Position, Stage
from penstock.storage.directory import DataDirectory
from penstock.storage.log.batch import HEADER_BYTES, Header, read_header
from penstock.storage.log.encode import Batch
from penstock.storage.log.segments import SegmentLog
from penstock.storage.port import Log, Section

_u32 = st.integers(0, 2**32 - 1)
_u64 = st.integers(0, 2**64 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_texts = st.text(st.characters(codec="utf-8"), max_size=20)
_bytes = st.binary(max_size=60)

settings_of_queues: st.SearchStrategy[QueueSettings] = st.builds(
    QueueSettings,
    redrive_policy=st.none() | st.builds(RedrivePolicy, max_receives=_u32, dead_letter_queue=_texts),
    retention_ns=st.integers(0, NEVER_NS),
    visibility_ns=st.integers(0, NEVER_NS),
    delay_ns=st.integers(0, NEVER_NS),
    deduplication=st.booleans(),
    retries=_u32,
    confirmations=_u32,
    detect_unchanged=st.booleans(),
    keep=st.sampled_from(["finished", "all"]),
    topics=st.lists(_texts, max_size=3).map(tuple),
    confirm=st.booleans(),
    push=st.none() | st.builds(Push, url=_texts, max_in_flight=_u32, timeout_ns=st.integers(0, NEVER_NS)),
)
_tokens: st.SearchStrategy[Token] = st.builds(
    Token,
    scopes=st.lists(_texts, min_size=1).map(tuple),
    digest=_texts,
    old_digest=_texts,
    old_until=_i64,
    created=_i64,
    expires=_i64,
    certificate=_texts,
    limits=st.dictionaries(_texts, st.floats(min_value=0, max_value=1e9)),
)
_schedules: st.SearchStrategy[Schedule] = st.builds(
    Schedule,
    queue=_texts,
    topics=st.lists(_texts, max_size=3).map(tuple),
    create=st.none() | settings_of_queues,
    body=_bytes,
    content_type=_texts,
    object=_texts,
    key=_bytes,
    headers=_bytes,
    priority=_u32,
    delay_ns=st.none() | _i64,
    expires_ns=st.none() | _i64,
    cron=_texts,
    time_zone=_texts,
    every_ns=_i64,
    start=st.none() | _i64,
    catch_up=st.sampled_from(["one", "all", "none"]),
    paused=st.booleans(),
)


def _about(kind: type[MessageEvent], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
    return st.builds(kind, time=_i64, queue=_u32, sequence=_u64, created=_i64, receives=_u32, consumer=_u32, **more)


def _logged(kind: type[Logged], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
    return st.builds(
        kind,
        time=_i64,
        queue=_u32,
        sequence=_u64,
        visible_at=_i64,
        expires_at=_i64,
        priority=_u32,
        content_type=_u32,
        sender=_u32,
        object=_u32,
        topics=_u32,
        lease_ns=_u64,
        key=_bytes,
        headers=_bytes,
        digest=st.just(b"") | st.binary(min_size=32, max_size=32),
        body=_bytes,
        **more,
    )


every_kind: dict[type[Event], st.SearchStrategy[Event]] = {
    NameDefined: st.builds(NameDefined, time=_i64, number=_u32, text=_texts),
    NameForgotten: st.builds(NameForgotten, time=_i64, number=_u32, text=_texts),
    QueueCreated: st.builds(QueueCreated, time=_i64, queue=_u32, name=_texts, settings=settings_of_queues),
    QueueChanged: st.builds(QueueChanged, time=_i64, queue=_u32, settings=settings_of_queues),
    QueueRemoved: st.builds(QueueRemoved, time=_i64, queue=_u32),
    Logged: _logged(Logged),
    Arrived: _logged(Arrived, created=_i64),
    Sent: _about(Sent, shard=_u32, target=_bytes),
    SentAsDead: _about(SentAsDead, shard=_u32, target=_bytes, reason=_bytes),
    CameFrom: _about(CameFrom, to_queue=_u32, to_sequence=_u64, origin=_bytes, reason=_bytes),
    CopiedFrom: _about(CopiedFrom, to_queue=_u32, to_sequence=_u64),
    Routed: st.builds(Routed, time=_i64, queue=_u32, sequence=_u64, messages=_u32, options=_u32),
    Versioned: st.builds(Versioned, time=_i64, queue=_u32, sequence=_u64, messages=_u32),
    Learned: st.builds(Learned, *(_i64, _u32, _u64, _i64, _u32), *(_bytes, _bytes)),
    Taken: st.builds(Taken, time=_i64, shard=_u32, serial=_u32),
    Collected: st.builds(Collected, time=_i64, shard=_u32, offset=_u32, serial=_u32),
    Promised: st.builds(Promised, time=_i64, shard=_u32, wish=_u32, target=_bytes),
    Decided: st.builds(Decided, time=_i64, forgotten=_u32, origin=_bytes, outcomes=_bytes),
    Queued: st.builds(Queued, *(_i64, _u32, _u64, _i64, _i64, _i64, _u32), *(_u32, _u32, _u32, _u32), *(_u32, _u64)),
    Unchanged: st.builds(Unchanged, *(_i64, _u32, _u64, _u32), *(_u32, _u32, _u32, _u32), *(_u32, _u64, _bytes)),
    Invalidated: _about(Invalidated),
    Declined: _about(Declined),
    InvalidatedForOne: _about(InvalidatedForOne, reason=_bytes),
    DeclinedForOne: _about(DeclinedForOne),
    Extended: _about(Extended, visible_at=_i64, begun=st.booleans()),
    Rescheduled: _about(Rescheduled, visible_at=_i64),
    Moved: _about(Moved, visible_at=_i64, expires_at=_i64, to_queue=_u32, to_sequence=_u64),
    Completed: _about(Completed),
    Damaged: _about(Damaged),
    Restored: _about(Restored, visible_at=_i64),
    Fetched: _about(Fetched, visible_at=_i64, ahead=st.booleans()),
    HandedOver: _about(HandedOver),
    Succeeded: _about(Succeeded, complete=st.booleans(), result=_bytes),
    Retried: _about(Retried, visible_at=_i64),
    TimedOut: _about(TimedOut, visible_at=_i64, ahead=st.booleans()),
    Failed: _about(Failed),
    DeadLettered: _about(
        DeadLettered, fetched=st.booleans(), visible_at=_i64, expires_at=_i64, to_queue=_u32, to_sequence=_u64
    ),
    Expired: _about(Expired),
    Deleted: _about(Deleted),
    Carried: _about(Carried, extent=_bytes, to_queue=_u32, to_sequence=_u64),
    Delivered: _about(Delivered, visible_at=_i64, leased=st.booleans()),
    GivenBack: _about(GivenBack, visible_at=_i64),
    FailedForAll: _about(FailedForAll),
    HandedToReceiver: _about(HandedToReceiver),
    ResultStored: _about(ResultStored, result=_bytes),
    ResultCarried: _about(ResultCarried, result=_bytes),
    ReceiverMoved: st.builds(ReceiverMoved, time=_i64, queue=_u32, sequence=_u64, consumer=_u32),
    Staged: st.builds(
        Staged,
        time=_i64,
        query=_texts,
        batch=_u32,
        part=_texts,
        chunk=_u32,
        rows=_u32,
        expires_at=_i64,
        data=_bytes,
    ),
    BatchCommitted: st.builds(
        BatchCommitted,
        time=_i64,
        query=_texts,
        batch=_u32,
        parts=st.lists(_texts, max_size=3).map(tuple),
    ),
    Admitted: st.builds(Admitted, time=_i64, query=_texts, batch=_u32, chunk=_u32, row=_u32),
    Unstaged: st.builds(Unstaged, time=_i64, query=_texts, batch=_u32),
    Answered: st.builds(
        Answered,
        time=_i64,
        forgotten=_u32,
        key=_bytes,
        digest=st.binary(min_size=32, max_size=32),
        answer=_bytes,
    ),
    ScheduleSet: st.builds(ScheduleSet, time=_i64, schedule=_texts, definition=_schedules, next=_i64),
    ScheduleRan: st.builds(
        ScheduleRan,
        time=_i64,
        schedule=_texts,
        planned=_i64,
        next=_i64,
        runs=_u32,
        missed=_u32,
        queue=_u32,
        sequence=_u64,
    ),
    ScheduleSkipped: st.builds(
        ScheduleSkipped, time=_i64, schedule=_texts, next=_i64, due_at=_i64, missed=_u32, error=_texts
    ),
    ScheduleRemoved: st.builds(ScheduleRemoved, time=_i64, schedule=_texts),
    TokenSet: st.builds(TokenSet, time=_i64, token=_texts, definition=_tokens),
    TokenRevoked: st.builds(TokenRevoked, time=_i64, token=_texts),
}
events: st.SearchStrategy[Event] = st.one_of(*every_kind.values())


def logged(sequence: int, body: bytes, **more: Any) -> Logged:
    facts: dict[str, Any] = {
        "time": 1000 + sequence,
        "queue": 1,
        "sequence": sequence,
        "visible_at": 1000 + sequence,
        "expires_at": NEVER_NS,
        "priority": 0,
        "content_type": 0,
        "sender": 0,
        "object": 0,
        "topics": 0,
        "lease_ns": 0,
        "key": b"",
        "headers": b"",
        "digest": b"",
        "body": body,
    }
    return Logged(**facts | more)


def open_log(path: Path, segment_bytes: int = 4096) -> SegmentLog:
    """A log on a directory, not yet recovered. `close_log` lets go of both."""
    directory = DataDirectory(path)
    directory.open()
    return SegmentLog(directory, segment_bytes=segment_bytes)


def close_log(log: SegmentLog) -> None:
    log.close()
    log.directory.close()


def recover(log: Log) -> list[tuple[Event, Position]]:
    """Everything after the snapshot, which must be none."""
    recovered = log.recover()
    assert recovered.sections is None
    return list(recovered.events)


def commit(log: Log, now: int = 5000) -> list[Stage | BaseException]:
    """Commit and wait for the end; what was reported on the way."""
    reported: list[Stage | BaseException] = []
    ended = threading.Event()

    def progress(stage: Stage | BaseException) -> None:
        reported.append(stage)
        if stage is not Stage.WRITE:
            ended.set()

    log.commit(now, progress)
    assert ended.wait(30)
    return reported


def section(kind: str, facts: bytes, *columns: bytes) -> Section:
    return kind, facts, tuple(np.frombuffer(column, dtype=np.uint8) for column in columns)


def queued_apart(run: QueuedRun) -> list[Queued]:
    """A run as an event for each of its messages."""
    columns = [getattr(run, name) for name in Queued.__struct_fields__[1:]]
    return [Queued(run.time, *facts) for facts in zip(*columns, strict=True)]


Sealed = tuple[Header, bytes]  # A batch, and its payload.


def seal(events: Sequence[Event], base_offset: int = 0, base_position: int = 0) -> Sealed:
    batch = Batch(base_offset, base_position)
    for event in events:
        batch.add(event)
    data = batch.seal(1)
    header = read_header(data)
    assert header is not None
    return header, data[HEADER_BYTES:]


def seal_all(groups: Sequence[Sequence[Event]]) -> list[Sealed]:
    batches: list[Sealed] = []
    offset = position = 0
    for events in groups:
        batches.append(seal(events, offset, position))
        offset += len(events)
        position += batches[-1][0].total_bytes
    return batches
