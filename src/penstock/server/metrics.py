"""What the broker tells Prometheus. Everything is read from the live broker at each scrape.

The broker counts what it counts anyway; nothing is added to the path of a message. Only the length of a commit is
noted as it happens, once for all messages in it.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeVar

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.engine.queue import Queue
from penstock.limits import QUEUES_PER_PART, SAMPLES_PER_PART
from penstock.model.kinds import Kind
from penstock.server.services.contract import Samples, Service
from penstock.server.services.contract import one as _one
from penstock.server.services.spectators import Spectators
from penstock.server.shells.http import HttpServer
from penstock.server.shells.lines import LineServer
from penstock.server.writer.loop import Loop
from penstock.storage.port import Log

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
QUEUES_SHOWN_MAX = 1000
OTHER_QUEUES = "(other)"
_STATES = ("ready", "leased", "delayed", "kept", "damaged")
COMMIT_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

Part = TypeVar("Part")
Counts = tuple[int, ...]  # Messages of a queue, by state.


class Family(NamedTuple):
    """One metric: what the docs and the scrape say of it."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


FAMILIES = (
    Family("penstock_build_info", "gauge", "The version that runs; always 1.", ("version", "python")),
    Family("penstock_healthy", "gauge", "1 while the log can be written, else 0: /health says why."),
    Family("penstock_events_total", "counter", "Events since the start, by kind.", ("kind",)),
    Family("penstock_commits_total", "counter", "Batches handed to the disk since the start."),
    Family("penstock_commit_seconds", "histogram", "How long a batch took from hand-over to fsynced."),
    Family("penstock_queues", "gauge", "Queues there are."),
    Family(
        "penstock_names",
        "gauge",
        "Content types, senders, objects, sets of topics and consumers in the table of names.",
    ),
    Family("penstock_names_max", "gauge", "How many of them there is room for: names.max."),
    Family(
        "penstock_queue_messages",
        "gauge",
        "Messages in a queue, by state: ready, leased, delayed, kept, damaged. "
        f"The oldest {QUEUES_SHOWN_MAX} queues are shown, the rest is summed up as {OTHER_QUEUES}.",
        ("queue", "state"),
    ),
    Family("penstock_waiting_receives", "gauge", "Clients that wait for a message."),
    Family("penstock_http_connections", "gauge", "HTTP connections open, WebSockets among them."),
    Family("penstock_websocket_connections", "gauge", "WebSockets open."),
    Family("penstock_http_buffered_bytes", "gauge", "Bodies of requests that are not complete yet."),
    Family("penstock_http_responses_total", "counter", "Responses since the start, by status.", ("status",)),
    Family("penstock_lines_connections", "gauge", "Connections of the line protocol open."),
    Family("penstock_lines_buffered_bytes", "gauge", "Lines that are not complete yet."),
    Family("penstock_lines_received_total", "counter", "Lines since the start."),
    Family("penstock_unread_bytes", "gauge", "Answers that clients with much to read have not read yet."),
    Family("penstock_unread_closed_total", "counter", "Connections closed because of unread_bytes_max."),
    Family("penstock_event_readers", "gauge", "Readers of the Event Log: spectators, and raw ranges under way."),
    Family("penstock_event_bytes_total", "counter", "Bytes that readers of the Event Log were sent since the start."),
    Family(
        "penstock_push_channels", "gauge", "Channels that are pushed, by the state of their circuit.", ("circuit",)
    ),
    Family("penstock_push_connections", "gauge", "Connections to endpoints open."),
    Family("penstock_push_in_flight", "gauge", "Messages on their way to endpoints."),
    Family("penstock_push_outcomes_total", "counter", "Messages pushed since the start, by outcome.", ("outcome",)),
    Family("penstock_staged_bytes", "gauge", "Rows of batches that are not in their queues yet."),
    Family("penstock_log_bytes", "gauge", "Size of the log, without the room reserved in its newest segment."),
    Family("penstock_log_segments", "gauge", "Files of the log."),
    Family("penstock_log_offset", "gauge", "Events ever logged and fsynced: the offset of the next one."),
    Family("penstock_log_collecting_bytes", "gauge", "Size of the batch that waits for the disk."),
    Family("penstock_snapshot_age_seconds", "gauge", "Time since the newest snapshot; absent if there is none."),
    Family("penstock_snapshot_bytes", "gauge", "Size of the newest snapshot; absent if there is none."),
    Family(
        "penstock_snapshot_seconds",
        "gauge",
        "How long the last snapshot took; 0 if none was taken since the start.",
    ),
    Family("penstock_history_healthy", "gauge", "1 while the Object History can be written, else 0."),
    Family("penstock_history_keys", "gauge", "Objects and keys that the Object History knows."),
    Family("penstock_history_unwritten", "gauge", "Versions of them that are not on the disk yet, but in the log."),
    Family(
        "penstock_history_write_seconds",
        "gauge",
        "How long they took to write the last time; 0 if none were written since the start.",
    ),
)
"""Every metric of ours, in the order of the scrape. The process's own (`process_*`) follow."""


