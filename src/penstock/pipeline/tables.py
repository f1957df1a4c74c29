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
from penstock.model import Kind
from penstock.pipeline.lake import PARTITION
from penstock.pipeline.rows import arrow_schema
from penstock.storage.columns import COLUMNS


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

    @property
    def by_date(self) -> bool:
        return PARTITION in self.schema.names

    @property
    def spark_schema(self) -> StructType:
        return from_arrow_schema(self.schema)


_TEXT, _BYTES, _LONG, _INT = pa.utf8(), pa.binary(), pa.int64(), pa.int32()
_TIME = pa.timestamp("us", tz="UTC")
_PLACE = {"queue": _INT, "queue_name": _TEXT, "sequence": _LONG}
_DATE = {PARTITION: pa.date32()}


# ── The words that the tables have in common ──────────────────────────────────────────────────────────────

# Letters that share an offset are of one record, and happen in this order. M is ours: see `_with_departures`.
LETTERS = "LUQFKRSINXEZDMB"
_MOMENT = f"offset * 16 + instr('{LETTERS}', letter)"  # Grows from event to event, and tells the letter.
assert len(LETTERS) < 16


def _letter(moment: str) -> str:
    return f"substr('{LETTERS}', cast({moment} % 16 as int), 1)"


def _kinds(*kinds: Kind) -> str:
    return f"kind in ({', '.join(str(int(kind)) for kind in kinds)})"


# What receivers do changes nothing for the workers of a queue.
_OF_RECEIVERS = _kinds(Kind.DELIVERED, Kind.HANDED_OVER, Kind.GIVEN_BACK, Kind.RESULT_STORED)
_DELIVERS = "letter in ('F', 'K')"
_SETTLES = "letter in ('S', 'I', 'N')"
_LEAVES = f"letter in ('U', 'K', 'I', 'N', 'X', 'E', 'Z', 'D', 'M') and not {_OF_RECEIVERS}"
_ARRIVES = f"letter = 'Q' and {_kinds(Kind.MOVED)}"
# Whoever has the message, worker or receiver, has it no longer.
_ENDS_FOR_ALL = f"(letter in ('Z', 'D', 'M', 'E', 'X') and not {_kinds(Kind.SUCCEEDED, Kind.EXASPERATED)})"
# A queue that is removed ends all its messages, in one event without a sequence.
_REMOVES = _kinds(Kind.QUEUE_REMOVED)
_ALL = 1 << 40  # More messages than a queue holds.
_HASH = "coalesce(lower(hex(digest)), sha2(body, 256))"


def _first(condition: str) -> Column:
    return f.expr(f"min(time) filter (where {condition})")


def _count(condition: str) -> Column:
    return f.expr(f"count_if({condition})")


def _with_departures(events: DataFrame) -> DataFrame:
    """A message that an operator moves enters a queue, which is an event, and leaves another, which is none."""
    there = {"queue": "to_queue", "sequence": "to_sequence", "to_queue": "queue", "to_sequence": "sequence"}
    changed = there | {"letter": "'M'", "queue_name": "cast(null as string)"}
    columns = [f"{changed.get(name, name)} as {name}" for name in events.columns]
    return events.unionByName(events.where(_kinds(Kind.MOVED)).selectExpr(*columns))


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────


def _events(batch: Batch, since: int) -> DataFrame:
    return batch.since(since).withColumn(PARTITION, f.to_date("time"))


EVENTS = Table(
    "events",
    "every event, as it is in the log",
    pa.schema([*arrow_schema(COLUMNS), *pa.schema(_DATE)]),
    _events,
    order=("queue", "offset"),
)

# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────

