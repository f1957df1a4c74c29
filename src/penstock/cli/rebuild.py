"""`penstock log rebuild-history`: make the Object History anew from the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.engine.history import content_digest, note
from penstock.engine.names import StoredNames
from penstock.errors import DamagedLogError, HistoryError
from penstock.model.kinds import Kind
from penstock.model.values import Position, Version
from penstock.storage.directory import DataDirectory, sync
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import name_of, unpacked
from penstock.storage.inspect import newest_snapshot
from penstock.storage.log.batch import HEADER_BYTES, Header, extent_bounds, records_of
from penstock.storage.log.names import names_defined
from penstock.storage.log.segment import Segment, SegmentReader, in_segments, open_segment

_UNFINISHED = "history.new"


def rebuild_history(
    directory: Annotated[Path, typer.Argument(help="The data directory.", exists=True, file_okay=False)],
    progress: Annotated[bool, typer.Option(help="Show how far it is, on a terminal.")] = True,
) -> None:
    """Make the Object History anew from the log. No broker may serve the directory."""
    data = DataDirectory(directory)
    data.read_identity()
    data.open()
    try:
        said = _rebuild(data, show=progress)
    finally:
        data.close()
    console = Console(highlight=False, soft_wrap=True)
    for line in said:
        console.print(line, markup=False)


def _rebuild(data: DataDirectory, *, show: bool) -> list[str]:
    segments = [open_segment(path) for path in sorted(data.log.glob("*.log"))]
    old, trouble = _open_old(data)
    unfinished = data.path / _UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    kept = _keep(unfinished, old, segments)
    history = ObjectHistory(unfinished)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as bar:
        task = bar.add_task("rebuilding", total=sum(segment.path.stat().st_size for segment in segments))
        end = _replay(data, segments, history, old, lambda size: bar.advance(task, size))
    history.noted = end
    history.settle(segments[0].base_position if segments else 0)
    keys = history.keys
    history.close()
    if old:
        old.close()
    shutil.rmtree(data.history, ignore_errors=True)
    unfinished.rename(data.history)
    sync(data.path)
    return list(_said(keys, kept, segments, trouble))


def _open_old(data: DataDirectory) -> tuple[StoredVersions | None, str | None]:
    """What there is, or why it cannot be used."""
    if not (data.history / "data.mdb").exists():
        return None, "it is missing"
    try:
        return StoredVersions(data.history), None
    except HistoryError as error:
        return None, str(error)


def _keep(unfinished: Path, old: StoredVersions | None, segments: list[Segment]) -> int:
    """Take over what the log no longer tells: keys whose last change it has given up."""
    unfinished.mkdir(mode=0o700)
    fresh = StoredVersions(unfinished, writable=True)
    if old:
        fresh.load((name, version) for name, version in old.entries() if not in_segments(segments, version.position))
    kept = fresh.keys
    fresh.close()
    return kept


def _said(keys: int, kept: int, segments: list[Segment], trouble: str | None) -> Iterator[str]:
    yield f"The Object History knows {keys:,} keys."
    first = segments[0].base_offset if segments else 0
    gone = first > 0 or any(not in_segments(segments, segment.base_position - 1) for segment in segments[1:])
    if kept:
        yield f"The log no longer tells of {kept:,} of them: they were taken over as they were."
    if gone and trouble:
        yield f"The log no longer tells everything: it begins with event {first}, or has holes. The history before"
        yield f"could not be read ({trouble}): keys that have not changed since are lost, and count as new."


# ── What the log tells ────────────────────────────────────────────────────────────────────────────────────────


class _Told(NamedTuple):
    about: str
    key: bytes
    digest: bytes
    queue: int
    sequence: int
    time: int
    position: Position


def _replay(
    data: DataDirectory,
    segments: list[Segment],
    history: ObjectHistory,
    old: StoredVersions | None,
    advance: Callable[[int], None],
) -> Position:
    """Note every version in the log; where it ends."""
    names = _Names(data, segments)
    end = 0
    for segment in segments:
        reader = SegmentReader(segment)
        for _, header, payload in reader.batches():
            for told in _told(header, payload, names):
                if history.behind:
                    history.settle(segments[0].base_position)
                note(_Counting(history, old), *told)
            advance(header.total_bytes)
        damage = reader.damage
        if damage and (segment is not segments[-1] or damage.resumes_at is not None):
            raise DamagedLogError(f"{segment.path}: damaged at byte {damage.file_offset}: see penstock log verify")
        end = reader.end_position
    return end


class _Names(dict[int, str]):
    """What numbers stand for: as the newest snapshot says, and as the log does from where it begins."""

    def __init__(self, data: DataDirectory, segments: list[Segment]) -> None:
        super().__init__()
        self._segments = segments
        snapshot = newest_snapshot(data)
        for kind, facts, _ in snapshot[1] if snapshot else ():
            if kind == "engine":
                self.update(msgspec.json.decode(facts, type=StoredNames).by_number())

    def __missing__(self, number: int) -> str:
        """One whose definition has left the log, and that was forgotten before the snapshot: the log repeats it."""
        segments, self._segments = self._segments, []
        for segment in segments:
            for _, header, payload in SegmentReader(segment).batches():
                self.update(names_defined(header, payload))
        if number not in self:
            raise DamagedLogError(f"name {number} is neither in the log nor in a snapshot")
        return self[number]


def _told(header: Header, payload: bytes, names: _Names) -> Iterator[_Told]:
    """The messages of a batch that have an object and a key. Names that it defines are added."""
    records = records_of(header, payload)
    named = records["kind"] == Kind.NAME_DEFINED
    told = (records["kind"] == Kind.LOGGED) & (records["object"] > 0) & (records["key_bytes"] > 0)
    chosen = np.flatnonzero(named | told)
    if not len(chosen):
        return
    bounds = extent_bounds(records)
    for index in chosen.tolist():
        record, start = records[index], int(bounds[index])
        key_start = start + int(record["body_bytes"])
        body = payload[start:key_start]
        if named[index]:
            names[int(record["queue"])] = body.decode()
            continue
        yield _Told(
            names[int(record["object"])],
            payload[key_start : key_start + int(record["key_bytes"])],
            content_digest(body),
            *(int(record["queue"]), int(record["sequence"]), int(record["time"])),
            header.base_position + HEADER_BYTES + start,
        )


class _Counting:
    """A history in which a version that the old one knew is counted as it was there, with those before the log."""

    def __init__(self, history: ObjectHistory, old: StoredVersions | None) -> None:
        self._history = history
        self._old = old
        self.get = history.get

    def put(self, about: str, key: bytes, version: Version) -> None:
        packed = self._old.current([name_of(about, key)])[0] if self._old else None
        known = unpacked(packed) if packed else None
        if known and known.position == version.position:
            version = version._replace(versions=known.versions)
        self._history.put(about, key, version)
