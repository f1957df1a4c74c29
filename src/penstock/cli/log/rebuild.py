"""`penstock log rebuild-history`: rebuild the Object History from the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.engine.history import content_digest, note
from penstock.engine.names import StoredNames
from penstock.errors import DamagedLogError, HistoryError
from penstock.limits import READ_BYTES
from penstock.model.kinds import Kind
from penstock.model.values import Position, Version
from penstock.storage.directory import DataDirectory, sync
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import name_of, unpacked
from penstock.storage.inspect import newest_snapshot
from penstock.storage.log.batch import HEADER_BYTES, Header, extent_bounds, records_of
from penstock.storage.log.files import LogFiles
from penstock.storage.log.names import names_defined
from penstock.storage.log.parts import holds
from penstock.storage.log.view import Cursor, View

_UNFINISHED = "history.new"


Forgotten = Callable[[Version], bool]


def rebuild(data: DataDirectory, *, show: bool) -> list[str]:
    """Rebuild it while the directory is locked. Returns what to report."""
    data.read_identity()
    data.open()
    try:
        return rebuild_history(data, show=show)
    finally:
        data.close()


def rebuild_history(data: DataDirectory, *, show: bool, forgotten: Forgotten = lambda _: False) -> list[str]:
    """`forgotten`: these versions count as never published."""
    view = LogFiles(data).view()
    old, trouble = _open_old(data)
    unfinished = data.path / _UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    kept = _keep(unfinished, old, view, forgotten)
    history = ObjectHistory(unfinished)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as bar:
        first = view.parts[0].base_position if view.parts else 0
        task = bar.add_task("rebuilding", total=view.end.position - first)
        _replay(data, view, history, old, lambda size: bar.advance(task, size))
    history.noted = view.end.position
    history.settle(first)
    keys = history.keys
    history.close()
    if old:
        old.close()
    shutil.rmtree(data.history, ignore_errors=True)
    unfinished.rename(data.history)
    sync(data.path)
    return list(_summary(keys, kept, view, trouble))


def _open_old(data: DataDirectory) -> tuple[StoredVersions | None, str | None]:
    """The old history, or the reason why it cannot be used."""
    if not (data.history / "data.mdb").exists():
        return None, "it is missing"
    try:
        return StoredVersions(data.history), None
    except HistoryError as error:
        return None, str(error)


def _keep(unfinished: Path, old: StoredVersions | None, view: View, forgotten: Forgotten) -> int:
    """Copy keys whose last change is no longer in the log from the old history. Returns how many."""
    unfinished.mkdir(mode=0o700)
    fresh = StoredVersions(unfinished, writable=True)
    if old:
        fresh.load(
            (name, version)
            for name, version in old.entries()
            if not holds(view.parts, version.position) and not forgotten(version)
        )
    kept = fresh.keys
    fresh.close()
    return kept


def _summary(keys: int, kept: int, view: View, trouble: str | None) -> Iterator[str]:
    yield f"The Object History has {keys:,} keys."
    first = view.parts[0].base_offset if view.parts else 0
    gone = first > 0 or any(not holds(view.parts, part.base_position - 1) for part in view.parts[1:])
    if kept:
        yield f"{kept:,} of them are no longer in the log, and were copied from the old history."
    if gone and trouble:
        yield f"The log is incomplete: it begins with event {first}, or has holes. The old history could not be read"
        yield f"({trouble}). Keys that have not changed since are lost, and count as new."


# ── Reading the log ───────────────────────────────────────────────────────────────────────────────────────────


class _KeyedMessage(NamedTuple):
    about: str
    key: bytes
    digest: bytes
    queue: int
    sequence: int
    time: int
    position: Position


def _replay(
    data: DataDirectory,
    view: View,
    history: ObjectHistory,
    old: StoredVersions | None,
    advance: Callable[[int], None],
) -> None:
    """Note every version in the log."""
    names = _Names(data, view)
    for header, payload in _batches(view):
        for message in _keyed_messages(header, payload, names):
            if history.behind:
                history.settle(view.parts[0].base_position)
            note(_Counting(history, old), *message)
        advance(header.total_bytes)


def _batches(view: View) -> Iterator[tuple[Header, bytes]]:
    """All batches of the log, before and after holes."""
    for index, part in enumerate(view.parts):
        cursor = Cursor(part.base_position)
        try:
            while cursor.position < view.part_end(index):
                yield from cursor.read(view, READ_BYTES)
        except DamagedLogError as error:
            raise DamagedLogError(f"{part}: {error}: check it with penstock log verify") from error
        finally:
            cursor.close()


class _Names(dict[int, str]):
    """Names by number, from the newest snapshot and from the log."""

    def __init__(self, data: DataDirectory, view: View) -> None:
        super().__init__()
        self._view: View | None = view  # Not searched yet.
        snapshot = newest_snapshot(data)
        for kind, facts, _ in snapshot[1] if snapshot else ():
            if kind == "engine":
                self.update(msgspec.json.decode(facts, type=StoredNames).by_number())

    def __missing__(self, number: int) -> str:
        """Search the whole log for a name that neither the snapshot nor the log so far has defined: a name that was
        forgotten is defined again when it is used again."""
        view, self._view = self._view, None
        for batch in _batches(view) if view else ():
            self.update(names_defined(*batch))
        if number not in self:
            raise DamagedLogError(f"name {number} is neither in the log nor in a snapshot")
        return self[number]


def _keyed_messages(header: Header, payload: bytes, names: _Names) -> Iterator[_KeyedMessage]:
    """The messages of a batch that have an object and a key. Names that the batch defines are added to `names`."""
    records = records_of(header, payload)
    named = records["kind"] == Kind.NAME_DEFINED
    keyed = (records["kind"] == Kind.LOGGED) & (records["object"] > 0) & (records["key_bytes"] > 0)
    chosen = np.flatnonzero(named | keyed)
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
        yield _KeyedMessage(
            names[int(record["object"])],
            payload[key_start : key_start + int(record["key_bytes"])],
            content_digest(body),
            *(int(record["queue"]), int(record["sequence"]), int(record["time"])),
            header.base_position + HEADER_BYTES + start,
        )


class _Counting:
    """A history that takes the number of a version from the old one, which also counted versions before the log."""

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