class Histogram:
    """Durations, counted by how long they were."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(COMMIT_SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(COMMIT_SECONDS, seconds)] += 1
        self._sum += seconds

    @property
    def sum(self) -> float:
        return self._sum

    def buckets(self) -> list[tuple[str, float]]:
        """How many took at most this long, for each bound and for all."""
        bounds = [*map(str, COMMIT_SECONDS), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class Metrics:
    """The metrics of one broker. Its parts are put in place once they are there."""

    def __init__(self, loop: Loop) -> None:
        self.commit_seconds = Histogram()
        self.http: HttpServer | None = None
        self.lines: LineServer | None = None
        self.services: Sequence[Service] = ()
        self.spectators: Spectators | None = None
        self._loop = loop
        self._process = ProcessCollector(registry=None)

    def scrape(self) -> Generator[None, Any, bytes]:
        """The text of `CONTENT_TYPE`, made part by part: that of a thousand queues takes some milliseconds."""
        found, histogram = dict(self._samples()), self._histogram_lines("penstock_commit_seconds")
        yield
        found["penstock_queue_messages"] = yield from _queue_messages(list(self._loop.engine.queues.values()))
        written: list[str] = []
        for family in FAMILIES:
            if family.type == "histogram":
                written += [*_head(family), *histogram]
            elif family.name in found:
                written += _head(family)
                for part in _parts(found[family.name], SAMPLES_PER_PART):
                    written += [_line(family, labels, value) for labels, value in part]
                    yield
        yield
        return "".join(written).encode() + generate_latest(_Process(self._process))

    def _histogram_lines(self, name: str) -> list[str]:
        buckets = self.commit_seconds.buckets()
        lines = [f'{name}_bucket{{le="{bound}"}} {float(count)}\n' for bound, count in buckets]
        return [*lines, f"{name}_count {float(buckets[-1][1])}\n", f"{name}_sum {self.commit_seconds.sum}\n"]

    def _samples(self) -> Iterator[tuple[str, Samples]]:
        """Each metric but the histogram: its name, and the values by their labels."""
        loop = self._loop
        yield "penstock_build_info", [((__version__, platform.python_version()), 1)]
        yield "penstock_healthy", _one(not loop.failure)
        yield "penstock_events_total", [((kind.name.lower(),), loop.events_by_kind[kind]) for kind in Kind]
        yield "penstock_commits_total", _one(loop.commit.count)
        yield "penstock_queues", _one(len(loop.engine.queues))
        yield "penstock_names", _one(len(loop.engine.names))
        yield "penstock_names_max", _one(loop.engine.names.most)
        yield "penstock_waiting_receives", _one(loop.waiters.count)
        yield "penstock_staged_bytes", _one(loop.engine.staging.bytes)
        if self.http:
            responses = enumerate(self.http.responses_by_status)
            yield "penstock_http_connections", _one(len(self.http.connections))
            yield "penstock_websocket_connections", _one(self.http.websockets)
            yield "penstock_http_buffered_bytes", _one(self.http.buffered_bytes)
            yield "penstock_http_responses_total", [((str(status),), count) for status, count in responses if count]
        if self.lines:
            yield "penstock_lines_connections", _one(len(self.lines.connections))
            yield "penstock_lines_buffered_bytes", _one(self.lines.buffered_bytes)
            yield "penstock_lines_received_total", _one(self.lines.lines_received)
        if self.http:
            yield "penstock_unread_bytes", _one(self.http.unread.bytes)
            yield "penstock_unread_closed_total", _one(self.http.unread.closed)
        if self.spectators:
            yield "penstock_event_readers", _one(self.spectators.open)
            yield "penstock_event_bytes_total", _one(self.spectators.bytes_sent)
        yield from self._log_samples(loop.log)
        for service in self.services:
            yield from service.state()

    def _log_samples(self, log: Log) -> Iterator[tuple[str, Samples]]:
        yield "penstock_log_bytes", _one(log.end.position - log.start.position)
        yield "penstock_log_segments", _one(len(log.view().parts))
        yield "penstock_log_offset", _one(log.end.offset)
        yield "penstock_log_collecting_bytes", _one(log.collecting)


class _Process(Collector):
    """What is known of the process itself."""

    def __init__(self, process: Collector) -> None:
        self._process = process

    def collect(self) -> Iterable[Metric]:
        return self._process.collect()


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
