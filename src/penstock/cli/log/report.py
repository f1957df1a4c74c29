"""What a data directory holds, for people to read."""

from __future__ import annotations

from collections import Counter

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from penstock.cli.log.state import QueueReport
from penstock.limits import NEVER_NS
from penstock.model.settings import QueueSettings
from penstock.model.times import in_seconds
from penstock.storage.inspect import Problem, Report, SegmentReport, Severity


def show(console: Console, report: Report, queues: list[QueueReport] | None) -> None:
    console.print(f"{report.directory}: format {report.format}, shard {report.shard}", markup=False)
    say_held(console, report)
    console.print(_snapshots_table(report), _segments_table(report), _letters_table(report))
    for first, last in report.holes:
        console.print(f"Events {first:,} to {last:,} were removed by compaction.", markup=False)
    if queues is None:
        console.print("The state of the queues cannot be rebuilt.")
    else:
        console.print(_queues_table(queues))
    for leftover in report.leftovers:
        console.print(f"Left over, not used: {leftover}", markup=False, soft_wrap=True)
    for problem in report.problems:
        console.print(line(problem), markup=False, soft_wrap=True)


def _snapshots_table(report: Report) -> Table:
    table = _table("Snapshots", ("offset", "bytes"), ("time", "whole"))
    for snapshot in report.snapshots:
        offset = "" if snapshot.offset is None else f"{snapshot.offset:,}"
        table.add_row(offset, f"{snapshot.bytes:,}", _moment(snapshot.time), snapshot.problem or "yes")
    return table


def _segments_table(report: Report) -> Table:
    numbers = ("offsets", "events", "batches", "used", "reserved")
    table = _table("Segments", numbers, ("first time", "last time"))
    for segment in report.segments:
        offsets = (
            f"{segment.first_offset}-{segment.next_offset - 1}" if segment.records else f"{segment.first_offset}-"
        )
        times = (_moment(segment.first_time), _moment(segment.last_time))
        table.add_row(offsets, *_counts([segment]), *times)
    table.add_section()
    table.add_row("all", *_counts(report.segments))
    return table


def _counts(segments: list[SegmentReport]) -> list[str]:
    fields = ("events", "batches", "bytes_used", "bytes_reserved")
    return [f"{sum(getattr(segment, field) for segment in segments):,}" for field in fields]


def _letters_table(report: Report) -> Table:
    every = sum((Counter(segment.letters) for segment in report.segments), Counter[str]())
    letters = sorted(every)
    table = _table("Letters", ("first offset", *letters), ())
    for segment in report.segments:
        table.add_row(str(segment.first_offset), *(f"{segment.letters.get(letter, 0):,}" for letter in letters))
    table.add_section()
    table.add_row("all", *(f"{every[letter]:,}" for letter in letters))
    return table


def _queues_table(queues: list[QueueReport]) -> Table:
    table = _table("Queues", ("number",), ("name",))
    for name in ("logged", "finished"):
        table.add_column(name, justify="right")
    table.add_column("settings")
    for queue in queues:
        counts = (f"{queue.logged:,}", f"{queue.finished:,}")
        table.add_row(str(queue.number), queue.name, *counts, _settings(queue.settings))
    return table


def _table(title: str, numbers: tuple[str, ...], texts: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for name in texts:
        table.add_column(name, min_width=10 if name.endswith("time") else None)  # A date, and the hour below it.
    return table


def _settings(settings: QueueSettings) -> str:
    """The settings that differ from the defaults."""
    texts = []
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if value == getattr(_DEFAULTS, name):
            continue
        if name == "redrive_policy":
            texts.append(f"dead letters to {value.dead_letter_queue} after {value.max_receives}")
        elif name.endswith("_ns"):
            seconds = "never" if value == NEVER_NS else in_seconds(value)
            texts.append(f"{name.removesuffix('_ns')} {seconds}")
        else:
            texts.append(f"{name} {value}")
    return ", ".join(texts)


_DEFAULTS = QueueSettings()


def _moment(time: int | None) -> str:
    return "" if time is None else str(np.datetime64(time, "ns").astype("M8[s]")).replace("T", " ")


def say_held(console: Console, report: Report) -> None:
    if report.held_by is not None:
        console.print(
            f"Process {report.held_by} serves this directory: the log changes, and its end may look torn.",
            markup=False,
        )


def line(problem: Problem) -> str:
    kind = "torn" if problem.severity is Severity.TORN else "damaged"
    where = problem.path if problem.byte is None else f"{problem.path}, byte {problem.byte}"
    return f"{kind}: {where}: {problem.text}"


def verdict(report: Report) -> str:
    events = sum(segment.events for segment in report.segments)
    checked = f"{len(report.segments)} segments, {len(report.snapshots)} snapshots, {events:,} events"
    if report.severity is Severity.WHOLE:
        return f"whole: {checked}"
    if report.severity is Severity.TORN:
        return f"torn tail: {checked} are whole; the rest was never acknowledged, and the next start cuts it off"
    lost = sorted(
        (problem.first_lost, problem.last_lost)
        for problem in report.problems
        if problem.first_lost is not None and problem.last_lost is not None
    )
    offsets = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in lost)
    verdict = f"damaged: {f'offsets lost: {offsets}' if offsets else 'see above'}"
    return f"{verdict}. A broker can start, and sets damaged messages aside" if report.starts else verdict
