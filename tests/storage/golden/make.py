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
from msgspec.structs import replace

from penstock.engine.engine import Engine
from penstock.engine.history import MemoryHistory, Section
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.limits import NEVER_NS, SECOND_NS
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
    Moved,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
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
from penstock.model.kinds import Kind
from penstock.model.schedules import Schedule, ScheduleRan, ScheduleRemoved, ScheduleSet, ScheduleSkipped
from penstock.model.settings import Push, QueueSettings, RedrivePolicy
from penstock.model.shard_events import Collected, Decided, Learned, Promised, Routed, Taken, Versioned
from penstock.model.tokens import Token, TokenRevoked, TokenSet
from penstock.model.values import Position, Stage
from penstock.storage.directory import DIRECTORY_FORMAT, DataDirectory, Identity, write_durably
from penstock.storage.log.decode import events_of
from penstock.storage.log.segment import SegmentReader, open_segment
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.snapshot import list_snapshots, read_snapshot

HERE = Path(__file__).parent

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
        HandedOver(*about(110, 7, 20, 1, 5)),
        Fetched(*about(120, 9, 20, 5, 5), visible_at=at(130)),
        Failed(*about(130, 9, 20, 5, 5)),
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


# What came later, in the same format: kinds and sections that an older version does not know.
RECEIVERS_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "orders", QueueSettings(retention_ns=3600 * SECOND_NS, keep="all")),
        NameDefined(at(10), 1, "text/plain; charset=utf-8"),
        NameDefined(at(10), 2, "billing"),
        NameDefined(at(10), 3, "stock"),
        *(logged(10 + number, number, b"order %d" % number, content_type=1) for number in range(1, 7)),
    ],
    [
        Delivered(*about(20, 1, 11, 1, 2), visible_at=at(120_020)),
        Delivered(*about(21, 2, 12, 1, 2), visible_at=at(120_021)),
        Delivered(*about(22, 3, 13, 3, 2), visible_at=NEVER_NS),
        HandedToReceiver(*about(23, 1, 11, 1, 3)),
        ReceiverMoved(at(24), 2, 4, 3),
        ResultStored(*about(25, 1, 11, 1, 2), result=b"paid"),
        ResultStored(*about(26, 1, 11, 0, 3), result=b""),
    ],
    [
        Fetched(*about(30, 4, 14, 1), visible_at=at(20_030)),
        Succeeded(*about(31, 4, 14, 1), complete=True, result=b""),
        HandedOver(*about(32, 5, 15, 1)),
    ],
    [
        ResultCarried(*about(40, 1, 11, 0, 2), result=b"paid"),
        Delivered(*about(41, 2, 12, 2, 2), visible_at=at(120_041)),
        Expired(*about(42, 3, 13)),
        Delivered(*about(43, 5, 15, 1, 2), visible_at=at(120_043)),
    ],
    [Deleted(*about(50, 5, 15, 1)), ResultStored(*about(51, 2, 12, 2, 2), result="bezahlt für".encode())],
]


CHANNEL = QueueSettings(retries=3, topics=("fruit.*", "news"), push=Push("http://127.0.0.1:1/hook"))


def reference(time: int, queue: int, sequence: int, created: int, original: tuple[int, int], **more: int) -> Queued:
    times = (at(created), more.get("visible_at", at(time)), more.get("expires_at", NEVER_NS))
    return Queued(at(time), queue, sequence, *times, 7, 1, 0, 2, 3, *original)


