"""`penstock log rebuild-history`: rebuild the Object History from the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.broker.keyed_messages import KeyedMessage, Names, batches, keyed_messages
from penstock.broker.shard_map import answers_for
from penstock.engine.history import note
from penstock.errors import HistoryError
from penstock.model.values import Version
from penstock.storage.directory import DataDirectory, Identity, sync
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import name_of, unpacked
from penstock.storage.log.files import LogFiles
from penstock.storage.log.parts import holds
from penstock.storage.log.view import View

_UNFINISHED = "history.new"


Forgotten = Callable[[Version], bool]


def rebuild(data: DataDirectory, *, show: bool) -> list[str]:
    """Rebuild it while the directory is locked. Returns what to report."""
    data.read_identity()
    identity = data.open()
    try:
        return rebuild_history(data, identity, show=show)
    finally:
        data.close()


def rebuild_history(
    data: DataDirectory, identity: Identity, *, show: bool, forgotten: Forgotten = lambda _: False
) -> list[str]:
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
        for message in _messages(data, identity, view, lambda size: bar.advance(task, size)):
            if history.behind:
                history.settle(first)
            note(_Counting(history, old), *message)
    history.noted = view.end.position
    history.settle(first)
    keys = history.keys
    history.close()
    if old:
        old.close()
    shutil.rmtree(data.history, ignore_errors=True)
    unfinished.rename(data.history)
    sync(data.path)
    return list(_summary(keys, kept, _is_incomplete(identity, view), trouble))


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


def _is_incomplete(identity: Identity, view: View) -> bool:
    """Whether events are missing. Where a shard goes on from the log of another one, none are."""
    ends = {end for _, end in identity.lineage}
    later = [part for part in view.parts[1:] if part.base_offset not in ends]
    begins_late = bool(view.parts) and view.parts[0].base_offset > 0
    return begins_late or any(not holds(view.parts, part.base_position - 1) for part in later)


def _summary(keys: int, kept: int, is_incomplete: bool, trouble: str | None) -> Iterator[str]:
    yield f"The Object History has {keys:,} keys."
    if kept:
        yield f"{kept:,} of them are no longer in the log, and were copied from the old history."
    if is_incomplete and trouble:
        yield "The log is incomplete: its oldest events were removed, or it has holes. The old history cannot be read"
        yield f"({trouble}). Keys that have not changed since are lost, and count as new."


# ── Reading the log ───────────────────────────────────────────────────────────────────────────────────────────


def _messages(
    data: DataDirectory, identity: Identity, view: View, advance: Callable[[int], None]
) -> Iterator[KeyedMessage]:
    """Every version in the log of the keys that this shard answers for."""
    names, is_mine = Names(data, view), answers_for(identity.shard, identity.shards)
    for header, payload in batches(view):
        for message in keyed_messages(header, payload, names):
            if is_mine(message.about, message.key):
                yield message
        advance(header.total_bytes)


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
