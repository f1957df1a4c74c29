"""The channels of other shards. The answer to a publish names those that the message goes to, and the root of a topic
may not name any. What a channel gets is decided where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from penstock.engine.routing import Routing
from penstock.model.answers import Published, Refused, Repeated
from penstock.model.commands import Command, PublishOnce, PublishTopics
from penstock.model.courier_commands import LearnChannel


class ChannelsElsewhere:
    def __init__(self) -> None:
        self._known: dict[int, Mapping[str, tuple[str, ...]]] = {}  # By shard.
        self._names: list[str] = []
        self._routing = Routing()

    def __contains__(self, name: object) -> bool:
        return any(name in known for known in self._known.values())

    def learn(self, shard: int, channels: Mapping[str, tuple[str, ...]]) -> None:
        """All channels of a shard, with their patterns."""
        self._known[shard] = channels
        every = {name: patterns for known in self._known.values() for name, patterns in known.items()}
        self._names = sorted(every)
        self._routing = Routing()
        for number, name in enumerate(self._names):
            self._routing.assign(number, every[name])

    def learn_one(self, channel: LearnChannel) -> None:
        """A channel that was created or changed just now."""
        self.learn(channel.shard, {**self._known.get(channel.shard, {}), channel.name: channel.topics})

    def naming(self, command: Command) -> Callable[[Any], Any] | None:
        """What adds them to the answer to a publish; None: there is nothing to add."""
        publish = command.publish if type(command) is PublishOnce else command
        if type(publish) is not PublishTopics or publish.queue or not self._names:
            return None
        return partial(self._changed, publish)

    def _changed(self, publish: PublishTopics, answer: Any) -> Any:
        if isinstance(answer, Refused):
            return answer
        if isinstance(answer, Repeated):
            return Repeated(self._named(publish, answer.published))
        return self._named(publish, answer)

    def _named(self, publish: PublishTopics, answers: Any) -> list[Published]:
        named: list[Published] = []
        for message, each in zip(publish.messages, answers, strict=True):
            numbers = self._routing.channels(message.topics) if each.state == "Q" else ()
            names = tuple(name for number in numbers if (name := self._names[number]) not in each.queues)
            named.append(replace(each, channels=tuple(sorted((*each.channels, *names)))) if names else each)
        return named
