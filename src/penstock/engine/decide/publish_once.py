"""Publishes with an idempotency key: decided once, and answered in the same way when they are repeated.

The answer is logged with the messages, in one decision, so both survive a crash or neither does. What is refused is
not remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from penstock.engine.answered import decode_runs, encode_runs
from penstock.engine.decide.draft import Draft
from penstock.engine.decide.publish_topics import publish_topics
from penstock.errors import Reason
from penstock.model.answers import Published, Refused, Repeated
from penstock.model.commands import PublishOnce
from penstock.model.events import Answered


def publish_once(draft: Draft, command: PublishOnce) -> Sequence[Published] | Repeated | Refused:
    requests, until = draft.state.answered, draft.now - command.lifetime_ns
    known = requests.by_key.get(command.key)
    if known and known.time > until:
        same = known.digest == command.digest
        return Repeated(_unpacked(known.answer)) if same else Refused(Reason.KEY_REUSED)
    published = publish_topics(draft, command.publish)
    if isinstance(published, Refused):
        return published
    answer = _packed(published)
    surplus = requests.surplus(len(command.key) + len(answer), until=until, keys_max=command.keys_max)
    draft.events.append(Answered(draft.now, surplus, command.key, command.digest, answer))
    return published


def _packed(published: Sequence[Published]) -> bytes:
    """Messages with consecutive sequences as one entry: a list for one queue takes some bytes, not some for each."""
    runs = []
    for _, run in groupby(enumerate(published), _alike):
        (_, first), *others = run
        runs.append((first.queue, first.sequence, 1 + len(others), first.state, first.queues, first.channels))
    return encode_runs(runs)


def _alike(numbered: tuple[int, Published]) -> object:
    at, each = numbered
    return each.queue, each.sequence - at, each.state, each.queues, each.channels


def _unpacked(answer: bytes) -> list[Published]:
    return [
        Published(queue, sequence, state, queues, channels)
        for queue, first, count, state, queues, channels in decode_runs(answer)
        for sequence in range(first, first + count)
    ]
