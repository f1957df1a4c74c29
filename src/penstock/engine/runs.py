"""Finds runs: messages that follow each other and differ only in their bodies, which cost much less together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.commands import NewMessage


def alike(messages: Sequence[NewMessage]) -> bool:
    """Whether the messages differ only in their bodies."""
    return not messages[0].key and next(runs_of(messages)) == (0, len(messages))


def runs_of(messages: Sequence[NewMessage]) -> Iterator[tuple[int, int]]:
    """Start and stop of each run of messages that differ only in their bodies and keys. In a run, all messages have a
    key or none has. A message with headers is a run of its own."""
    start, before = 0, None
    for at, each in enumerate(messages):
        names = (each.content_type, each.sender, each.object, each.topics)
        kind = (names, each.priority, each.delay_ns, each.expires_ns, each.lease_ns, not each.key)
        if kind != before or each.headers or messages[start].headers:
            if at:
                yield start, at
            start, before = at, kind
    yield start, len(messages)
