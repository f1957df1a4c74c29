"""The tables of the lake: what the events of a batch add to each, how such parts are merged, and what a reader sees.

A table is kept in parts: each batch of the stream appends what it alone knows, and reads nothing for it. Parts of one
key are merged when they are read, and when files are compacted: `merge` is associative, so how often does not matter.
Only the parts of a range of offsets without a hole may be merged: some tables need their order.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.limits import CONSUMERS_SHOWN_MAX, LEASE_DAYS_MAX
from penstock.model.kinds import Kind
from penstock.pipeline.columns import COLUMNS, HEADERS, TIME, arrow_schema
from penstock.pipeline.conditions import (
    ARRIVES,
    COUNTS_ALONE,
    DELIVERS,
    ENDS_FOR_ALL,
    LEAVES,
    MOMENT,
    MOVES_BY_HAND,
    OF_LEASES,
    OF_RECEIVERS,
    RANK,
    REMOVES,
    SETTLES,
    kind_is,
    letter_of,
    state_is,
)
from penstock.pipeline.lake import PARTITION


class Batch(NamedTuple):
    """Events, and what was known before them."""

    events: DataFrame
    first: int  # The offset of the first.
    leases: DataFrame  # Deliveries that were under way at the offset `leased_to`.
    leased_to: int
    newest: datetime  # The time of the last event.

    def since(self, offset: int) -> DataFrame:
        # Not where it says nothing: Spark compiles a condition anew for every number in it.
        return self.events if offset <= self.first else self.events.where(f"offset >= {offset}")


Change = Callable[[DataFrame], DataFrame]


def _same(frame: DataFrame) -> DataFrame:
    return frame


class Table(NamedTuple):
    name: str
    what: str
    schema: pa.Schema
    parts: Callable[[Batch, int], DataFrame]  # Of the events of a batch from this offset on.
    merge: Change = _same
    view: Change = _same  # What a reader sees of merged parts.
    order: tuple[str, ...] = ()  # Of the rows in a file.
    keyed: bool = False  # Only messages with a key have rows in it.
    whole: bool = False  # A batch replaces what was there.
    cumulative: bool = False  # What a reader sees of a date depends on the dates before it.
    reaches_back: str = ""  # Parts of which this is true change what a reader sees of any date.

    @property
    def in_parts(self) -> bool:
        """What is stored is not yet what a reader sees."""
        return self.merge is not _same or self.view is not _same

    @property
    def by_date(self) -> bool:
        return PARTITION in self.schema.names

    @property
    def spark_schema(self) -> StructType:
        return from_arrow_schema(self.schema)


_TEXT, _BYTES, _LONG, _INT = pa.utf8(), pa.binary(), pa.int64(), pa.int32()
_PLACE = {"queue": _TEXT, "queue_number": _INT, "sequence": _LONG}
_DATE = {PARTITION: pa.date32()}


# ── The words that the tables have in common ──────────────────────────────────────────────────────────────

_ALL = 1 << 40  # More messages than a queue holds.
_KEY_TEXT = "coalesce(try_validate_utf8(cast(key as string)), concat('0x', lower(hex(key))))"
_HASH = "coalesce(lower(hex(digest)), sha2(body, 256))"


def _first(condition: str) -> Column:
    return f.expr(f"min(time) filter (where {condition})")


def _count(condition: str) -> Column:
    return f.expr(f"count_if({condition})")


def _with_departures(events: DataFrame) -> DataFrame:
    """A message that an operator moves enters a queue, which is an event, and leaves another, which is none."""
    here, there = ("queue", "queue_number", "sequence"), ("to_queue", "to_queue_number", "to_sequence")
    changed = dict(zip((*here, *there), (*there, *here), strict=True)) | {"state": "'M'"}
    columns = [f"{changed.get(name, name)} as {name}" for name in events.columns]
    return events.unionByName(events.where(MOVES_BY_HAND).selectExpr(*columns))


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────


def _events(batch: Batch, since: int) -> DataFrame:
    return batch.since(since).withColumn(PARTITION, f.to_date("time"))


EVENTS = Table(
    "events",
    "every event, as it is in the log",
    pa.schema([*arrow_schema(COLUMNS), *pa.schema(_DATE)]),
    _events,
    order=("queue_number", "offset"),
)

# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────

# Told wherever a message enters a queue, but where it was moved to.
_TOLD = {**dict.fromkeys(("content_type", "sender", "object", "topics"), _TEXT), "priority": _LONG}
_CONTENT = {"body": _BYTES, "key": _BYTES, "headers": HEADERS, "digest": _BYTES}  # Of what is in the log once.
_FACTS: dict[str, Any] = {**_TOLD, "expires_at": TIME, **_CONTENT}
# The first time of each.
_TIMES = dict.fromkeys(("created", "entered", "consumed", "processed", "completed", "failed", "gone"), TIME)
_ELSEWHERE = {f"{whence}_{name}": kind for whence in ("origin", "moved") for name, kind in _PLACE.items()}
_CONSUMER = {"consumer": _TEXT, "fetched": TIME, "confirmed": TIME, "outcome": _LONG, "deliveries": _LONG}


def _messages(batch: Batch, since: int) -> DataFrame:
    """What is told once goes through as it is; what can happen again is counted together. So no body is sorted."""
    events = _with_removals_as_rows(_with_departures(batch.since(since)))
    both = f"state = 'Q' and {kind_is(Kind.LOGGED)}"  # Logged and queued, in one record: L speaks for it.
    copied = f"state = 'Q' and {kind_is(Kind.QUEUED)}"
    enters = f"not {kind_is(Kind.UNCHANGED)}"
    born = events.where(f"state = 'L' or {copied}").selectExpr(
        *("queue_number", "queue", "sequence", "created", *_FACTS, "time as modified"),
        MOMENT.replace("state", f"if({enters}, 'Q', state)") + " as last",
        f"if({enters}, time, null) as entered",
        *("to_queue as origin_queue", "to_queue_number as origin_queue_number", "to_sequence as origin_sequence"),
    )
    lived = events.where(f"state <> 'L' and not ({both}) and not ({copied})").groupBy(
        "queue_number", "queue", "sequence", "created", "consumer"
    )
    life = lived.agg(
        f.expr(f"max({MOMENT}) filter (where state <> 'M')").alias("last"),
        f.expr(f"max(receives) filter (where not {COUNTS_ALONE})").alias("receives"),
        f.max("time").alias("modified"),
        f.expr("max(expires_at) filter (where state = 'Q')").alias("expires_at"),
        _first("state = 'Q'").alias("entered"),
        _first(DELIVERS).alias("consumed"),
        _first(SETTLES).alias("processed"),
        _first("state = 'X'").alias("completed"),
        _first("state = 'E'").alias("failed"),
        _first(LEAVES).alias("gone"),
        *[
            f.expr(f"max(to_{name}) filter (where {condition})").alias(f"{whence}_{name}")
            for whence, condition in (("moved", "state in ('E', 'M')"), ("origin", ARRIVES))
            for name in ("queue", "queue_number", "sequence")
        ],
        _first(SETTLES).alias("confirmed"),
        f.expr(f"max({MOMENT}) filter (where {SETTLES} or state = 'K')").alias("outcome"),
        _count(DELIVERS).alias("deliveries"),
    )
    hands = "struct(consumer, consumed as fetched, confirmed, outcome, deliveries)"
    life = life.withColumn("consumers", f.expr(f"if(deliveries > 0 or confirmed is not null, array({hands}), null)"))
    moves = events.where("state = 'E' and to_queue_number is not null").selectExpr(
        *("to_queue as queue", "to_queue_number as queue_number", "to_sequence as sequence", "created"),
        *("queue as origin_queue", "queue_number as origin_queue_number", "sequence as origin_sequence"),
    )
    parts = born.unionByName(life.drop("consumer", "confirmed", "outcome", "deliveries"), allowMissingColumns=True)
    parts = parts.unionByName(moves, allowMissingColumns=True)
    return parts.withColumn(PARTITION, f.to_date("created"))


def _with_removals_as_rows(events: DataFrame) -> DataFrame:
    """The end of a queue, as a message that never was: with the sequence 0, created and gone at that moment."""
    return events.withColumns({name: f.expr(f"coalesce({name}, {other})") for name, other in _OF_REMOVAL.items()})


_OF_REMOVAL = {"sequence": "0L", "created": "time"}


def _without_removals(merged: DataFrame) -> DataFrame:
    """Messages that were still in their queue when it was removed went with it."""
    removals = merged.where("sequence = 0").selectExpr("queue_number", "gone as removed_at", "last as removal")
    ended = {
        "gone": "coalesce(gone, removed_at)",
        "last": "if(gone is null, coalesce(removal, last), last)",
        "modified": "if(gone is null, coalesce(removed_at, modified), modified)",
    }
    joined = merged.where("sequence <> 0").join(removals, "queue_number", "left")
    return joined.selectExpr(*[f"{ended.get(name, name)} as {name}" for name in merged.columns])


def _merge_messages(parts: DataFrame) -> DataFrame:
    newest = ("last", "receives", "modified", "queue", *_ELSEWHERE)
    grouped = parts.groupBy(PARTITION, "queue_number", "sequence").agg(
        *[f.max(name).alias(name) for name in newest],
        *[f.min(name).alias(name) for name in _TIMES],
        *[f.first(name, ignorenulls=True).alias(name) for name in _FACTS],
        f.flatten(f.collect_list("consumers")).alias("consumers"),
    )
    return grouped.withColumn("consumers", f.expr(_MERGED_CONSUMERS))


# Of each consumer: when it had the message first, when it first settled it, and how that ended.
_MERGED_CONSUMERS = f"""
    if(size(consumers) < 2, consumers, slice(array_sort(transform(
        array_distinct(transform(consumers, one -> one.consumer)),
        name -> aggregate(
            filter(consumers, one -> one.consumer <=> name),
            named_struct('consumer', name, 'fetched', cast(null as timestamp), 'confirmed', cast(null as timestamp),
                'outcome', cast(null as bigint), 'deliveries', 0L),
            (all, one) -> named_struct('consumer', name, 'fetched', least(all.fetched, one.fetched),
                'confirmed', least(all.confirmed, one.confirmed), 'outcome', greatest(all.outcome, one.outcome),
                'deliveries', all.deliveries + one.deliveries)
        )
    )), 1, {CONSUMERS_SHOWN_MAX}))
