"""Finds the queues for topics: the root of a topic names a queue, and the patterns of channels choose further ones.

A pattern is a topic, or a prefix of topics with a star at its end. The channels for a set of topics are found with
one lookup for each length of prefix in use, and cached until a channel changes.
"""

from __future__ import annotations

from penstock.limits import ROUTES_CACHED_MAX
from penstock.model.values import DEFAULT_QUEUE


def roots(topics: tuple[str, ...], about: str) -> tuple[str, ...]:
    """The names of the queues, each once. Without a topic, the object names the queue; without both, it is the
    default."""
    if not topics:
        return (about or DEFAULT_QUEUE,)
    return tuple(dict.fromkeys([topic.partition(".")[0] for topic in topics]))


class Routing:
    def __init__(self) -> None:
        self._patterns: dict[int, tuple[str, ...]] = {}  # By channel.
        self._exact: dict[str, set[int]] = {}
        self._beginnings: dict[str, set[int]] = {}
        self._lengths: list[int] = []  # Of the prefixes in use.
        self._known: dict[tuple[str, ...], tuple[int, ...]] = {}
        self.changes = 0  # Of channels, since the start.

    def assign(self, queue: int, patterns: tuple[str, ...]) -> None:
        """Set the patterns of a queue; without patterns it is no channel."""
        if self._patterns.get(queue, ()) == patterns:
            return
        self.remove(queue)
        if patterns:
            self._patterns[queue] = patterns
            for table, text in map(self._entry, patterns):
                table.setdefault(text, set()).add(queue)
            self._changed()

    def remove(self, queue: int) -> None:
        """Forget a queue that was removed."""
        patterns = self._patterns.pop(queue, ())
        for table, text in map(self._entry, dict.fromkeys(patterns)):
            table[text].remove(queue)
            if not table[text]:
                del table[text]
        if patterns:
            self._changed()

    def all_channels(self) -> list[int]:
        return sorted(self._patterns)

    def patterns(self) -> list[str]:
        """The patterns of all channels, each once."""
        return sorted(self._exact.keys() | {f"{beginning}*" for beginning in self._beginnings})

    def channels(self, topics: tuple[str, ...]) -> tuple[int, ...]:
        """The numbers of the channels with a pattern for one of the topics, in order."""
        found = self._known.get(topics)
        if found is None:
            found = tuple(sorted({number for topic in topics for number in self._wanting(topic)}))
            if len(self._known) >= ROUTES_CACHED_MAX:
                self._known.clear()
            self._known[topics] = found
        return found

    def _wanting(self, topic: str) -> set[int]:
        wanting = set(self._exact.get(topic, ()))
        for length in self._lengths:
            wanting |= self._beginnings.get(topic[:length], set()) if length <= len(topic) else set()
        return wanting

    def _entry(self, pattern: str) -> tuple[dict[str, set[int]], str]:
        return (self._beginnings, pattern[:-1]) if pattern.endswith("*") else (self._exact, pattern)

    def _changed(self) -> None:
        self.changes += 1
        self._lengths = sorted({len(beginning) for beginning in self._beginnings})
        self._known.clear()
