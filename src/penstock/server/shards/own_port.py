"""A shard of this worker, as other shards know it. What needs the log is answered by services: what others are owed,
and what happened to messages that they follow."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.model.answers import Done
from penstock.model.client import Client
from penstock.model.commands import Command, PublishOnce, PublishTopics
from penstock.model.courier_commands import CollectParcels, LearnChannel, Recall
from penstock.model.values import Stage
from penstock.server.shards.channels_elsewhere import ChannelsElsewhere
from penstock.server.writer.port import ClientPort, Pending, Reply

_TO_TOPICS = frozenset((PublishTopics, PublishOnce))


class Collecting(Protocol):
    channels: ChannelsElsewhere

    def collect(self, command: CollectParcels, reply: Reply) -> asyncio.Task[None]: ...


class Recalling(Protocol):
    def recall(self, command: Recall, reply: Reply) -> None: ...


class OwnPort:
    """What is not here is that of the writer. `submit` is for services, `submit_as` for clients."""

    def __init__(self, writer: ClientPort, departures: Collecting, recalls: Recalling) -> None:
        self._submit, self._submit_as = writer.submit, writer.submit_as
        self._departures = departures
        self._recalls = recalls
        self.refusal, self.decide_collected = writer.refusal, writer.decide_collected
        self.when, self.reach, self.watch = writer.when, writer.reach, writer.watch
        self.follow, self.waiting = writer.follow, writer.waiting

    def submit(self, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        if isinstance(command, CollectParcels):
            return _Collected(self._departures.collect(command, reply))
        if type(command) is Recall:
            self._recalls.recall(command, reply)
            return None
        return self._submit(command, reply, stage)

    def submit_as(self, client: Client, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        if type(command) is LearnChannel:
            self._departures.channels.learn_one(command)
            reply(Done())
            return None
        if type(command) in _TO_TOPICS:
            reply = self._departures.channels.naming(command, reply)
        return self._submit_as(client, command, reply, stage)


class _Collected:
    """An answer that another shard waits for."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    @property
    def is_waiting(self) -> bool:
        return not self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    def give_up(self) -> None:
        """A courier does not hurry: it asks again when the time is over."""
