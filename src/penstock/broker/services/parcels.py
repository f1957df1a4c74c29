"""What one shard owes to another, made from its log and its outbox. Nothing here waits or asks for anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.broker.shard_map import ShardMap
from penstock.engine.history import content_digests
from penstock.engine.routing import roots
from penstock.engine.topics import has_topic
from penstock.model.answers import Owed, Parcel
from penstock.model.events import Logged
from penstock.model.values import LearnedVersion
from penstock.storage.log.routed import NewVersions

TextOf = Callable[[int], str | None]  # The text of a name, by its number.


class Wanted:
    """What a shard wants of others: messages for its queues, and for the patterns of its channels."""

    def __init__(self, shard: int, patterns: Sequence[str], home: Callable[[str], int]) -> None:
        self.shard = shard
        self._patterns = patterns
        self._home = home
        self._known: dict[str, bool] = {}

    def wants(self, topics: str) -> bool:
        """Whether it wants messages with these topics, which are joined by line feeds."""
        found = self._known.get(topics)
        if found is None:
            found = self._known[topics] = self._decide(topics.split("\n"))
        return found

    def _decide(self, topics: Sequence[str]) -> bool:
        if any(self._home(root) == self.shard for root in roots(tuple(topics), "")):
            return True
        return any(has_topic(topics, pattern) for pattern in self._patterns)


def copy_of(message: Logged, options: int, topics: str, text: TextOf) -> Parcel:
    """A message for the queues and channels elsewhere that its topics name."""
    return Parcel(
        place=(message.queue, message.sequence),
        origin="",
        target="",
        time=message.time,
        created=message.time,
        visible_at=message.visible_at,
        expires_at=message.expires_at,
        options=options,
        priority=message.priority,
        content_type=text(message.content_type) or "",
        sender=text(message.sender) or "",
        object=text(message.object) or "",
        topics=topics,
        lease_ns=message.lease_ns,
        key=message.key,
        headers=message.headers,
        body=message.body,
    )


def versions_by_shard(found: NewVersions, shards: ShardMap, text: TextOf) -> dict[int, list[LearnedVersion]]:
    """New versions, by the shard that answers for their keys."""
    texts = {number: text(number) or "" for number in set(found.objects)}
    keys = [(texts[about], key) for about, key in zip(found.objects, found.keys, strict=True)]
    facts = zip(shards.of_objects(keys), keys, content_digests(found.bodies), strict=True)
    versions: dict[int, list[LearnedVersion]] = {}
    for sequence, (shard, key, digest) in enumerate(facts, start=found.sequence):
        version = LearnedVersion(*key, digest, found.queue, sequence, found.time)
        versions.setdefault(shard, []).append(version)
    return versions


def moved(owed: Owed, extent: bytes) -> Parcel:
    """A message that left for another shard, with its bytes."""
    key_at, headers_at = owed.body_bytes, owed.body_bytes + owed.key_bytes
    return Parcel(
        place=owed.place,
        origin=owed.origin,
        target=owed.target,
        time=owed.time,
        created=owed.created,
        visible_at=owed.visible_at,
        expires_at=0,
        options=0,
        priority=owed.priority,
        content_type=owed.content_type,
        sender=owed.sender,
        object=owed.object,
        topics=owed.topics,
        lease_ns=owed.lease_ns,
        key=extent[key_at:headers_at],
        headers=extent[headers_at:],
        body=extent[:key_at],
        reason=owed.reason,
    )


def bytes_of(owed: Owed) -> int:
    return owed.body_bytes + owed.key_bytes + owed.headers_bytes
