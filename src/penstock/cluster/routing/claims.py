"""Publishes with an idempotency key that are not, or not only, for the shard of their key.

That shard is asked first, so that a key which was used for another request is refused wherever that one went. It
answers as soon as it has decided; the client is answered when both the key and the messages are durable. If that
shard goes away in between, the key is claimed again of whoever has it next: so a claim that was lost is made then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import ClientPort, Reply
from penstock.cluster.routing.cut_commands import Destination
from penstock.errors import Reason
from penstock.limits import PART_RETRY_SECONDS
from penstock.model.answers import Answer, Refused
from penstock.model.commands import PublishOnce
from penstock.model.courier_commands import ClaimKey, ReleaseKey
from penstock.model.values import Stage

_NOT_KNOWN = (Reason.UNAVAILABLE, Reason.OUTCOME_UNKNOWN)


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
        ask_again_seconds: float,
    ) -> None:
        """`port`: the shard of the key. `publish`: carries the command out."""
        self._claim = ClaimKey(command.key, command.digest, command.lifetime_ns, command.keys_max)
        self._port = port
        self._publish = publish
        self._is_whole = isinstance(destination, int)  # It is carried out as a whole, or refused as a whole.
        self._ask_again_seconds = ask_again_seconds
        self._until = 0.0  # How long the key is claimed again.
        self._durable: Answer | None = None  # Whether the key is,
        self._published: Answer | None = None  # and what has become of the messages.

    def begin(self, reply: Reply, stage: Stage) -> None:
        self._reply = reply
        self._stage = stage
        self._port.submit(self._claim, self._claimed, Stage.READY)

    def _claimed(self, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self._reply(answer)
            return
        self._claim_again()
        self._publish(self._is_published, self._stage)

    def _claim_again(self) -> None:
        """Repeated, it is answered when the first one is durable; or is the first one, if that was lost."""
        self._port.submit(self._claim, self._is_claimed, self._stage)

    def _is_claimed(self, answer: Answer) -> None:
        if isinstance(answer, Refused) and answer.reason in _NOT_KNOWN and self._has_time():
            asyncio.get_running_loop().call_later(PART_RETRY_SECONDS, self._claim_again)
        else:
            self._durable = answer
            self._end()

    def _has_time(self) -> bool:
        """To claim the key again: not if the messages are refused anyway."""
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._ask_again_seconds
        return now < self._until and not isinstance(self._published, Refused)

    def _is_published(self, answer: Answer) -> None:
        self._published = answer
        self._end()

    def _end(self) -> None:
        """The answer is that of the publish, unless the key was lost."""
        durable, published = self._durable, self._published
        if durable is None or published is None:
            return
        if isinstance(published, Refused):
            self._refused(published)
        elif isinstance(durable, Refused):
            why = f"the messages are stored, and it is not known whether their key is: {durable.sentence}"
            self._reply(Refused(Reason.OUTCOME_UNKNOWN, why))
        else:
            self._reply(published)

    def _refused(self, published: Refused) -> None:
        """The key is free again if nothing was carried out, and the same request need not succeed."""
        if self._is_whole and published.reason not in _NOT_KNOWN:
            self._port.submit(ReleaseKey(self._claim.key, self._claim.digest), lambda _: self._reply(published))
        else:
            self._reply(published)
