"""The metrics of a broker as values: what there is, and how those of several shards become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

from msgspec import Struct

from penstock.limits import COMMANDS_PER_SAMPLE
from penstock.model.queries import Absent, Heard, NoAnswer, Query
from penstock.model.values import Packed

QUEUES_SHOWN_MAX = 1000
OTHER_QUEUES = "(other)"
Samples = list[tuple[tuple[str, ...], float]]  # The values of a metric, each with its labels.
Join = Callable[[Iterable[float]], float]


class Family(NamedTuple):
    """One metric, as the manual and the scrape describe it."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    join: Join = sum  # How the samples of several shards become one.


FAMILIES = (
    Family(
        "penstock_build_info",
        "gauge",
        "Always 1; the labels name the versions in use.",
        ("version", "python"),
        join=max,
    ),
    Family(
        "penstock_healthy", "gauge", "1 while the log can be written, else 0; /health gives the reason.", join=min
    ),
    Family("penstock_events_total", "counter", "Events since the start, by kind.", ("kind",)),
    Family("penstock_commits_total", "counter", "Commits since the start."),
    Family("penstock_commit_seconds", "histogram", "Time of a commit until it is fsynced."),
    Family(
        "penstock_command_seconds",
        "histogram",
        f"Time from a command to its answer; one command in {COMMANDS_PER_SAMPLE} is measured, unless it may wait.",
        ("dialect",),
    ),
    Family("penstock_queues", "gauge", "Existing queues."),
    Family("penstock_schedules", "gauge", "Recurring schedules."),
    Family(
        "penstock_names",
        "gauge",
        "Names in use: content types, senders, objects, sets of topics, consumers.",
        join=max,
    ),
    Family("penstock_names_max", "gauge", "The limit on them: names.max.", join=max),
    Family(
        "penstock_queue_messages",
        "gauge",
        "Messages in a queue, by state: ready, leased, delayed, kept, damaged. "
        f"The oldest {QUEUES_SHOWN_MAX} queues have samples of their own; {OTHER_QUEUES} is the sum of the others.",
        ("queue", "state"),
    ),
    Family(
        "penstock_queue_entered_total",
        "counter",
        "Messages that ever entered a queue, for the same queues. Not reset by a restart.",
        ("queue",),
    ),
    Family(
        "penstock_queue_left_total",
        "counter",
        "Messages that ever left a queue or are only kept for receivers. Not reset by a restart.",
        ("queue",),
    ),
    Family(
        "penstock_queue_oldest_seconds",
        "gauge",
        "How long the ready message that waits longest has waited; 0 if none is ready, and for queues whose messages"
        f" stay (`keep` is `all`, or the name begins with `_`). Without {OTHER_QUEUES}.",
        ("queue",),
        join=max,
    ),
    Family(
        "penstock_queue_waiting_receives",
        "gauge",
        f"Clients that wait for a message of a queue: idle consumers. Without {OTHER_QUEUES}.",
        ("queue",),
    ),
    Family("penstock_workers", "gauge", "Workers that report: working, or missing for three reports.", ("state",)),
    Family("penstock_waiting_receives", "gauge", "Clients that wait for a message or a result."),
    Family("penstock_http_connections", "gauge", "Open HTTP connections, including WebSockets."),
    Family("penstock_websocket_connections", "gauge", "Open WebSockets."),
    Family("penstock_http_buffered_bytes", "gauge", "Size of request bodies that are being received."),
    Family("penstock_http_responses_total", "counter", "Responses since the start, by status.", ("status",)),
    Family("penstock_lines_connections", "gauge", "Open connections of the line protocol."),
    Family("penstock_lines_buffered_bytes", "gauge", "Size of lines that are being received."),
    Family("penstock_lines_received_total", "counter", "Lines received since the start."),
    Family(
        "penstock_unread_bytes",
        "gauge",
        "Size of answers that are not read, are being made, or are between processes.",
    ),
    Family("penstock_unread_closed_total", "counter", "Connections closed because of unread_bytes_max."),
    Family(
        "penstock_tls_certificate_expires_timestamp_seconds",
        "gauge",
        "When the broker's certificate expires, as a Unix time; absent without TLS, as all of these.",
        join=min,
    ),
    Family("penstock_tls_reloads_total", "counter", "How often a new certificate was loaded since the start."),
    Family("penstock_tls_reloads_failed_total", "counter", "New certificates that cannot be used; the log says why."),
    Family("penstock_tls_handshakes_total", "counter", "TLS handshakes since the start."),
    Family("penstock_tls_handshakes_failed_total", "counter", "Handshakes that failed or were not complete in time."),
    Family("penstock_quota_refused_total", "counter", "Refusals since the start, by quota.", ("quota",)),
    Family("penstock_logins_failed_total", "counter", "Clients that have shown an invalid token since the start."),
    Family("penstock_quota_accounts", "gauge", "Identities and addresses whose use is counted for quotas."),
    Family("penstock_event_readers", "gauge", "Readers of the Event Log, including downloads of raw ranges."),
    Family("penstock_event_bytes_total", "counter", "Bytes sent to readers of the Event Log since the start."),
    Family("penstock_backup_bytes_total", "counter", "Bytes sent to backups since the start."),
    Family("penstock_push_channels", "gauge", "Channels with push, by the state of their circuit.", ("circuit",)),
    Family("penstock_push_connections", "gauge", "Open connections to push endpoints."),
    Family("penstock_push_in_flight", "gauge", "Messages being pushed."),
    Family("penstock_push_outcomes_total", "counter", "Messages pushed since the start, by outcome.", ("outcome",)),
    Family("penstock_staged_bytes", "gauge", "Size of staged rows that are not in their queues yet."),
    Family("penstock_idempotency_keys", "gauge", "Idempotency keys that are known."),
    Family("penstock_waited_messages", "gauge", "Messages that clients wait for until they are taken or done."),
    Family("penstock_log_bytes", "gauge", "Size of the log, without the space reserved in its newest file."),
    Family("penstock_log_segments", "gauge", "Files of the log."),
    Family("penstock_disk_free_bytes", "gauge", "Room on the disk of the data directory.", join=min),
    Family("penstock_disk_bytes", "gauge", "Size of the disk of the data directory.", join=min),
    Family("penstock_log_offset", "gauge", "Offset of the next event: how many were ever logged and fsynced."),
    Family("penstock_log_collecting_bytes", "gauge", "Size of the batch that waits for the next commit."),
    Family(
        "penstock_snapshot_age_seconds", "gauge", "Age of the newest snapshot; absent if there is none.", join=max
    ),
    Family("penstock_snapshot_bytes", "gauge", "Size of the newest snapshot; absent if there is none."),
    Family(
        "penstock_snapshot_seconds", "gauge", "Duration of the last snapshot since the start; 0 if none.", join=max
    ),
    Family("penstock_history_healthy", "gauge", "1 while the Object History can be written, else 0.", join=min),
    Family("penstock_history_keys", "gauge", "Objects and keys in the Object History."),
    Family("penstock_history_unwritten", "gauge", "Versions in the log that are not in the Object History yet."),
    Family(
        "penstock_history_write_seconds", "gauge", "Duration of the last write since the start; 0 if none.", join=max
    ),
    Family(
        "penstock_courier_lag_seconds",
        "gauge",
        "How long the oldest message waits that a shard owes to another; absent with one shard, as all of these.",
        ("source",),
        join=max,
    ),
    Family("penstock_courier_messages_total", "counter", "Messages of other shards since the start.", ("source",)),
    Family(
        "penstock_courier_outbox_messages",
        "gauge",
        "Messages that left for another shard and are not known to be there.",
        ("target",),
    ),
    Family(
        "penstock_shards_away",
        "gauge",
        "Shards of a process that are missing in all figures, because it does not answer; while there are some, the"
        " broker shows no counters and no histograms.",
        ("worker",),
    ),
)
"""Every metric of the broker, in the order of the scrape. Those of the process (`process_*`) follow."""