TOPICS_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "other", QueueSettings(confirm=False)),
        QueueCreated(at(1), 2, "fruit", QueueSettings(detect_unchanged=True, confirmations=2)),
        QueueCreated(at(2), 3, "hook", CHANNEL),
        NameDefined(at(10), 1, "text/plain; charset=utf-8"),
        NameDefined(at(10), 2, "apple"),
        NameDefined(at(10), 3, "fruit.sweet\nfruit.red"),
        NameDefined(at(10), 4, "first"),
        NameDefined(at(10), 5, "second"),
        *(
            logged(
                10, number, b"apple %d" % number, priority=7, content_type=1, object=2, topics=3, key=b"k%d" % number
            )
            for number in range(1, 6)
        ),
        reference(10, 3, 1, 10, (2, 1)),
        reference(10, 3, 2, 10, (2, 2), visible_at=at(60_000), expires_at=at(90_000)),
        reference(10, 3, 3, 10, (2, 3), visible_at=at(60_000)),
        reference(10, 3, 4, 10, (2, 4)),
        Unchanged(at(20), 2, 6, 7, 1, 0, 2, 3, 2, 1, b"k1"),
    ],
    [
        Delivered(*about(30, 1, 10, 1, 4), visible_at=at(30_030)),
        Delivered(*about(31, 1, 10, 1, 5), visible_at=at(30_031)),
        Delivered(*about(32, 2, 10, 1, 4), visible_at=at(30_032)),
        Delivered(*about(32, 3, 10, 1, 4), visible_at=at(30_032)),
        Extended(*about(33, 2, 10, 1, 4), visible_at=at(99_000)),
        Declined(*about(34, 3, 10, 1, 4)),
        ResultStored(*about(35, 1, 10, 1, 4), result=b"eaten"),
        Fetched(*about(36, 2, 10, 1), visible_at=at(20_036)),
        Succeeded(*about(37, 2, 10, 1), complete=False, result=b""),
        Fetched(at(38), 3, 1, at(10), 1, 4, visible_at=at(20_038)),
        Fetched(at(38), 3, 4, at(10), 1, 4, visible_at=at(20_038)),
    ],
    [
        ResultStored(*about(40, 1, 10, 1, 5), result=b""),
        Completed(*about(40, 1, 10, 1, 5)),
        Extended(at(41), 3, 1, at(10), 1, 4, visible_at=at(80_000)),
        Rescheduled(at(42), 3, 2, at(10), 0, 0, visible_at=at(70_000)),
    ],
    [
        Invalidated(at(50), 3, 1, at(10), 1, 4),
        Moved(at(51), 3, 2, at(10), 0, 0, visible_at=at(51), expires_at=NEVER_NS, to_queue=1, to_sequence=1),
        Rescheduled(at(52), 3, 3, at(10), 0, 0, visible_at=at(52)),
        Declined(at(53), 3, 4, at(10), 1, 4),
    ],
    [
        Carried(*about(60, 3, 10), extent=b"apple 3k3"),
        Carried(at(60), 3, 3, at(10), 0, 0, b"", to_queue=2, to_sequence=3),
        QueueChanged(at(61), 3, QueueSettings(retries=9, topics=("news",))),
    ],
]

STAGING_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "orders", QueueSettings()),
        Staged(at(10), "query", 0, "0-a", 0, 2, at(1010), b"rows of the first try"),
        Staged(at(11), "query", 0, "0-b", 0, 2, at(1011), b"two rows"),
    ],
    [Staged(at(20), "query", 0, "0-b", 1, 1, at(1020), "noch eine für alle".encode())],
    [Staged(at(30), "anfrage-ö", 7, "x", 0, 1, at(1030), b""), BatchCommitted(at(31), "query", 0, ("0-b",))],
    [logged(40, 1, b"first", queue=1), Admitted(at(40), "query", 0, 0, 1)],
    [Unstaged(at(50), "anfrage-ö", 7), BatchCommitted(at(51), "empty", 3, ())],
    [logged(60, 2, b"second", queue=1), Admitted(at(60), "query", 0, 1, 0)],
]

SEVERAL_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "votes", QueueSettings(confirmations=2, retries=2)),
        NameDefined(at(10), 1, "first"),
        NameDefined(at(10), 2, "second"),
        *(logged(10 + number, number, b"vote %d" % number) for number in range(1, 5)),
    ],
    [
        *(Delivered(*about(20, number, 10 + number, 1, 1), at(30_020), leased=True) for number in range(1, 4)),
        Delivered(*about(21, 1, 11, 1, 2), at(30_021), leased=True),
        ResultStored(*about(22, 1, 11, 1, 2), result=b"yes"),
        GivenBack(*about(23, 2, 12, 1, 1), visible_at=at(5_000)),
        GivenBack(*about(24, 3, 13, 1, 1), visible_at=at(24)),
    ],
    [Delivered(*about(30, 3, 13, 2, 1), at(30_030), leased=True), Extended(*about(31, 1, 11, 1, 1), at(60_000))],
    [FailedForAll(*about(40, 3, 13, 2, 1)), QueueChanged(at(41), 2, QueueSettings(confirmations=2, keep="all"))],
    [
        FailedForAll(*about(50, 1, 11, 1, 1)),
        DeadLettered(*about(51, 2, 12, 1, 1), False, at(51), NEVER_NS, to_queue=1, to_sequence=1),
    ],
]

