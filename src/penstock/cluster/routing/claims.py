"""Publishes with an idempotency key that are not, or not only, for the shard of their key.

That shard is asked first, so that a key which was used for another request is refused wherever that one went. It
answers as soon as it has decided; the client is answered when both the key and the messages are durable.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import ClientPort, Reply
from penstock.cluster.routing.cut_commands import Destination
from penstock.errors import Reason
from penstock.model.answers import Answer, Refused
from penstock.model.commands import PublishOnce
from penstock.model.courier_commands import ClaimKey, ReleaseKey
from penstock.model.values import Stage


def needs_claim(command: PublishOnce, found: Destination, shards: ShardMap) -> bool:
    """Whether the shard of the key is not the only one that publishes."""
    return found != shards.of_key(command.key)


class Claim:
    def __init__(
        self,
        command: PublishOnce,
        port: ClientPort,
        publish: Callable[[Reply, Stage], object],
        destination: Destination,
    ) -> None:
        """`port`: the shard of the key. `publish`: carries the command out."""
        self._claim = ClaimKey(command.key, command.digest, command.lifetime_ns, command.keys_max)
        self._port = port
        self._publish = publish
        self._is_whole = isinstance(destination, int)  # It is carried out as a whole, or refused as a whole.

    def begin(self, reply: Reply, stage: Stage) -> None:
        self._reply = reply
        self._answers: list[Answer] = []
        self._stage = stage
        self._port.submit(self._claim, self._claimed, Stage.READY)

    def _claimed(self, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self._reply(answer)
            return
        # Repeated, it is answered when the first one is durable; or is the first one, if that was lost.
        self._port.submit(self._claim, lambda again: self._answered(0, again), self._stage)
        self._publish(lambda published: self._answered(1, published), self._stage)

    def _answered(self, index: int, answer: Answer) -> None:
        """The answer is that of the publish, unless the key was lost."""
        self._answers.insert(index, answer)
        if len(self._answers) < 2:
            return
        durable, published = self._answers
        if isinstance(published, Refused):
            self._refused(published)
        elif isinstance(durable, Refused):
            why = f"the messages are stored, and it is not known whether their key is: {durable.sentence}"
            self._reply(Refused(Reason.OUTCOME_UNKNOWN, why))
        else:
            self._reply(published)

    def _refused(self, published: Refused) -> None:
        """The key is free again if nothing was carried out, and the same request need not succeed."""
        if self._is_whole and published.reason not in (Reason.UNAVAILABLE, Reason.OUTCOME_UNKNOWN):
            self._port.submit(ReleaseKey(self._claim.key, self._claim.digest), lambda _: self._reply(published))
        else:
            self._reply(published)
