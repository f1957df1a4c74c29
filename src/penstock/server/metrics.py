"""The metrics of a broker in the format of Prometheus, read from its parts at each scrape.

The parts count what they need anyway; metrics add next to nothing to the path of a message. Only durations are
recorded as they happen: of each commit, once for all messages in it, and of one command in some.
"""

from __future__ import annotations

import platform
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from penstock import __version__
from penstock.engine.queue import Queue
from penstock.limits import COMMANDS_PER_SAMPLE, QUEUES_PER_PART, SAMPLES_PER_PART, SECOND_NS
from penstock.model.access import EVERYTHING, Access
from penstock.server.histogram import Histogram
from penstock.server.measures import Measured, Samples, needs_consumers
from penstock.server.writer.loop import Loop

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
QUEUES_SHOWN_MAX = 1000
OTHER_QUEUES = "(other)"
_STATES = ("ready", "leased", "delayed", "kept", "damaged")

Part = TypeVar("Part")
Counts = tuple[int, ...]  # Messages of a queue, by state.


class Family(NamedTuple):
    """One metric, as the manual and the scrape describe it."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


FAMILIES = (
    Family("penstock_build_info", "gauge", "Always 1; the labels name the versions in use.", ("version", "python")),
    Family("penstock_healthy", "gauge", "1 while the log can be written, else 0; /health gives the reason."),
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
    Family("penstock_names", "gauge", "Names in use: content types, senders, objects, sets of topics, consumers."),
    Family("penstock_names_max", "gauge", "The limit on them: names.max."),
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
    Family("penstock_unread_bytes", "gauge", "Size of answers that clients have not read, or that are being made."),
    Family("penstock_unread_closed_total", "counter", "Connections closed because of unread_bytes_max."),
    Family(
        "penstock_tls_certificate_expires_timestamp_seconds",
        "gauge",
        "When the broker's certificate expires, as a Unix time; absent without TLS, as all of these.",
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
    Family("penstock_disk_free_bytes", "gauge", "Room on the disk of the data directory."),
    Family("penstock_disk_bytes", "gauge", "Size of the disk of the data directory."),
    Family("penstock_log_offset", "gauge", "Offset of the next event: how many were ever logged and fsynced."),
    Family("penstock_log_collecting_bytes", "gauge", "Size of the batch that waits for the next commit."),
    Family("penstock_snapshot_age_seconds", "gauge", "Age of the newest snapshot; absent if there is none."),
    Family("penstock_snapshot_bytes", "gauge", "Size of the newest snapshot; absent if there is none."),
    Family("penstock_snapshot_seconds", "gauge", "Duration of the last snapshot since the start; 0 if none."),
    Family("penstock_history_healthy", "gauge", "1 while the Object History can be written, else 0."),
    Family("penstock_history_keys", "gauge", "Objects and keys in the Object History."),
    Family("penstock_history_unwritten", "gauge", "Versions in the log that are not in the Object History yet."),
    Family("penstock_history_write_seconds", "gauge", "Duration of the last write since the start; 0 if none."),
    Family(
        "penstock_courier_lag_seconds",
        "gauge",
        "How long the oldest message waits that a shard owes to another; absent with one shard, as all of these.",
        ("source",),
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


class Metrics:
    """The metrics of one broker. Its shells and services are added to `parts`."""

    def __init__(self, loop: Loop) -> None:
        self.commit_seconds = Histogram()
        self.parts: list[Measured] = [loop]
        self._loop = loop
        self.shows_process = True  # Of several shards in a process, one does.
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def scrape(self, access: Access = EVERYTHING) -> Generator[None, Any, bytes]:
        """The metrics as `CONTENT_TYPE`. In parts, because a thousand queues take some milliseconds."""
        found: dict[str, Samples] = {"penstock_build_info": [((__version__, platform.python_version()), 1)]}
        found |= dict(sample for part in self.parts for sample in part.state())
        histograms = {
            "penstock_commit_seconds": [*_histogram_lines("penstock_commit_seconds", "", self.commit_seconds)],
            "penstock_command_seconds": self._command_lines(),
        }
        yield
        queues = yield from self._queues_seen_by(access)
        found["penstock_queue_messages"] = yield from _queue_messages(queues)
        found |= yield from self._queue_figures(queues[:QUEUES_SHOWN_MAX])
        written: list[str] = []
        for family in FAMILIES:
            if family.type == "histogram":
                written += [*_head(family), *histograms[family.name]]
            elif family.name in found:
                written += _head(family)
                for part in _parts(found[family.name], SAMPLES_PER_PART):
                    written += [_line(family, labels, value) for labels, value in part]
                    yield
        yield
        process = generate_latest(self._process) if self.shows_process else b""
        return "".join(written).encode() + process

    def _queues_seen_by(self, access: Access) -> Generator[None, Any, list[Queue]]:
        queues = list(self._loop.engine.queues.values())
        if access.sees_all:
            return queues
        seen: list[Queue] = []
        for part in _parts(queues, QUEUES_PER_PART):
            seen += [queue for queue in part if access.sees(queue.name)]
            yield
        return seen

    def _command_lines(self) -> list[str]:
        latencies = sorted(self._loop.gate.latencies.by_dialect.items())
        name = "penstock_command_seconds"
        return [line for dialect, each in latencies for line in _histogram_lines(name, f'dialect="{dialect}"', each)]

    def _queue_figures(self, queues: list[Queue]) -> Generator[None, Any, dict[str, Samples]]:
        now = self._loop.now()
        found: list[Samples] = [[] for _ in _FIGURES]
        for part in _parts(queues, QUEUES_PER_PART):
            for queue in part:
                since = queue.ready_since if needs_consumers(queue) else None
                age = max(0, now - since) / SECOND_NS if since is not None else 0
                figures = (queue.last_sequence, queue.left, age, self._loop.waiting(queue.name))
                for samples, value in zip(found, figures, strict=True):
                    samples.append(((queue.name,), value))
            yield
        return dict(zip(_FIGURES, found, strict=True))


_FIGURES = (
    "penstock_queue_entered_total",
    "penstock_queue_left_total",
    "penstock_queue_oldest_seconds",
    "penstock_queue_waiting_receives",
)


def _histogram_lines(name: str, label: str, histogram: Histogram) -> Iterator[str]:
    buckets = histogram.buckets()
    labels = f"{{{label}}}" if label else ""
    for bound, count in buckets:
        yield f'{name}_bucket{{{label}{"," if label else ""}le="{bound}"}} {float(count)}\n'
    yield f"{name}_count{labels} {float(buckets[-1][1])}\n"
    yield f"{name}_sum{labels} {histogram.sum}\n"


def exposed(name: str, samples: Samples) -> str:
    """One metric, if it has samples."""
    family = next(each for each in FAMILIES if each.name == name)
    return "".join([*_head(family), *[_line(family, labels, value) for labels, value in samples]]) if samples else ""


def _head(family: Family) -> list[str]:
    return [f"# HELP {family.name} {family.help}\n", f"# TYPE {family.name} {family.type}\n"]


def _line(family: Family, labels: tuple[str, ...], value: float) -> str:
    if not labels:
        return f"{family.name} {float(value)}\n"
    named = ",".join([f'{name}="{_escaped(label)}"' for name, label in zip(family.labels, labels, strict=True)])
    return f"{family.name}{{{named}}} {float(value)}\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _parts(whole: Sequence[Part], size: int) -> Iterator[Sequence[Part]]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def _queue_messages(queues: list[Queue]) -> Generator[None, Any, Samples]:
    shown: dict[str, Counts] = {}
    for part in _parts(queues[:QUEUES_SHOWN_MAX], QUEUES_PER_PART):
        shown |= {queue.name: _counts(queue) for queue in part}
        yield
    if others := queues[QUEUES_SHOWN_MAX:]:
        sums = shown.get(OTHER_QUEUES, (0,) * len(_STATES))  # A queue may have that name.
        for part in _parts(others, QUEUES_PER_PART):
            sums = tuple(map(sum, zip(sums, *map(_counts, part), strict=True)))
            yield
        shown[OTHER_QUEUES] = sums
    samples: Samples = []
    for name, counts in shown.items():
        samples += [((name, state), count) for state, count in zip(_STATES, counts, strict=True)]
    return samples


def _counts(queue: Queue) -> Counts:
    return queue.ready, queue.leases.live, queue.delayed.live, queue.kept, queue.damaged


def metrics_table() -> str:
    """Every metric as a Markdown table: what `docs/operating.md` shows."""
    lines = ["| metric | type | labels | what it is |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.type} | {labels} | {family.help} |")
    return "\n".join(lines) + "\n"
