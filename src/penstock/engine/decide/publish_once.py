"""Publishes with an idempotency key: decided once, and answered in the same way when they are repeated.

The answer is logged with the messages, in one decision, so both survive a crash or neither does. What is refused is
not remembered.

Where messages are for other shards than that of the key, the key is claimed in its own shard first, with an empty
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from penstock.engine.answered import DIGEST_BYTES, AnsweredRequest, decode_runs, encode_runs
from penstock.engine.decide.draft import Draft
from penstock.engine.decide.publish_topics import publish_topics
from penstock.errors import Reason
from penstock.model.answers import Done, Published, Refused, Repeated
from penstock.model.commands import PublishOnce
from penstock.model.courier_commands import ClaimKey, ReleaseKey
from penstock.model.events import Answered

_CLAIMED = encode_runs([])
_OF_NOTHING = bytes(DIGEST_BYTES)  # In place of a digest: the key is free.


def publish_once(draft: Draft, command: PublishOnce) -> Sequence[Published] | Repeated | Refused:
    if known := _known(draft, command):
        if known.digest != command.digest:
            return Refused(Reason.KEY_REUSED)
        if known.answer != _CLAIMED or not command.publish.messages:
            return Repeated(_unpacked(known.answer))
    published = publish_topics(draft, command.publish)
    if isinstance(published, Refused):
        return published
    _remember(draft, command, _packed(published))
    return published


def claim_key(draft: Draft, command: ClaimKey) -> Done | Refused:
    known = _known(draft, command)
    if known and known.digest != command.digest:
        return Refused(Reason.KEY_REUSED)
    if not known:
        _remember(draft, command, _CLAIMED)
    return Done()


def release_key(draft: Draft, command: ReleaseKey) -> Done:
    """An answer is kept: the request was carried out here."""
    known = draft.state.answered.by_key.get(command.key)
    if known and (known.digest, known.answer) == (command.digest, _CLAIMED):
        draft.events.append(Answered(draft.now, 0, command.key, _OF_NOTHING, _CLAIMED))
    return Done()


def _known(draft: Draft, command: PublishOnce | ClaimKey) -> AnsweredRequest | None:
    known = draft.state.answered.by_key.get(command.key)
    is_valid = known and known.time > draft.now - command.lifetime_ns and known.digest != _OF_NOTHING
    return known if is_valid else None


def _remember(draft: Draft, command: PublishOnce | ClaimKey, answer: bytes) -> None:
    until, size = draft.now - command.lifetime_ns, len(command.key) + len(answer)
    surplus = draft.state.answered.surplus(size, until=until, keys_max=command.keys_max)
    draft.events.append(Answered(draft.now, surplus, command.key, command.digest, answer))


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