DAMAGED_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "plain", QueueSettings(deduplication=True)),
        QueueCreated(at(1), 2, "orders", QueueSettings(keep="all")),
        NameDefined(at(10), 1, "billing"),
        logged(10, 1, b"plain", queue=1, digest=sha256(b"plain").digest()),
        *(logged(10 + number, number, b"order %d" % number) for number in range(1, 5)),
        logged(15, 5, b"later", visible_at=at(60_000)),
    ],
    [
        Fetched(*about(20, 1, 11, 1), visible_at=at(30_020)),
        HandedOver(*about(21, 2, 12, 1)),
        Delivered(*about(22, 3, 13, 1, 1), visible_at=at(30_022)),
        ResultStored(*about(23, 1, 11, 0, 1), result=b"paid"),
    ],
    [Damaged(at(30), 1, 1, at(10), 0, 0), *(Damaged(*about(30, number, 10 + number)) for number in range(1, 6))],
    [
        Restored(*about(40, 1, 11, 1), visible_at=at(30_020)),
        Restored(*about(41, 2, 12, 1), visible_at=NEVER_NS),
        Restored(*about(42, 3, 13), visible_at=at(42)),
    ],
    [Deleted(*about(50, 4, 14)), ResultStored(*about(51, 5, 15, 0, 1), result=b"")],
]

NAMES_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "orders", QueueSettings()),
        NameDefined(at(10), 1, "text/plain"),
        NameDefined(at(10), 2, "shop"),
        NameDefined(at(10), 3, "Größe"),
        logged(10, 1, b"gone soon", content_type=1, sender=2, object=3),
        logged(11, 2, b"stays", sender=2),
    ],
    [Deleted(*about(20, 1, 10))],
    [NameForgotten(at(30), 1, "text/plain"), NameForgotten(at(30), 3, "Größe")],
    [NameDefined(at(40), 4, "text/plain"), logged(40, 3, b"later", content_type=4)],
    [Deleted(*about(50, 2, 11)), NameForgotten(at(51), 2, "shop")],
]

TIMED_OUT_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "orders", QueueSettings()),
        logged(10, 1, b"slow", visible_at=at(10)),
        logged(11, 2, b"slower", visible_at=at(11)),
    ],
    [Fetched(*about(20, 1, 10, 1), visible_at=at(30)), Fetched(*about(20, 2, 11, 1), visible_at=at(30))],
    [TimedOut(*about(30, 1, 10, 1), visible_at=at(30)), TimedOut(*about(31, 2, 11, 1), visible_at=at(1031))],
    [Fetched(*about(40, 1, 10, 2), visible_at=at(50)), Retried(*about(45, 1, 10, 2), visible_at=at(45))],
]

AHEAD_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "orders", QueueSettings()),
        *(logged(10, number, b"ahead", visible_at=at(10)) for number in (1, 2, 3)),
    ],
    [Fetched(*about(20, number, 10, 1), visible_at=at(30), ahead=True) for number in (1, 2, 3)],
    [
        Extended(*about(25, 1, 10, 1), visible_at=at(60), begun=True),
        *(TimedOut(*about(30, number, 10, 0), at(30), b"never begun", ahead=True) for number in (2, 3)),
    ],
    [Fetched(*about(40, 2, 10, 1), visible_at=at(50), ahead=True), Fetched(*about(40, 3, 10, 1), visible_at=at(50))],
]

