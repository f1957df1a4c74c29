"""Makes the table `messages` with Spark: one row for each message in each queue."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.limits import CONSUMERS_SHOWN_MAX
from penstock.model.kinds import Kind
from penstock.pipeline.lake.batch import KEY_TEXT, Batch, count_if, first_time, with_departures
from penstock.pipeline.lake.conditions import (
    ARRIVES,
    COUNTS_ALONE,
    DELIVERS,
    LEAVES,
    MOMENT,
    SETTLES,
    kind_is,
    letter_of,
)
from penstock.pipeline.lake.delta import PARTITION, Offsets
from penstock.pipeline.lake.tables import ATTRIBUTES, CONTENT, ELSEWHERE, FACTS, HOPS_MAX, PLACE, TIMES


def make_messages(batch: Batch, since: Offsets) -> DataFrame:
    """The parts of a batch. Content passes through, only repeated events are aggregated, so that no body is
    sorted."""
    raw = batch.since(since)
    events = _with_removals_as_rows(with_departures(raw))
    parts = _births(events)
    for others in (_lives(events), *_moves(raw)):
        parts = parts.unionByName(others, allowMissingColumns=True)
    return parts.withColumn(PARTITION, f.to_date("created"))


_ENTERS = f"not {kind_is(Kind.UNCHANGED)}"
_BY_REFERENCE = f"(state = 'Q' and {kind_is(Kind.QUEUED, Kind.ARRIVED)})"
# A message that is logged and queued is one record with the letters L and Q; only its L makes a row.
_IS_BIRTH = f"(state = 'L' or {_BY_REFERENCE} or state = 'Q' and {kind_is(Kind.LOGGED)})"


def _births(events: DataFrame) -> DataFrame:
    return events.where(f"state = 'L' or {_BY_REFERENCE}").selectExpr(
        *("queue_number", "queue", "sequence", "shard", "created", *FACTS, "time as modified"),
        MOMENT.replace("state", f"if({_ENTERS}, 'Q', state)") + " as last",
        f"if({_ENTERS}, time, null) as entered",
        *("to_queue as origin_queue", "to_queue_number as origin_queue_number", "to_sequence as origin_sequence"),
    )


def _lives(events: DataFrame) -> DataFrame:
    """The events after a message's birth, by consumer. No text is aggregated: Spark would have to sort for that."""
    life = (
        events.where(f"not {_IS_BIRTH}")
        .groupBy("queue_number", "queue", "sequence", "created", "consumer")
        .agg(
            f.expr("max(shard) filter (where state <> 'M')").alias("shard"),
            f.expr(f"max({MOMENT}) filter (where state <> 'M')").alias("last"),
            f.expr(f"max(receives) filter (where not {COUNTS_ALONE})").alias("receives"),
            f.max("time").alias("modified"),
            f.expr("max(expires_at) filter (where state = 'Q')").alias("expires_at"),
            first_time("state = 'Q'").alias("entered"),
            first_time(DELIVERS).alias("consumed"),
            first_time(SETTLES).alias("processed"),
            first_time("state = 'X'").alias("completed"),
            first_time("state = 'E'").alias("failed"),
            first_time(LEAVES).alias("gone"),
            f.expr(f"max({MOMENT}) filter (where {SETTLES} or state = 'K')").alias("outcome"),
            count_if(DELIVERS).alias("deliveries"),
        )
    )
    consumer = "array(struct(consumer, consumed as fetched, processed as confirmed, outcome, deliveries))"
    has_one = "deliveries > 0 or processed is not null"
    consumers = f.expr(f"if({has_one}, {consumer}, null)")
    return life.withColumn("consumers", consumers).drop("consumer", "outcome", "deliveries")