class Durations(Struct, frozen=True, array_like=True):
    """How often something took how long, for each bound, and beyond the last one."""

    labels: tuple[str, ...]
    counts: list[int]
    sum: float


class ProcessFigure(Struct, frozen=True, array_like=True):
    """What the operating system says of a process."""

    name: str
    type: str
    help: str
    value: float


class Metrics(Packed, frozen=True):
    samples: dict[str, Samples]  # By the name of the metric.
    durations: dict[str, list[Durations]]
    process: list[ProcessFigure]


class ReadMetrics(Query, frozen=True):
    """Of the queues that the client sees."""

    waits_for_log: ClassVar[bool] = False


_BY_NAME = {family.name: family for family in FAMILIES}
_AWAY = "penstock_shards_away"
_EARLIEST = "process_start_time_seconds"


def joined(_: ReadMetrics, heard: Sequence[Heard]) -> Metrics | NoAnswer:
    """As if there was one shard. Without the counters, while somebody is away: a sum that falls would be taken for a
    start of the broker."""
    if refused := next((each.answer for each in heard if isinstance(each.answer, NoAnswer)), None):
        return refused
    found = [each.answer for each in heard if isinstance(each.answer, Metrics)]
    samples = {name: _samples(name, found) for each in found for name in each.samples}
    process = {figure.name: _figure(figure.name, found) for each in found for figure in each.process}
    durations = {name: _durations(name, found) for each in found for name in each.durations}
    if len(found) < len(heard):
        samples = {name: each for name, each in samples.items() if _BY_NAME[name].type != "counter"}
        process = {name: each for name, each in process.items() if each.type != "counter"}
        durations = {}
    if away := _away(heard):
        samples[_AWAY] = away
    return Metrics(samples, durations, list(process.values()))


def _away(heard: Sequence[Heard]) -> Samples:
    """How many shards of each process are missing."""
    away = {each.process: 0 for each in heard if each.process is not None}
    for each in heard:
        if isinstance(each.answer, Absent) and each.process is not None:
            away[each.process] += 1
    return [((str(process),), count) for process, count in sorted(away.items())]


def _samples(name: str, found: Iterable[Metrics]) -> Samples:
    values: dict[tuple[str, ...], list[float]] = {}
    for each in found:
        for labels, value in each.samples.get(name, ()):
            values.setdefault(labels, []).append(value)
    join = _BY_NAME[name].join
    return [(labels, join(all_values)) for labels, all_values in values.items()]


def _durations(name: str, found: Iterable[Metrics]) -> list[Durations]:
    joined: dict[tuple[str, ...], Durations] = {}
    for each in [each for metrics in found for each in metrics.durations.get(name, ())]:
        known = joined.get(each.labels)
        counts = [sum(pair) for pair in zip(known.counts, each.counts, strict=True)] if known else each.counts
        joined[each.labels] = Durations(each.labels, counts, each.sum + (known.sum if known else 0.0))
    return list(joined.values())


def _figure(name: str, found: Iterable[Metrics]) -> ProcessFigure:
    figures = [figure for each in found for figure in each.process if figure.name == name]
    join: Join = min if name == _EARLIEST else sum
    about = figures[0]
    return ProcessFigure(about.name, about.type, about.help, join([each.value for each in figures]))
