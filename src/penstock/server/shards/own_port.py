"""A shard of this worker, as other shards know it: what they are owed is collected by a service."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.model.commands import Command
from penstock.model.courier_commands import CollectParcels
from penstock.model.values import Stage
from penstock.server.writer.port import ClientPort, Pending, Reply


class Collecting(Protocol):
    def collect(self, command: CollectParcels, reply: Reply) -> asyncio.Task[None]: ...


class OwnPort:
    """Everything but `submit`, which no client uses, is that of the writer."""

    def __init__(self, writer: ClientPort, departures: Collecting) -> None:
        self._submit = writer.submit
        self._departures = departures
        self.submit_as, self.refusal, self.decide_collected = (
            writer.submit_as,
            writer.refusal,
            writer.decide_collected,
        )
        self.when, self.reach, self.watch = writer.when, writer.reach, writer.watch
        self.follow, self.waiting = writer.follow, writer.waiting

    def submit(self, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        if isinstance(command, CollectParcels):
            return _Collected(self._departures.collect(command, reply))
        return self._submit(command, reply, stage)


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
