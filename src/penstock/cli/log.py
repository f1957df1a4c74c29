"""`penstock log`: look into a data directory, and check it, without a broker."""

from __future__ import annotations

import base64
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from penstock.cli.rebuild import rebuild_history
from penstock.dialects.wire.times import in_seconds
from penstock.engine.engine import Engine
from penstock.engine.history import NoHistory
from penstock.engine.slots import STORED
from penstock.errors import DataDirectoryError
from penstock.limits import NEVER_NS
from penstock.model.settings import QueueSettings
from penstock.storage.arrow.columns import decode_grouped
from penstock.storage.arrow.names import Names
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import (
    Advance,
    Problem,
    Report,
    SegmentReport,
    Severity,
    batches,
    bytes_to_read,
    newest_snapshot,
    replay,
    scan,
)
from penstock.storage.log.batch import Header
from penstock.storage.log.names import names_defined
from penstock.storage.log.snapshot import read_snapshot

app = typer.Typer(help="Look into a data directory, and check it.", no_args_is_help=True)
app.command()(rebuild_history)

Directory = Annotated[Path, typer.Argument(help="The data directory.", exists=True, file_okay=False)]

_TRIES = 5
_TEXT_COLUMNS = ("body", "result", "key", "headers")


class QueueReport(msgspec.Struct, frozen=True):
    number: int
    name: str
    settings: QueueSettings
    logged: int  # Messages that ever entered the queue.
    finished: int  # Those that have left it, in whichever way.


class _Inspected(msgspec.Struct, frozen=True):
    verdict: str
    report: Report
    queues: list[QueueReport] | None  # None: the state cannot be told.


@app.command()
def inspect(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one JSON object.")] = False,
    events: Annotated[bool, typer.Option("--events", help="Print the events, one JSON object a line.")] = False,
    start: Annotated[int, typer.Option("--from", min=0, help="With --events: the first offset.")] = 0,
    count: Annotated[int | None, typer.Option("--count", min=0, help="With --events: how many at most.")] = None,
) -> None:
    """Show what a data directory holds. Nothing is changed, and no lock is taken."""
    data = DataDirectory(directory)
    if events:
        for line in itertools.islice(_event_lines(data, start), count):
            sys.stdout.write(line)
        return
    report, engine = _examine(data)
    queues = _queues(engine) if engine else None
    if as_json:
        inspected = _Inspected(report.severity.name.lower(), report, queues)
        sys.stdout.write(msgspec.json.encode(inspected).decode() + "\n")
    else:
        _show(Console(), report, queues)


@app.command()
def verify(directory: Directory) -> None:
    """Check every byte. Exit code 0: whole. 1: a torn tail, which the next start cuts. 2: damaged."""
    data = DataDirectory(directory)
    console = Console(highlight=False, soft_wrap=True)
    try:
        report = _examine_with_progress(data)
    except DataDirectoryError as error:
        console.print(f"damaged: {error}", markup=False)
        raise typer.Exit(int(Severity.DAMAGED)) from None
    _say_held(console, report)
    for problem in report.problems:
        console.print(_line(problem), markup=False)
    console.print(_verdict(report), markup=False)
    raise typer.Exit(int(report.severity))


def _examine_with_progress(data: DataDirectory) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checking", total=bytes_to_read(data))
        return _examine(data, lambda size: progress.advance(task, size))[0]


# ── The state that a start would find ─────────────────────────────────────────────────────────────────────


def _examine(data: DataDirectory, advance: Advance = lambda _: None) -> tuple[Report, Engine | None]:
    """Check the files, then the state they add up to. No engine: there is no such state."""
    for _ in range(_TRIES):
        report = scan(data, advance)
        if not report.starts:
            return report, None
        try:
            return report, _rebuild(data, report)
        except FileNotFoundError:
            continue  # The broker has removed a segment in the meantime.
    raise DataDirectoryError(f"{data.path} changes faster than it can be read")


def _rebuild(data: DataDirectory, report: Report) -> Engine | None:
    """Replay as a start would, and check that every message's bytes are there."""
    engine = Engine(NoHistory())
    last = None
    try:
        if report.snapshot:
            engine.restore(read_snapshot(Path(report.snapshot.path)))
        for offset, event, position in replay(data, report):
            last = offset
            engine.evolve(event, position)
    except FileNotFoundError:
        raise
    except Exception as error:  # Whatever the engine cannot take is damage here, not a fault of this command.
        where = "the snapshot cannot be restored" if last is None else f"event {last} cannot be applied"
        text = f"{where}: {type(error).__name__}: {error}"
        report.problems.append(Problem(Severity.DAMAGED, text, report.directory))
        return None
    report.problems += _homeless(engine, report)
    report.problems += _damaged(engine, report)
    return engine


