"""Notes versions in an Object History as an engine does."""

from __future__ import annotations

from pathlib import Path

from penstock.engine.history import content_digest, note_run
from penstock.model.values import KeyedRun
from penstock.storage.history.object_history import ObjectHistory


class Noter:
    """Notes versions as an engine does: a log of (object, key, content), each at a position of its own."""

    def __init__(self, path: Path, log: list[tuple[str, bytes, bytes]] | None = None) -> None:
        self.path = path
        self.log = log if log is not None else []
        self.history = ObjectHistory(path)

    def publish(self, about: str, key: bytes, content: bytes) -> bool:
        """Is it a new version?"""
        self.log.append((about, key, content))
        return self._apply(len(self.log))

    def _apply(self, number: int) -> bool:
        noted = self.history.noted
        about, key, content = self.log[number - 1]
        digest = content_digest(content)
        note_run(self.history, KeyedRun(about, [key], [digest], 1, number, number * 1000, [number * 10]))
        return self.history.noted > noted

    def settle(self) -> None:
        self.history.settle(0)

    def again(self, snapshot: tuple[int, list[bytes]] = (0, [])) -> Noter:
        """What the next process finds: the disk, the snapshot, and the log after it."""
        self.history.close()
        fresh = Noter(self.path, self.log)
        for facts in snapshot[1]:
            fresh.history.restore(facts)
        for number in range(snapshot[0] + 1, len(self.log) + 1):
            fresh._apply(number)
        return fresh

    def snapshot(self) -> tuple[int, list[bytes]]:
        return len(self.log), [facts for _, facts, _ in self.history.sections()]

    def known(self, about: str, key: bytes) -> tuple[int, int]:
        """The message of the newest version, and how many versions there were."""
        version = self.history.get(about, key)
        assert version is not None
        return version.sequence, version.versions