REASONS_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "orders", QueueSettings()),
        *(logged(10, number, b"order", visible_at=at(10)) for number in (1, 2, 3, 4)),
    ],
    [Fetched(*about(20, 1, 10, 1), visible_at=at(30)), Retried(*about(21, 1, 10, 1), at(21), b"the bank is closed")],
    [
        DeadLettered(*about(30, 1, 10, 1), False, at(30), NEVER_NS, 1, 1, b"no card\ntrace"),
        DeadLettered(*about(31, 2, 10, 1, 0), True, at(60), NEVER_NS, 1, 2),
        Rescheduled(at(32), 1, 2, at(10), 0, 0, at(32), "größer".encode()),
    ],
    [
        Fetched(*about(40, 3, 10, 1), visible_at=at(50)),
        Failed(*about(41, 3, 10, 1), b"gone"),
        Invalidated(*about(42, 4, 10, 0), b"no JSON"),
    ],
]

RUN = (1, 1, 3, "Q", ("orders",), ())
EMPTY_ANSWER = msgspec.msgpack.encode([])

ANSWERED_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "orders", QueueSettings()),
        *(logged(10, number, b"order %d" % number, queue=1) for number in (1, 2, 3)),
        Answered(at(10), 0, b"first", sha256(b"three").digest(), msgspec.msgpack.encode([RUN])),
    ],
    [logged(20, 4, b"four", queue=1), Answered(at(20), 0, b"second", sha256(b"4").digest(), EMPTY_ANSWER)],
    [Answered(at(30), 0, b"third", sha256(b"").digest(), EMPTY_ANSWER)],
    [Answered(at(40), 1, b"third", sha256(b"again").digest(), EMPTY_ANSWER)],
    [Answered(at(50), 0, b"~ fourth ~", sha256(b"4").digest(), EMPTY_ANSWER)],
]

NIGHTLY = Schedule(
    topics=("weather.rain", "weather.snow"),
    create=QueueSettings(retries=3),
    body=b'{"report": 1}',
    content_type="application/json",
    object="weather",
    key="Größe".encode(),
    headers=b"\x80",
    priority=7,
    delay_ns=0,
    expires_ns=60 * SECOND_NS,
    cron="30 2 * * mon-fri",
    time_zone="Europe/Berlin",
    catch_up="all",
)
SCHEDULES_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "reports", QueueSettings()),
        ScheduleSet(at(2), "nightly", NIGHTLY, at(60_000)),
        ScheduleSet(at(3), "täglich", Schedule(queue="reports", body=b"beat", every_ns=SECOND_NS), at(1_000)),
        ScheduleSet(at(4), "gone", Schedule(queue="dead", cron="@hourly", paused=True), at(3_600_000)),
    ],
    [
        NameDefined(at(1_001), 1, "schedule:täglich"),
        logged(1_001, 1, b"beat", sender=1),
        ScheduleRan(at(1_001), "täglich", at(1_000), at(2_000), 1, 0, 2, 1),
    ],
    [
        ScheduleSkipped(at(9_000), "täglich", at(9_000), at(9_000), 7),
        logged(9_001, 2, b"beat", sender=1),
        ScheduleRan(at(9_001), "täglich", at(9_000), at(10_000), 1, 0, 2, 2),
        ScheduleSkipped(at(60_000), "nightly", at(60_000), at(61_000), 0, "name limit reached"),
    ],
    [ScheduleRemoved(at(60_500), "gone")],
    [
        ScheduleSet(at(60_600), "nightly", msgspec.structs.replace(NIGHTLY, paused=True), at(60_000)),
        ScheduleRan(at(60_700), "täglich", at(60_000), at(61_000), 1, 50, 2, 2),
    ],
]

BOSS = Token(scopes=("admin:*",), digest="ab" * 32, created=at(1))
TOKENS_COMMITS: list[list[Event]] = [
    [QueueCreated(at(0), 1, "orders", QueueSettings()), TokenSet(at(1), "boss", BOSS)],
    [
        TokenSet(at(2), "händler", Token(scopes=("publish:orders*", "read:*"), certificate="CN=shop", created=at(2))),
        TokenSet(
            at(3), "gone", Token(scopes=("read:orders",), digest="ef" * 32, created=at(3), limits={"rate": 10.0})
        ),
    ],
    [
        TokenSet(at(4), "boss", replace(BOSS, digest="cd" * 32, old_digest=BOSS.digest, old_until=at(60_000))),
        TokenRevoked(at(5), "gone"),
    ],
    [TokenSet(at(6), "boss", replace(BOSS, digest="cd" * 32, expires=at(3_600_000)))],
]