# Told wherever a message enters a queue, but where it was moved to.
_TOLD = {**dict.fromkeys(("content_type", "sender", "object", "topics"), _TEXT), "priority": _LONG}
_CONTENT = dict.fromkeys(("body", "key", "headers", "digest"), _BYTES)  # Of what is in the log once.
_FACTS: dict[str, Any] = {**_TOLD, "expires_at": _TIME, **_CONTENT}
# The first time of each.
_TIMES = dict.fromkeys(("created", "entered", "consumed", "processed", "completed", "failed", "gone"), _TIME)
_ELSEWHERE = {"origin_queue": _INT, "origin_sequence": _LONG, "moved_queue": _INT, "moved_sequence": _LONG}
# Where it may be one of several consumers whose deliveries are counted.
_COUNTS_ALONE = f"({_OF_RECEIVERS} or {_kinds(Kind.INVALID, Kind.NOT_INTERESTED, Kind.COMPLETED, Kind.FAILED)})"
_CONSUMER = {"consumer": _TEXT, "fetched": _TIME, "confirmed": _TIME, "outcome": _LONG, "deliveries": _LONG}


def _messages(batch: Batch, since: int) -> DataFrame:
    """What is told once goes through as it is; what can happen again is counted together. So no body is sorted."""
    events = _with_removals_as_rows(_with_departures(batch.since(since)))
    both = f"letter = 'Q' and {_kinds(Kind.LOGGED)}"  # Logged and queued, in one record: L speaks for it.
    copied = f"letter = 'Q' and {_kinds(Kind.QUEUED)}"
    enters = f"not {_kinds(Kind.UNCHANGED)}"
    born = events.where(f"letter = 'L' or {copied}").selectExpr(
        *("queue", "queue_name", "sequence", "created", *_FACTS, "time as modified"),
        _MOMENT.replace("letter", f"if({enters}, 'Q', letter)") + " as last",
        f"if({enters}, time, null) as entered",
        *("to_queue as origin_queue", "to_sequence as origin_sequence"),
    )
    lived = events.where(f"letter <> 'L' and not ({both}) and not ({copied})").groupBy(
        "queue", "queue_name", "sequence", "created", "consumer"
    )
    life = lived.agg(
        f.expr(f"max({_MOMENT}) filter (where letter <> 'M')").alias("last"),
        f.expr(f"max(receives) filter (where not {_COUNTS_ALONE})").alias("receives"),
        f.max("time").alias("modified"),
        f.expr("max(expires_at) filter (where letter = 'Q')").alias("expires_at"),
        _first("letter = 'Q'").alias("entered"),
        _first(_DELIVERS).alias("consumed"),
        _first(_SETTLES).alias("processed"),
        _first("letter = 'X'").alias("completed"),
        _first("letter = 'E'").alias("failed"),
        _first(_LEAVES).alias("gone"),
        f.expr("max(to_queue) filter (where letter in ('E', 'M'))").alias("moved_queue"),
        f.expr("max(to_sequence) filter (where letter in ('E', 'M'))").alias("moved_sequence"),
        f.expr(f"max(to_queue) filter (where {_ARRIVES})").alias("origin_queue"),
        f.expr(f"max(to_sequence) filter (where {_ARRIVES})").alias("origin_sequence"),
        _first(_SETTLES).alias("confirmed"),
        f.expr(f"max({_MOMENT}) filter (where {_SETTLES} or letter = 'K')").alias("outcome"),
        _count(_DELIVERS).alias("deliveries"),
    )
    hands = "struct(consumer, consumed as fetched, confirmed, outcome, deliveries)"
    life = life.withColumn("consumers", f.expr(f"if(deliveries > 0 or confirmed is not null, array({hands}), null)"))
    moves = events.where("letter = 'E' and to_queue is not null").selectExpr(
        *("to_queue as queue", "to_sequence as sequence", "created"),
        *("queue as origin_queue", "sequence as origin_sequence"),
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
    removals = merged.where("sequence = 0").selectExpr("queue", "gone as removed_at", "last as removal")
    ended = {
        "gone": "coalesce(gone, removed_at)",
        "last": "if(gone is null, coalesce(removal, last), last)",
        "modified": "if(gone is null, coalesce(removed_at, modified), modified)",
    }
    joined = merged.where("sequence <> 0").join(removals, "queue", "left")
    return joined.selectExpr(*[f"{ended.get(name, name)} as {name}" for name in merged.columns])


def _merge_messages(parts: DataFrame) -> DataFrame:
    newest = ("last", "receives", "modified", "queue_name", *_ELSEWHERE)
    grouped = parts.groupBy(PARTITION, "queue", "sequence").agg(
        *[f.max(name).alias(name) for name in newest],
        *[f.min(name).alias(name) for name in _TIMES],
        *[f.first(name, ignorenulls=True).alias(name) for name in _FACTS],
        f.flatten(f.collect_list("consumers")).alias("consumers"),
    )
    return grouped.withColumn("consumers", f.expr(_MERGED_CONSUMERS))


# Of each consumer: when it had the message first, when it first settled it, and how that ended.
_MERGED_CONSUMERS = f"""
    if(size(consumers) < 2, consumers, slice(transform(
        array_distinct(transform(consumers, one -> one.consumer)),
        name -> aggregate(
            filter(consumers, one -> one.consumer <=> name),
            named_struct('consumer', name, 'fetched', cast(null as timestamp), 'confirmed', cast(null as timestamp),
                'outcome', cast(null as bigint), 'deliveries', 0L),
            (all, one) -> named_struct('consumer', name, 'fetched', least(all.fetched, one.fetched),
                'confirmed', least(all.confirmed, one.confirmed), 'outcome', greatest(all.outcome, one.outcome),
                'deliveries', all.deliveries + one.deliveries)
        )
    ), 1, {CONSUMERS_SHOWN_MAX}))
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
        "queue as root_queue", "sequence as root_sequence", *_TOLD, *_CONTENT
    )
    rooted = _with_roots(merged)
    joined = rooted.alias("own").join(root.alias("root"), ["root_queue", "root_sequence"], "left")
    return joined.selectExpr(*rest, *told, *content, headers).selectExpr(*_DOCUMENT)


_HOPS_DOUBLED = 3  # So often a way is made twice as long: a message that was moved eight times is still known.


def _with_roots(merged: DataFrame) -> DataFrame:
    links = merged.where("origin_queue is not null").selectExpr(
        "queue", "sequence", "origin_queue as root_queue", "origin_sequence as root_sequence"
    )
    for _ in range(_HOPS_DOUBLED):
        following = links.selectExpr(
            "queue as root_queue", "sequence as root_sequence", "root_queue as next", "root_sequence as next_sequence"
        )
        links = links.join(following, ["root_queue", "root_sequence"], "left").selectExpr(
            *("queue", "sequence", "coalesce(next, root_queue) as root_queue"),
            "coalesce(next_sequence, root_sequence) as root_sequence",
        )
    return merged.join(links, ["queue", "sequence"], "left")


_STATE = _letter("last")
_DOCUMENT = (
    *("queue_name", "queue", "sequence"),
    "body as message",
    "content_type as mime_type",
    "filter(split(topics, '\\n'), topic -> topic <> '') as topics",
    *("object", "cast(key as string) as key", "headers", "sender", "priority"),
    f"{_STATE} as state",
    "gone is null as queued",
    "processed is not null or exists(consumers, one -> one.confirmed is not null) as delivered",
    f"completed is not null or exists(consumers, one -> {_letter('one.outcome')} <=> 'S') as success",
    "gone is not null as archived",
    "completed is not null as confirmed",
    *("created", "entered", "modified", "consumed", "processed", "completed", "failed", "gone", "expires_at"),
    "coalesce(receives, 0) as receives",
    "coalesce(size(filter(split(topics, '\\n'), topic -> topic <> '')), 0) as topic_count",
    "size(filter(consumers, one -> one.confirmed is not null)) as confirmed_count",
    "transform(array_sort(consumers), one -> named_struct('consumer', one.consumer, 'fetched', one.fetched, "
    "'confirmed', one.confirmed, 'duration_ms', (unix_micros(one.confirmed) - unix_micros(one.fetched)) / 1000, "
    f"'outcome', {_letter('one.outcome')}, 'deliveries', one.deliveries)) as consumers",
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
            "modified": _TIME,
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
    order=("queue", "sequence"),
)

# ── queue_minutes and leases ──────────────────────────────────────────────────────────────────────────────

_COUNTED = {
    "logged": "letter = 'L'",
    "messages_in": "letter = 'Q'",
    "messages_out": f"letter in ('K', 'I', 'N', 'X') and not {_OF_RECEIVERS}",
    "deliveries": _DELIVERS,
    "confirmations": "letter = 'S'",
    "retries": "letter = 'R'",
    "dead": "letter = 'E'",
    "expired": "letter = 'Z'",
    "deleted": "letter = 'D' and sequence is not null",
    "unchanged": "letter = 'U'",
    "invalid": "letter = 'I'",
    "not_interested": "letter = 'N'",
    "gone": f"{_LEAVES} and letter <> 'U' and sequence is not null",
}
_SKETCHES = ("wait", "processing")
_MINUTE = "date_trunc('minute', time)"


def _queue_minutes(batch: Batch, since: int) -> DataFrame:
    keys = ("queue", "queue_name", "minute")
    waited = "if(letter in ('F', 'K') and receives = 1, greatest(unix_micros(time) - unix_micros(created), 0L), null)"
    counted = (
        _with_departures(batch.since(since))
        .withColumn("minute", f.expr(_MINUTE))
        .groupBy(*keys)
        .agg(
            *[(_count(condition) + _beside(name)).alias(name) for name, condition in _COUNTED.items()],
            f.expr(f"kll_sketch_agg_bigint({waited})").alias("wait"),
        )
    )
    took = "greatest(unix_micros(time) - unix_micros(fetched), 0L)"
    paired = _paired(batch)
    if since > batch.first:
        paired = paired.where(f"offset >= {since}")
    processed = (
        paired.where(f"{_SETTLES} and fetched is not null")
        .withColumn("minute", f.expr(_MINUTE))
        .groupBy(*keys)
        .agg(f.expr(f"kll_sketch_agg_bigint({took})").alias("processing"))
    )
    parts = counted.unionByName(processed, allowMissingColumns=True)
    return parts.withColumn(PARTITION, f.to_date("minute"))


def _beside(name: str) -> Column:
    """What a removed queue takes with it: all there is."""
    return f.expr(f"count_if({_REMOVES}) * {_ALL}L") if name == "gone" else f.lit(0)


def _merge_minutes(parts: DataFrame) -> DataFrame:
    return parts.groupBy(PARTITION, "queue", "minute").agg(
        f.max("queue_name").alias("queue_name"),
        *[f.sum(name).alias(name) for name in _COUNTED],
        *[f.expr(f"kll_merge_agg_bigint({name})").alias(name) for name in _SKETCHES],
    )


def _see_minutes(merged: DataFrame) -> DataFrame:
    """The depth is what has come in less what has gone, counted from the first event that the lake has."""
    so_far = Window.partitionBy("queue").orderBy("minute").rowsBetween(Window.unboundedPreceding, 0)
    depth = f.greatest(f.sum(f.expr("messages_in - gone")).over(so_far), f.lit(0))
    counts = [name for name in _COUNTED if name != "gone"]
    quantiles = [
        f.expr(
            f"if(kll_sketch_get_n_bigint({name}) > 0, kll_sketch_get_quantile_bigint({name}, {rank}) / 1000, null)"
        ).alias(f"{name}_p{percent}_ms")
        for name in _SKETCHES
        for percent, rank in ((50, 0.5), (99, 0.99))
    ]
    return merged.select("queue_name", "queue", "minute", *counts, depth.alias("depth"), *quantiles, PARTITION)


QUEUE_MINUTES = Table(
    "queue_minutes",
    "what went into each queue and out of it in each minute, its depth, and how long it took",
    pa.schema(
        {
            "queue": _INT,
            "queue_name": _TEXT,
            "minute": _TIME,
            **dict.fromkeys(_COUNTED, _LONG),
            **dict.fromkeys(_SKETCHES, _BYTES),
            **_DATE,
        }
    ),
    _queue_minutes,
    _merge_minutes,
    _see_minutes,
    order=("queue", "minute"),
)


def _paired(batch: Batch) -> DataFrame:
    """Deliveries and what ended them, each with the delivery before it: when it was `fetched`, and what comes `next`.

    Deliveries of earlier batches come from the table of those that were under way."""
    happened = batch.since(batch.leased_to).where("letter in ('F', 'R', 'S', 'I', 'N', 'E', 'Z', 'D')")
    receiver = f"if({_OF_RECEIVERS}, coalesce(consumer, ''), null) as receiver"
    facts = ("queue", "queue_name", "sequence", "offset", "letter", "time", "consumer", "visible_at")
    before = batch.leases.withColumn("letter", f.lit("F")).withColumnRenamed("fetched", "time")
    both = happened.selectExpr(*facts, receiver).unionByName(before)
    line = Window.partitionBy("queue", "sequence", "receiver").orderBy(
        "offset", f.expr(f"instr('{LETTERS}', letter)")
    )
    fetched = f.last(f.expr("if(letter = 'F', time, null)"), ignorenulls=True)
    return both.select(
        "*",
        fetched.over(line.rowsBetween(Window.unboundedPreceding, -1)).alias("fetched"),
        f.lead("letter").over(line).alias("next"),
    )


def _leases(batch: Batch, _: int) -> DataFrame:
    forgotten = batch.newest.date() - timedelta(days=LEASE_DAYS_MAX)
    last = _paired(batch).where("letter = 'F' and next is null").drop("fetched")
    kept = last.where(f"coalesce(visible_at, time) > timestamp '{forgotten}'")
    events = _with_departures(batch.since(batch.leased_to))
    alone = "letter in ('I', 'N')"  # It may be one of several consumers, and says so for itself.
    ended = events.where(f"{_ENDS_FOR_ALL} or {alone} and consumer is not null").selectExpr(
        "queue as end_queue", "sequence as end_sequence", "offset as end", f"if({alone}, consumer, null) as by"
    )
    is_over = "queue = end_queue and sequence = end_sequence and end >= offset and (by is null or by = receiver)"
    removed = batch.since(batch.leased_to).where(_REMOVES).selectExpr("queue as end_queue", "offset as end")
    left = kept.join(ended, f.expr(is_over), "left_anti")
    left = left.join(f.broadcast(removed), f.expr("queue = end_queue and end >= offset"), "left_anti")
    return left.selectExpr(
        *("queue", "queue_name", "sequence", "receiver", "consumer", "offset", "time as fetched", "visible_at")
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
            "fetched": _TIME,
            "visible_at": _TIME,
        }
    ),
    _leases,
    order=("queue", "sequence"),
    whole=True,
)

# ── changes and object_history ────────────────────────────────────────────────────────────────────────────


def _versions(batch: Batch, since: int) -> DataFrame:
    return _keyed(batch, since, Kind.LOGGED).selectExpr(*_KEY, *list(_VERSION)[:-1], f"{_HASH} as hash")


def _keyed(batch: Batch, since: int, kind: Kind) -> DataFrame:
    return batch.since(since).where(f"letter = 'L' and {_kinds(kind)} and object is not null and key is not null")


_KEY = {"object": _TEXT, "key": _BYTES}
_VERSION = {"offset": _LONG, "time": _TIME, **_PLACE, "hash": _TEXT}


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
        *("object", "cast(key as string) as key", "version", "time", "hash", "previous_hash", "previous_time"),
        *("queue_name", "queue", "sequence", "offset", PARTITION),
    )


CHANGES = Table(
    "changes",
    "each time an object's content was another than before",
    pa.schema({**_KEY, **_VERSION, **_DATE}),
    _changes,
    view=_see_changes,
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
            "cast(key as string) as key",
            "last.hash as hash",
            "changes + 1 as versions",
            "seen",
            "unchanged",
        ),
        *("first.time as first_seen", f"{change}.time as last_change", "seen_at as last_seen"),
        *(f"{change}.queue_name as queue_name", f"{change}.queue as queue", f"{change}.sequence as sequence"),
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
            "seen_at": _TIME,
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