def _moves(raw: DataFrame) -> Iterator[DataFrame]:
    """Where messages went and came from, one row for each of the two places. E names the place that a dead letter
    goes to, Q the place that an operator moved the message from."""
    moves = raw.where(f"to_queue_number is not null and (state = 'E' or {ARRIVES})")
    for own, other, leaves in (("", "to_", "state = 'E'"), ("to_", "", "state <> 'E'")):
        yield moves.selectExpr(
            *(f"{own}{name} as {name}" for name in PLACE),
            "created",
            *(f"if({leaves}, {other}{name}, null) as moved_{name}" for name in PLACE),
            *(f"if({leaves}, null, {other}{name}) as origin_{name}" for name in PLACE),
        )


def _with_removals_as_rows(events: DataFrame) -> DataFrame:
    """Give the removal of a queue the row of a message with sequence 0, created and gone at that moment."""
    return events.withColumns({name: f.expr(f"coalesce({name}, {other})") for name, other in _OF_REMOVAL.items()})


_OF_REMOVAL = {"sequence": "0L", "created": "time"}


def _without_removals(merged: DataFrame) -> DataFrame:
    """Without the rows of removals; messages that were in a removed queue end with it."""
    removals = merged.where("sequence = 0").selectExpr("queue_number", "gone as removed_at", "last as removal")
    ended = {
        "gone": "coalesce(gone, removed_at)",
        "last": "if(gone is null, coalesce(removal, last), last)",
        "modified": "if(gone is null, coalesce(removed_at, modified), modified)",
    }
    joined = merged.where("sequence <> 0").join(removals, "queue_number", "left")
    return joined.selectExpr(*[f"{ended.get(name, name)} as {name}" for name in merged.columns])


def merge_messages(parts: DataFrame) -> DataFrame:
    newest = ("shard", "last", "receives", "modified", "queue", *ELSEWHERE)
    grouped = parts.groupBy(PARTITION, "queue_number", "sequence").agg(
        *[f.max(name).alias(name) for name in newest],
        *[f.min(name).alias(name) for name in TIMES],
        *[f.first(name, ignorenulls=True).alias(name) for name in FACTS],
        f.flatten(f.collect_list("consumers")).alias("consumers"),
    )
    return grouped.withColumn("consumers", f.expr(_MERGED_CONSUMERS))


# For each consumer: when it first received the message, when it first settled it, and the last outcome.
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


def view_messages(merged: DataFrame) -> DataFrame:
    """The documented columns. A message that was moved or copied takes its content from where it came from."""
    merged = _without_removals(merged)
    attributes = [f"if(own.priority is null, root.{name}, own.{name}) as {name}" for name in ATTRIBUTES]
    # An unchanged message takes the body of the version that it equals, and nothing else of it.
    content = [f"coalesce(own.{name}, root.{name}) as {name}" for name in CONTENT if name != "headers"]
    headers = "coalesce(own.headers, if(own.entered is null, null, root.headers)) as headers"
    rest = [f"own.{name}" for name in merged.columns if name not in ATTRIBUTES | CONTENT]
    root = merged.where("body is not null").selectExpr(
        "queue_number as root_queue_number", "sequence as root_sequence", *ATTRIBUTES, *CONTENT
    )
    rooted = _with_roots(merged)
    joined = rooted.alias("own").join(root.alias("root"), ["root_queue_number", "root_sequence"], "left")
    return joined.selectExpr(*rest, *attributes, *content, headers).selectExpr(*_DOCUMENT)


def _with_roots(merged: DataFrame) -> DataFrame:
    links = merged.where("origin_queue_number is not null").selectExpr(
        "queue_number", "sequence", "origin_queue_number as root_queue_number", "origin_sequence as root_sequence"
    )
    for _ in range(HOPS_MAX.bit_length() - 1):  # Each round doubles the number of moves followed.
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
    *("queue", "queue_number", "sequence", "shard"),
    "body as message",
    "content_type",
    "filter(split(topics, '\\n'), topic -> topic <> '') as topics",
    *("object", f"{KEY_TEXT} as key", "headers"),
    "try_cast(try_validate_utf8(cast(headers['timestamp'] as string)) as timestamp) as timestamp",
    *("sender", "priority"),
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
    *ELSEWHERE,
    PARTITION,
)