ARRIVED = (NEVER_NS, 9, 0, 0, 0, 1, 5 * SECOND_NS, b"key", b"{}", b"")
SHARDS_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(1), 2, "orders", QueueSettings(topics=("fruit.*",))),
        NameDefined(at(2), 1, "fruit.sweet"),
        logged(2, 1, b"apple", topics=1),
        logged(2, 2, b"pear", topics=1, key=b"p"),
        Routed(at(2), 2, 1, 2, 5),
    ],
    [
        SentAsDead(*about(3, 1, 2, 1, 0), 3, b"dead.far", "böse Frucht".encode()),
        Sent(*about(4, 2, 2), 3, "Größe".encode()),
        Taken(at(5), 3, 1),
    ],
    [
        Arrived(at(6), 2, 3, at(6), *ARRIVED, b"a copy", at(1)),
        Queued(at(6), 1, 1, at(1), at(6), NEVER_NS, 9, 0, 0, 0, 1, 2, 3),
        Collected(at(6), 1, 17, 0),
    ],
    [
        Arrived(at(7), 1, 2, at(9), *ARRIVED, b"moved", at(1)),
        CameFrom(at(7), 1, 2, at(1), 0, 0, 6, 11, b"far", b"too sour"),
        Collected(at(7), 1, 17, 1),
    ],
    [Sent(at(8), 2, 3, at(1), 0, 0, 1, b"back"), Taken(at(9), 3, 2)],
]

COPIES_COMMITS: list[list[Event]] = [
    [QueueCreated(at(0), 1, "fruit", QueueSettings()), NameDefined(at(0), 1, "fruit.sweet")],
    [
        Arrived(at(6), 1, 1, at(6), *ARRIVED, b"a copy", at(1)),
        CopiedFrom(at(6), 1, 1, at(1), 0, 0, 6, 11),
        Collected(at(6), 1, 17, 0),
    ],
    [
        Arrived(at(7), 1, 2, at(7), *ARRIVED, b"another copy", at(2)),
        CopiedFrom(at(7), 1, 2, at(2), 0, 0, 6, 12),
        Collected(at(7), 1, 19, 0),
    ],
    [Succeeded(at(8), 1, 1, at(1), 0, 0, complete=True, result=b"eaten")],
]

VERSIONS_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "fruit", QueueSettings()),
        NameDefined(at(1), 1, "apple"),
        logged(2, 1, b"green", queue=1, object=1, key=b"k"),
        logged(2, 2, b"red", queue=1, object=1, key=b"l"),
        Versioned(at(2), 1, 1, 2),
    ],
    [
        Learned(at(3), 6, 11, at(2), 1, b"far", bytes(range(16))),
        Learned(at(3), 6, 12, at(2), 1, b"farther", bytes(range(1, 17))),
        Collected(at(3), 1, 17, 0),
    ],
    [logged(4, 3, b"yellow", queue=1, object=1, key=b"k"), Versioned(at(4), 1, 3, 1)],
    [Learned(at(5), 6, 13, at(5), 1, b"far", bytes(range(2, 18))), Collected(at(5), 1, 19, 0)],
]

DECIDED_COMMITS: list[list[Event]] = [
    [QueueCreated(at(0), 1, "dead", QueueSettings()), QueueCreated(at(0), 2, "orders", QueueSettings())],
    [logged(1, 1, b"apple"), Decided(at(1), 0, b"process1", b"\x91\x93\x07\x01\xc0")],
    [Promised(at(1), 3, 1, b"nightly"), Taken(at(2), 3, 1), Promised(at(2), 3, 2, "Größe".encode())],
    [logged(2, 2, b"pear"), Decided(at(2), 1, b"process1", b"\x91\x93\x08\x01\xc0")],
]

