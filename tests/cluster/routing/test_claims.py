"""Keys of publishes are claimed in the shard that answers for them, also while that is away for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.broker.writer.port import ClientPort
from penstock.cluster.routing.router import Router
from penstock.errors import Reason
from penstock.model.answers import Published, Refused, Repeated
from penstock.model.commands import Command, NewMessage, PublishOnce, PublishTopics
from penstock.model.courier_commands import ClaimKey
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from tests.support.live_shards import LiveShards

AWAY = Refused(Reason.UNAVAILABLE, "the connection to the process that has this queue was lost")


class _Leaving:
    """A shard that is away, so many times, when a key is to be made durable."""

    def __init__(self, port: Any, times: int) -> None:
        self._port = port
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def submit(self, command: Command, reply: Any, stage: Stage = Stage.SYNC) -> Any:
        if isinstance(command, ClaimKey) and stage == Stage.SYNC and self.times:
            self.times -= 1
            return reply(AWAY)
        return self._port.submit(command, reply, stage)


class Store:
    def __init__(self, shards: LiveShards) -> None:
        self.shards = shards
        map_ = shards.map
        self.key = next(key for key in map(b"key-%d".__mod__, range(99)) if map_.of_key(key) != map_.of_name("a"))

    async def publish(self, body: bytes = b"x", *, times: int = 0, ask_again_seconds: float = 10.0) -> Any:
        """`times`: how often the shard of the key is away."""
        ports: list[ClientPort] = [shard.port for shard in self.shards.shards]
        home = self.shards.map.of_key(self.key)
        ports[home] = leaving = _Leaving(ports[home], times)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        publish = PublishTopics([NewMessage(body)], QueueSettings(), "a")
        once = PublishOnce(publish, self.key, body.rjust(32), 10**12, 100)
        Router(self.shards.map, ports, ask_again_seconds=ask_again_seconds).submit(once, answered.set_result)
        answer = await answered
        assert not ask_again_seconds or leaving.times == 0
        return answer


def live(story: Callable[[Store], Awaitable[None]]) -> Callable[[], None]:
    async def run() -> None:
        shards = LiveShards(3, {"a": 0})
        await shards.create("a")
        try:
            async with asyncio.timeout(100):
                await story(Store(shards))
        finally:
            await shards.end()

    def test() -> None:
        asyncio.run(run())

    test.__name__ = getattr(story, "__name__", "test")
    return test


def states(answer: Any) -> Sequence[str]:
    assert isinstance(answer, list), answer
    return [each.state for each in answer if isinstance(each, Published)]


@live
async def test_a_key_is_claimed_again_of_who_has_its_shard_next(store: Store) -> None:
    assert states(await store.publish(times=2)) == ["Q"]
    assert isinstance(await store.publish(), Repeated)
    assert (await store.publish(b"another")).reason is Reason.KEY_REUSED
    assert store.shards.bodies("a").total() == 1


@live
async def test_nobody_knows_whether_a_key_is_claimed_whose_shard_stays_away(store: Store) -> None:
    refused = await store.publish(times=1, ask_again_seconds=0.0)
    assert (refused.reason, "the messages are stored" in refused.detail) == (Reason.OUTCOME_UNKNOWN, True)