"""


def _see_messages(merged: DataFrame) -> DataFrame:
    """The document of a message. What was moved or copied has its content where it came from."""
    merged = _without_removals(merged)
    told = [f"if(own.priority is null, root.{name}, own.{name}) as {name}" for name in _TOLD]
    # What has not changed has the body of the version it equals, and nothing else of it.
    content = [f"coalesce(own.{name}, root.{name}) as {name}" for name in _CONTENT if name != "headers"]
    headers = "coalesce(own.headers, if(own.entered is null, null, root.headers)) as headers"
    rest = [f"own.{name}" for name in merged.columns if name not in _TOLD | _CONTENT]
    root = merged.where("body is not null").selectExpr(
        "queue_number as root_queue_number", "sequence as root_sequence", *_TOLD, *_CONTENT
    )
    rooted = _with_roots(merged)
    joined = rooted.alias("own").join(root.alias("root"), ["root_queue_number", "root_sequence"], "left")
    return joined.selectExpr(*rest, *told, *content, headers).selectExpr(*_DOCUMENT)


_HOPS_DOUBLED = 3  # So often a way is made twice as long: a message that was moved eight times is still known.


def _with_roots(merged: DataFrame) -> DataFrame:
    links = merged.where("origin_queue_number is not null").selectExpr(
        "queue_number", "sequence", "origin_queue_number as root_queue_number", "origin_sequence as root_sequence"
    )
    for _ in range(_HOPS_DOUBLED):
        following = links.selectExpr(
            *("queue_number as root_queue_number", "sequence as root_sequence"),
            *("root_queue_number as next", "root_sequence as next_sequence"),
        )
        links = links.join(following, ["root_queue_number", "root_sequence"], "left").selectExpr(
            *("queue_number", "sequence", "coalesce(next, root_queue_number) as root_queue_number"),
            "coalesce(next_sequence, root_sequence) as root_sequence",
        )
    return merged.join(links, ["queue_number", "sequence"], "left")


_STATE = letter_of("last")
_DOCUMENT = (
    *("queue", "queue_number", "sequence"),
    "body as message",
    "content_type",
    "filter(split(topics, '\\n'), topic -> topic <> '') as topics",
    *("object", f"{_KEY_TEXT} as key", "headers", "sender", "priority"),
    f"{_STATE} as state",
    "gone is null as queued",
    "processed is not null or exists(consumers, one -> one.confirmed is not null) as delivered",
    f"completed is not null or exists(consumers, one -> {letter_of('one.outcome')} <=> 'S') as success",
    "gone is not null as archived",
    "completed is not null as confirmed",
    *("created", "entered", "modified", "consumed", "processed", "completed", "failed", "gone", "expires_at"),
    "coalesce(receives, 0) as receives",
    "coalesce(size(filter(split(topics, '\\n'), topic -> topic <> '')), 0) as topic_count",
    f"size(filter(consumers, one -> {letter_of('one.outcome')} <=> 'S')) as confirmed_count",
    "transform(array_sort(consumers), one -> named_struct('consumer', one.consumer, 'fetched', one.fetched, "
    "'confirmed', one.confirmed, 'duration_ms', (unix_micros(one.confirmed) - unix_micros(one.fetched)) / 1000, "
    f"'outcome', {letter_of('one.outcome')}, 'deliveries', one.deliveries)) as consumers",
    *_ELSEWHERE,
    PARTITION,
)

MESSAGES = Table(
    "messages",
    "one row for each message in each queue: its content, state, times and consumers",
    pa.schema(
        {
            **_PLACE,
            "last": _LONG,
            "receives": _LONG,
            "modified": TIME,
            **_TIMES,
            **_FACTS,
            **_ELSEWHERE,
            "consumers": pa.list_(pa.struct(_CONSUMER)),
            **_DATE,
        }
    ),
    _messages,
    _merge_messages,
    _see_messages,
    reaches_back="sequence = 0",  # The removal of a queue.
    order=("queue_number", "sequence"),
)

# ── queue_minutes and leases ──────────────────────────────────────────────────────────────────────────────

_COUNTED = {
    "logged": "state = 'L'",
    "messages_in": "state = 'Q'",
    "messages_out": f"{state_is('KINX')} and not {OF_RECEIVERS}",
    "deliveries": DELIVERS,
    "confirmations": "state = 'S'",
    "retries": "state = 'R'",
    "dead": "state = 'E'",
    "expired": "state = 'Z'",
    "deleted": "state = 'D' and sequence is not null",
    "unchanged": "state = 'U'",
    "invalid": "state = 'I'",
    "not_interested": "state = 'N'",
    "gone": f"{LEAVES} and state <> 'U' and sequence is not null",
}
_MINUTE = "date_trunc('minute', time)"
# How long something took, as counts by bucket. Counts can be added up, in whatever order and by whichever engine.
_HISTOGRAM = pa.map_(_INT, _LONG)
_HISTOGRAMS = ("wait", "processing")
PERCENTILES = (50, 99)
_SUBDIVISION = 64  # Buckets of an octave: the middle of one is within 0.8 % of everything in it.


def _queue_minutes(batch: Batch, since: int) -> DataFrame:
    waited = f"if({DELIVERS} and receives = 1, greatest(unix_micros(time) - unix_micros(created), 0L), null)"
    counts = {name: _count(condition) + _beside(name) for name, condition in _COUNTED.items()}
    counted = _by_minute(_with_departures(batch.since(since)), "wait", waited, counts)
    took = "greatest(unix_micros(time) - unix_micros(fetched), 0L)"
    paired = _paired(batch)
    if since > batch.first:
        paired = paired.where(f"offset >= {since}")
    settled = paired.where(f"{SETTLES} and fetched is not null")
    parts = counted.unionByName(_by_minute(settled, "processing", took, {}), allowMissingColumns=True)
    return parts.withColumn(PARTITION, f.to_date("minute"))


def _beside(name: str) -> Column:
    """What a removed queue takes with it: all there is."""
    return f.expr(f"count_if({REMOVES}) * {_ALL}L") if name == "gone" else f.lit(0)


def _by_minute(events: DataFrame, name: str, micros: str, counts: dict[str, Column]) -> DataFrame:
    """Counts, and a histogram of a time in microseconds."""
    keys = ("queue", "queue_number", "minute")
    timed = events.withColumn("minute", f.expr(_MINUTE)).withColumn("micros", f.expr(micros))
    shift = f"greatest(0, cast(floor(log2(micros)) as int) - {_SUBDIVISION.bit_length() - 1})"
    bucket = f"cast({shift} * {_SUBDIVISION} + shiftright(micros, {shift}) as int)"
    by_bucket = timed.withColumn("bucket", f.expr(bucket)).groupBy(*keys, "bucket")
    counted = by_bucket.agg(f.expr("count(*)").alias("n"), *[count.alias(each) for each, count in counts.items()])
    entries = "collect_list(struct(bucket, n)) filter (where bucket is not null)"
    return counted.groupBy(*keys).agg(
        f.expr(f"map_from_entries({entries})").alias(name), *[f.sum(each).alias(each) for each in counts]
    )


def _merge_minutes(parts: DataFrame) -> DataFrame:
    added = "(bucket, one, other) -> coalesce(one, 0L) + coalesce(other, 0L)"
    merged = (
        f"aggregate(collect_list(%s), cast(map() as map<int, bigint>), (all, one) -> map_zip_with(all, one, {added}))"
    )
    return parts.groupBy(PARTITION, "queue_number", "minute").agg(
        f.max("queue").alias("queue"),
        *[f.sum(name).alias(name) for name in _COUNTED],
        *[f.expr(merged % name).alias(name) for name in _HISTOGRAMS],
    )


def _see_minutes(merged: DataFrame) -> DataFrame:
    """The depth is what has come in less what has gone, counted from the first event that the lake has."""
    so_far = Window.partitionBy("queue_number").orderBy("minute").rowsBetween(Window.unboundedPreceding, 0)
    depth = f.greatest(f.sum(f.expr("messages_in - gone")).over(so_far), f.lit(0))
    counts = [name for name in _COUNTED if name != "gone"]
    quantiles = [
        f.expr(_quantile(name, percent)).alias(f"{name}_p{percent}_ms")
        for name in _HISTOGRAMS
        for percent in PERCENTILES
    ]
    return merged.select("queue", "queue_number", "minute", *counts, depth.alias("depth"), *quantiles, PARTITION)


def _quantile(histogram: str, percent: int) -> str:
    """The middle of the bucket that holds it, in milliseconds; in whole numbers, so other engines get the same."""
    total = f"aggregate(map_values({histogram}), 0L, (all, one) -> all + one)"
    rank = f"(({total} * {percent} + 99) div 100)"
    bucket = f"""aggregate(array_sort(map_entries({histogram})),
        named_struct('seen', 0L, 'bucket', cast(null as int)),
        (all, one) -> named_struct('seen', all.seen + one.value,
            'bucket', if(all.seen < {rank}, one.key, all.bucket)),
        all -> all.bucket)"""
    # transform over one element stands for a variable.
    return f"transform(array({bucket}), bucket -> {_middle('bucket')} / 1000)[0]"


def _middle(bucket: str) -> str:
    """Of a bucket: its first value and half of its width. Below 128 a bucket is one value."""
    shift = f"greatest(0, {bucket} div {_SUBDIVISION} - 1)"
    first = f"shiftleft(cast({bucket} - {shift} * {_SUBDIVISION} as bigint), cast({shift} as int))"
    return f"({first} + shiftright(shiftleft(1L, cast({shift} as int)), 1))"


QUEUE_MINUTES = Table(
    "queue_minutes",
    "what went into each queue and out of it in each minute, its depth, and how long it took",
    pa.schema(
        {
            "queue": _TEXT,
            "queue_number": _INT,
            "minute": TIME,
            **dict.fromkeys(_COUNTED, _LONG),
            **dict.fromkeys(_HISTOGRAMS, _HISTOGRAM),
            **_DATE,
        }
    ),
    _queue_minutes,
    _merge_minutes,
    _see_minutes,
    cumulative=True,
    order=("queue_number", "minute"),
)


def _paired(batch: Batch) -> DataFrame:
    """Deliveries and what ended them, each with the delivery before it: when it was `fetched`, and what comes `next`.

    Deliveries of earlier batches come from the table of those that were under way."""
    happened = batch.since(batch.leased_to).where(OF_LEASES)
    receiver = f"if({OF_RECEIVERS}, coalesce(consumer, ''), null) as receiver"
    facts = ("queue_number", "queue", "sequence", "offset", "state", "time", "consumer", "visible_at")
    before = batch.leases.withColumn("state", f.lit("F")).withColumnRenamed("fetched", "time")
    both = happened.selectExpr(*facts, receiver).unionByName(before)
    line = Window.partitionBy("queue_number", "sequence", "receiver").orderBy("offset", f.expr(RANK))
    fetched = f.last(f.expr("if(state = 'F', time, null)"), ignorenulls=True)
    return both.select(
        "*",
        fetched.over(line.rowsBetween(Window.unboundedPreceding, -1)).alias("fetched"),
        f.lead("state").over(line).alias("next"),
    )


def _leases(batch: Batch, _: int) -> DataFrame:
    forgotten = batch.newest.date() - timedelta(days=LEASE_DAYS_MAX)
    last = _paired(batch).where("state = 'F' and next is null").drop("fetched")
    kept = last.where(f"coalesce(visible_at, time) > timestamp '{forgotten}'")
    events = _with_departures(batch.since(batch.leased_to))
    alone = "state in ('I', 'N')"  # It may be one of several consumers, and says so for itself.
    ended = events.where(f"{ENDS_FOR_ALL} or {alone} and consumer is not null").selectExpr(
        "queue_number as end_queue", "sequence as end_sequence", "offset as end", f"if({alone}, consumer, null) as by"
    )
    is_over = (
        "queue_number = end_queue and sequence = end_sequence and end >= offset and (by is null or by = receiver)"
    )
    removed = batch.since(batch.leased_to).where(REMOVES).selectExpr("queue_number as end_queue", "offset as end")
    left = kept.join(ended, f.expr(is_over), "left_anti")
    left = left.join(f.broadcast(removed), f.expr("queue_number = end_queue and end >= offset"), "left_anti")
    return left.selectExpr(
        *("queue_number", "queue", "sequence", "receiver", "consumer", "offset", "time as fetched", "visible_at")
    )


LEASES = Table(
    "leases",
    "deliveries that nobody has settled yet",
    pa.schema(
        {
            **_PLACE,
            "receiver": _TEXT,
            "consumer": _TEXT,
            "offset": _LONG,
            "fetched": TIME,
            "visible_at": TIME,
        }
    ),
    _leases,
    order=("queue_number", "sequence"),
    whole=True,
)

# ── changes and object_history ────────────────────────────────────────────────────────────────────────────


def _versions(batch: Batch, since: int) -> DataFrame:
    return _keyed(batch, since, Kind.LOGGED).selectExpr(*_KEY, *list(_VERSION)[:-1], f"{_HASH} as hash")


def _keyed(batch: Batch, since: int, kind: Kind) -> DataFrame:
    return batch.since(since).where(f"state = 'L' and {kind_is(kind)} and object is not null and key is not null")


_KEY = {"object": _TEXT, "key": _BYTES}
_VERSION = {"offset": _LONG, "time": TIME, **_PLACE, "hash": _TEXT}


def _changes(batch: Batch, since: int) -> DataFrame:
    return _changed(_versions(batch, since)).withColumn(PARTITION, f.to_date("time")).drop("previous_hash")


def _changed(versions: DataFrame) -> DataFrame:
    """Without those that say the same as the one before."""
    line = Window.partitionBy(*_KEY).orderBy("offset")
    with_previous = versions.withColumn("previous_hash", f.lag("hash").over(line))
    return with_previous.where("not hash <=> previous_hash")


def _see_changes(parts: DataFrame) -> DataFrame:
    line = Window.partitionBy(*_KEY).orderBy("offset")
    numbered = _changed(parts).withColumn("version", f.row_number().over(line))
    previous = numbered.withColumn("previous_time", f.lag("time").over(line))
    return previous.selectExpr(
        *("object", f"{_KEY_TEXT} as key", "version", "time", "hash", "previous_hash", "previous_time"),
        *("queue", "queue_number", "sequence", "offset", PARTITION),
    )


CHANGES = Table(
    "changes",
    "each time an object's content was another than before",
    pa.schema({**_KEY, **_VERSION, **_DATE}),
    _changes,
    view=_see_changes,
    cumulative=True,
    order=tuple(_KEY),
    keyed=True,
)


def _object_history(batch: Batch, since: int) -> DataFrame:
    version = f"struct({', '.join(_VERSION)})"
    single = _versions(batch, since).selectExpr(
        *_KEY,
        *(f"{version} as first", f"{version} as last", f"if(true, null, {version}) as changed"),
        *("0L as changes", "1L as seen", "0L as unchanged", "time as seen_at"),
    )
    same = _keyed(batch, since, Kind.UNCHANGED).selectExpr(
        *_KEY, "0L as changes", "1L as seen", "1L as unchanged", "time as seen_at"
    )
    return _merge_history(single.unionByName(same, allowMissingColumns=True))


def _merge_history(parts: DataFrame) -> DataFrame:
    """Parts that follow each other: where one begins otherwise than the one before ended, there is a change more."""
    line = Window.partitionBy(*_KEY).orderBy("first.offset").rowsBetween(Window.unboundedPreceding, -1)
    before = f.last("last.hash", ignorenulls=True).over(line)
    joints = parts.withColumn("is_change", f.coalesce(before != f.col("first.hash"), f.lit(False)))
    return joints.groupBy(*_KEY).agg(
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.expr("sum(changes) + count_if(is_change)").alias("changes"),
        *[f.sum(name).alias(name) for name in ("seen", "unchanged")],
        f.max("seen_at").alias("seen_at"),
        f.expr("max(coalesce(changed, if(is_change, first, null)))").alias("changed"),
    )


def _see_history(merged: DataFrame) -> DataFrame:
    change = "coalesce(changed, first)"
    return merged.selectExpr(
        *(
            "object",
            f"{_KEY_TEXT} as key",
            "last.hash as hash",
            "changes + 1 as versions",
            "seen",
            "unchanged",
        ),
        *("first.time as first_seen", f"{change}.time as last_change", "seen_at as last_seen"),
        *(f"{change}.queue as queue", f"{change}.queue_number as queue_number", f"{change}.sequence as sequence"),
    )


OBJECT_HISTORY = Table(
    "object_history",
    "each object by its key: the hash of its content, how many versions it had, when it changed last",
    pa.schema(
        {
            **_KEY,
            **dict.fromkeys(("first", "last", "changed"), pa.struct(_VERSION)),
            "changes": _LONG,
            "seen": _LONG,
            "unchanged": _LONG,
            "seen_at": TIME,
        }
    ),
    _object_history,
    _merge_history,
    _see_history,
    order=tuple(_KEY),
    keyed=True,
)

# In the order in which a batch writes them: the next batch goes on from the leases, so they come after what is made
# from the old ones.
TABLES = {table.name: table for table in (EVENTS, QUEUE_MINUTES, LEASES, MESSAGES, CHANGES, OBJECT_HISTORY)}