FOR_ONE_COMMITS: list[list[Event]] = [
    [
        QueueCreated(at(0), 1, "dead", QueueSettings()),
        QueueCreated(at(0), 2, "orders", QueueSettings(confirmations=2)),
        *[NameDefined(at(1), number, name) for number, name in enumerate(("billing", "crm", "audit"), 1)],
        logged(2, 1, b"apple"),
        logged(2, 2, b"pear"),
    ],
    [
        *[Delivered(*about(3, 1, 2, 1, who), visible_at=at(23), leased=True) for who in (1, 2, 3)],
        Delivered(*about(3, 2, 2, 1, 1), visible_at=at(23), leased=True),
    ],
    [
        InvalidatedForOne(*about(4, 1, 2, 1, 1), b"no JSON"),
        DeclinedForOne(*about(5, 2, 2, 1, 1)),
        ResultStored(*about(6, 1, 2, 1, 2), result=b"tasty"),
    ],
    [
        ResultStored(*about(7, 1, 2, 1, 3), result=b""),
        Completed(*about(7, 1, 2, 1, 3)),
    ],
]

GOLDEN = {
    "format-1": COMMITS,
    "format-1-receivers": RECEIVERS_COMMITS,
    "format-1-topics": TOPICS_COMMITS,
    "format-1-staging": STAGING_COMMITS,
    "format-1-several": SEVERAL_COMMITS,
    "format-1-damaged": DAMAGED_COMMITS,
    "format-1-names": NAMES_COMMITS,
    "format-1-timed-out": TIMED_OUT_COMMITS,
    "format-1-answered": ANSWERED_COMMITS,
    "format-1-schedules": SCHEDULES_COMMITS,
    "format-1-tokens": TOKENS_COMMITS,
    "format-1-shards": SHARDS_COMMITS,
    "format-1-reasons": REASONS_COMMITS,
    "format-1-copies": COPIES_COMMITS,
    "format-1-versions": VERSIONS_COMMITS,
    "format-1-decided": DECIDED_COMMITS,
    "format-1-for-one": FOR_ONE_COMMITS,
    "format-1-ahead": AHEAD_COMMITS,
}
"""Each directory beside this file, and the events it was made of, commit by commit."""


class HistoryElsewhere(MemoryHistory):
    """An Object History that is not part of the snapshots."""

    def sections(self) -> Iterator[Section]:
        yield from ()


def make(path: Path, commits: list[list[Event]]) -> None:
    """Write the events to a data directory, as a broker would, with a snapshot on the way."""
    path.mkdir()
    write_durably(path / "penstock.json", msgspec.json.encode(Identity(DIRECTORY_FORMAT, 0, ID_KEY.hex())) + b"\n")
    directory = DataDirectory(path)
    directory.open()
    log = SegmentLog(directory, segment_bytes=SEGMENT_BYTES)
    assert list(log.recover().events) == []
    engine = Engine(HistoryElsewhere())
    for count, events in enumerate(commits, start=1):
        for event in events:
            engine.evolve(event, log.append(event))
        now = events[-1].time
        commit(log, now + 1)
        if count == SNAPSHOT_AFTER:
            log.write_snapshot(engine.sections(), log.appended, now + 2)
            log.publish_snapshot(log.appended.offset)
    end, last = log.appended.position, log.segments[-1]
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
    return {"offset": offset, "position": position, "kind": name_of(event.kind), **as_plain(event)}


def _plain_names(texts: dict[int, str]) -> list[str] | dict[int, str]:
    """By number; a list, as long as no name was forgotten."""
    return list(texts.values()) if list(texts) == list(range(len(texts))) else texts


# Kinds that had another name when the golden files were described.
NAMES_THEN = {
    Kind.HANDED_OVER: "KICKED",
    Kind.FAILED: "EXASPERATED",
    Kind.HANDED_TO_RECEIVER: "HANDED_OVER",
    Kind.FAILED_FOR_ALL: "FAILED",
}


def name_of(kind: Kind) -> str:
    return NAMES_THEN.get(kind, kind.name)