_Numbers = NDArray[np.int64]


def _homeless(engine: Engine, report: Report) -> Iterator[Problem]:
    """Messages whose body, key and headers are not in any segment, and results and staged rows that are not."""
    bases = np.array([segment.base_position for segment in report.segments], dtype=np.int64)
    ends = np.array([segment.end_position for segment in report.segments], dtype=np.int64)
    for queue in engine.queues.values():
        for sequences, rows in queue.rows.tables():
            sizes = rows["body_bytes"].astype(np.int64) + rows["key_bytes"] + rows["headers_bytes"]
            lost = sequences[~_inside(rows["position"].astype(np.int64), sizes, bases, ends)]
            if len(lost):
                text = f"queue {queue.name}: the bytes of {len(lost)} messages are in no segment, first {lost[0]}"
                yield Problem(Severity.DAMAGED, text, report.directory)
        for places, slots in queue.groups.tables():
            stored = slots["state"] == STORED
            first, sizes = slots["value"][stored].astype(np.int64), slots["size"][stored].astype(np.int64)
            lost = places[stored, 0][~_inside(first, sizes, bases, ends)]
            if len(lost):
                text = f"queue {queue.name}: {len(lost)} results are in no segment, first of message {lost[0]}"
                yield Problem(Severity.DAMAGED, text, report.directory)
    chunks = np.array([each[:2] for each in engine.staging.all_chunks()], dtype=np.int64).reshape(-1, 2)
    lost_chunks = np.count_nonzero(~_inside(chunks[:, 0], chunks[:, 1], bases, ends))
    if lost_chunks:
        text = f"{lost_chunks} chunks of staged rows are in no segment"
        yield Problem(Severity.DAMAGED, text, report.directory)


def _damaged(engine: Engine, report: Report) -> Iterator[Problem]:
    """Messages and results whose bytes lie in a damaged part of the log."""
    ranges = np.array(report.damaged, dtype=np.int64).reshape(-1, 2)
    for queue in engine.queues.values() if len(ranges) else ():
        rows = [rows for _, rows in queue.rows.tables()]
        sizes = [table["body_bytes"].astype(np.int64) + table["key_bytes"] + table["headers_bytes"] for table in rows]
        messages = sum(
            _count_in(ranges, *each) for each in zip([table["position"] for table in rows], sizes, strict=True)
        )
        stored = [slots[slots["state"] == STORED] for _, slots in queue.groups.tables()]
        results = sum(_count_in(ranges, slots["value"], slots["size"].astype(np.int64)) for slots in stored)
        for count, what in ((messages, "messages"), (results, "results")):
            if count:
                text = f"queue {queue.name}: {what} whose bytes are damaged: {count}"
                yield Problem(Severity.DAMAGED, text, report.directory, stops=False)


def _count_in(ranges: _Numbers, positions: NDArray[np.uint64], sizes: _Numbers) -> int:
    first = positions.astype(np.int64)
    following = np.searchsorted(ranges[:, 1], first, side="right")
    starts = np.append(ranges[:, 0], NEVER_NS)[following]
    return int(np.count_nonzero((starts < first + sizes) & (sizes > 0)))