def describe_state(engine: Engine) -> dict[str, Any]:
    return {
        "time": engine.time,
        "last queue": engine.last_queue,
        "names": _plain_names(engine.names.texts),
        "moved": [[*origin, *place] for origin, place in sorted(engine.moved.items())],
        **({"staging": msgspec.to_builtins(engine.staging.facts)} if engine.staging.committed else {}),
        **({"answered": describe_answered(engine)} if engine.answered.by_key else {}),
        **({"schedules": describe_schedules(engine)} if len(engine.schedules) else {}),
        **({"tokens": msgspec.to_builtins(engine.tokens.by_name)} if len(engine.tokens) else {}),
        **({"couriers": describe_couriers(engine)} if engine.couriers.cursors or engine.couriers.outboxes else {}),
        **({"outcomes": describe_outcomes(engine)} if engine.outcomes.by_origin else {}),
        **({"reasons": describe_reasons(engine)} if engine.reasons else {}),
        "queues": {
            queue.name: {
                "number": queue.number,
                "settings": queue.settings.to_store(),
                "last sequence": queue.last_sequence,
                "rows": {
                    str(sequence): describe_row(row)
                    for sequence in range(1, queue.last_sequence + 1)
                    if (row := queue.rows.get(sequence))
                },
                "digests": {digest.hex(): sequence for digest, sequence in sorted(queue.digests.items())},
                **({"receivers": describe_receivers(queue)} if len(queue.groups) else {}),
            }
            for queue in engine.queues.values()
        },
    }


def describe_answered(engine: Engine) -> dict[str, Any]:
    return {key.decode(): as_plain(request) for key, request in engine.answered.by_key.items()}


def describe_reasons(engine: Engine) -> list[list[Any]]:
    return [[*place, text] for place, text in engine.reasons.by_place.items()]


def describe_schedules(engine: Engine) -> dict[str, Any]:
    return {name: planned.to_store() for name, planned in engine.schedules.by_name.items()}


def describe_couriers(engine: Engine) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(engine.couriers, name)) for name in ("outboxes", "cursors", "origins")}


def describe_outcomes(engine: Engine) -> dict[str, Any]:
    return {
        origin.decode(): [asker.time, asker.forgotten, [each.hex() for each in asker.records]]
        for origin, asker in engine.outcomes.by_origin.items()
    }


def describe_row(row: Row) -> dict[str, int]:
    """Without what came later than the first descriptions, where there is nothing of it."""
    return {
        name: value for name, value in row._asdict().items() if value or name not in ("object", "topics", "marks")
    }


def describe_receivers(queue: Queue) -> dict[str, Any]:
    return {
        str(receiver): {
            "cursor": queue.groups.cursor(receiver),
            "slots": {
                str(sequence): slot._asdict()
                for sequence in range(1, queue.last_sequence + 1)
                if (slot := queue.groups.slot(receiver, sequence))
            },
        }
        for receiver in range(10)
        if receiver in queue.groups
    }


def as_plain(value: msgspec.Struct) -> dict[str, Any]:
    """A struct as JSON knows it, bytes in hexadecimal; without what came later, where there is nothing of it."""
    later = ("reason", *_LATER.get(type(value), ()))
    fields = msgspec.structs.asdict(value)
    return {name: as_plain_value(field) for name, field in fields.items() if field or name not in later}


_LATER: dict[type[msgspec.Struct], tuple[str, ...]] = {
    Carried: ("to_queue", "to_sequence"),
    Unchanged: ("headers",),
    Delivered: ("leased",),
    **dict.fromkeys((Fetched, TimedOut), ("ahead",)),
    Extended: ("begun",),
}


def as_plain_value(field: Any) -> Any:
    if isinstance(field, bytes):
        return field.hex()
    return field.to_store() if isinstance(field, QueueSettings | Schedule) else msgspec.to_builtins(field)


if __name__ == "__main__":
    for name, commits in GOLDEN.items():
        if not (HERE / name).exists():
            make(HERE / name, commits)
            described = json.dumps(describe(HERE / name), indent=1, ensure_ascii=False)
            (HERE / f"{name}.json").write_text(described + "\n")