def _inside(first: _Numbers, sizes: _Numbers, bases: _Numbers, ends: _Numbers) -> NDArray[np.bool_]:
    """Which extents lie in a segment."""
    if not len(bases):
        return np.zeros(len(first), np.bool_)
    index = np.searchsorted(bases, first, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (first + sizes <= ends[index])
    return inside


def _queues(engine: Engine) -> list[QueueReport]:
    return [
        QueueReport(
            queue.number,
            queue.name,
            queue.settings,
            queue.last_sequence,
            queue.last_sequence - queue.rows.count,
        )
        for queue in engine.queues.values()
    ]


# ── Events as JSON lines ──────────────────────────────────────────────────────────────────────────────────


def _event_lines(data: DataDirectory, start: int) -> Iterator[str]:
    data.read_identity()
    names, known_to = _names(data)
    # Between the snapshot and the first event wanted, only the definitions of names count.
    for group in decode_grouped(_say_gaps(batches(data, min(start, known_to))), None, names):
        first = int(np.searchsorted(group.column("offset").to_numpy(), start))
        for row in _plain(group.slice(first)).to_pylist():
            yield msgspec.json.encode(_printable(row)).decode() + "\n"


def _names(data: DataDirectory) -> tuple[Names, int]:
    """The names that the newest whole snapshot knows, and its offset."""
    snapshot = newest_snapshot(data)
    if snapshot is None:
        return Names(), 0
    engine = Engine(NoHistory())
    facts, sections = snapshot
    engine.restore(sections)
    queues = {queue.number: queue.name for queue in engine.queues.values()}
    texts: dict[int, str] = {}
    if engine.names.last > len(engine.names):  # Some were forgotten: the log repeats what they stood for.
        for header, payload in batches(data, 0):
            texts |= names_defined(header, payload)
    return Names(texts | engine.names.texts, queues), facts.offset


def _say_gaps(found: Iterator[tuple[Header, bytes]]) -> Iterator[tuple[Header, bytes]]:
    end = None
    for header, payload in found:
        if end is not None and header.base_offset != end:
            gap = (
                f"penstock: offsets {end} to {header.base_offset - 1} are not there: removed, or damaged (see verify)"
            )
            print(gap, file=sys.stderr)
        end = header.end.offset
        yield header, payload


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as text, since Python has no nanoseconds."""
    for at, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            numbers = batch.column(at).cast(pa.int64())
            texts = np.datetime_as_string(numbers.fill_null(0).to_numpy().view("M8[ns]"), timezone="UTC")
            batch = batch.set_column(at, field.name, pa.array(texts, mask=numbers.is_null().to_numpy(False)))
    return batch


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    """What an event has; bytes as text if they are text, else in base64 under a name that says so."""
    said = {name: value for name, value in row.items() if value is not None}
    if "digest" in said:
        said["digest"] = said["digest"].hex()
    for name in _TEXT_COLUMNS:
        if name in said:
            data = said.pop(name)
            try:
                said[name] = data.decode()
            except UnicodeDecodeError:
                said[f"{name}_base64"] = base64.b64encode(data).decode()
    return said


# ── For people ────────────────────────────────────────────────────────────────────────────────────────────


def _show(console: Console, report: Report, queues: list[QueueReport] | None) -> None:
    console.print(f"{report.directory}: format {report.format}, shard {report.shard}", markup=False)
    _say_held(console, report)
    console.print(_snapshots_table(report), _segments_table(report), _letters_table(report))
    for first, last in report.holes:
        console.print(f"Events {first:,} to {last:,} were removed by compaction.", markup=False)
    if queues is None:
        console.print("The state of the queues cannot be told.")
    else:
        console.print(_queues_table(queues))
    for leftover in report.leftovers:
        console.print(f"Left over, read by nobody: {leftover}", markup=False, soft_wrap=True)
    for problem in report.problems:
        console.print(_line(problem), markup=False, soft_wrap=True)


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
    """Those that differ from what a queue has by itself."""
    said = []
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if value == getattr(_DEFAULTS, name):
            continue
        if name == "redrive_policy":
            said.append(f"dead letters to {value.dead_letter_queue} after {value.max_receives}")
        elif name.endswith("_ns"):
            seconds = "never" if value == NEVER_NS else in_seconds(value)
            said.append(f"{name.removesuffix('_ns')} {seconds}")
        else:
            said.append(f"{name} {value}")
    return ", ".join(said)


_DEFAULTS = QueueSettings()


def _moment(time: int | None) -> str:
    return "" if time is None else str(np.datetime64(time, "ns").astype("M8[s]")).replace("T", " ")


def _say_held(console: Console, report: Report) -> None:
    if report.held_by is not None:
        console.print(
            f"Process {report.held_by} serves this directory: the log moves, and its end may look torn.", markup=False
        )


def _line(problem: Problem) -> str:
    kind = "torn" if problem.severity is Severity.TORN else "damaged"
    where = problem.path if problem.byte is None else f"{problem.path}, byte {problem.byte}"
    return f"{kind}: {where}: {problem.text}"


def _verdict(report: Report) -> str:
    events = sum(segment.events for segment in report.segments)
    checked = f"{len(report.segments)} segments, {len(report.snapshots)} snapshots, {events:,} events"
    if report.severity is Severity.WHOLE:
        return f"whole: {checked}"
    if report.severity is Severity.TORN:
        return f"torn tail: {checked} are whole; the rest was never acknowledged and will be cut at next start"
    lost = sorted(
        (problem.first_lost, problem.last_lost)
        for problem in report.problems
        if problem.first_lost is not None and problem.last_lost is not None
    )
    offsets = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in lost)
    verdict = f"damaged: {f'offsets lost: {offsets}' if offsets else 'see above'}"
    return f"{verdict}. A broker starts, and sets damaged messages aside" if report.starts else verdict
