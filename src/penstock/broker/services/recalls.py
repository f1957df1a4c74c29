"""What happened to messages while those who follow them could not hear of it: their shard moved, or its process died.

Of most messages nothing happened, and the queue shows that. For the others the log is read.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.services.contract import Service, durable, unrefused
from penstock.broker.services.message_traces import MessageTraces
from penstock.broker.writer.port import Reply, ServicePort
from penstock.errors import Fault, PenstockError, Reason, RequestError
from penstock.limits import RECALL_TRACES_MAX
from penstock.model.answers import Recalled, Refused
from penstock.model.courier_commands import Recall
from penstock.model.happening import Happening, happenings
from penstock.model.kinds import Kind
from penstock.model.lifecycle import DELAYED, READY
from penstock.model.traces import Traced
from penstock.model.values import Nanos

_FORGOTTEN = (Reason.NO_MESSAGE, Fault.MESSAGE_REMOVED)


class Recalls(Service):
    def __init__(self, writer: ServicePort, traces: MessageTraces) -> None:
        super().__init__(writer)
        self._traces = traces
        self._tracing = asyncio.Semaphore(RECALL_TRACES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def recall(self, command: Recall, reply: Reply) -> None:
        if self._is_untouched(command):
            reply(Recalled([]))
            return
        task = asyncio.create_task(self._answer(command, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await super().stop()

    def _is_untouched(self, command: Recall) -> bool:
        """Is it certain that nobody ever got the message?"""
        found = self.writer.engine.find(command.queue, command.sequence)
        if found is None:
            return False
        queue, sequence, row = found
        has_moved = (queue.number, sequence) != (command.queue, command.sequence)  # Then its count may begin anew.
        is_shared = queue.settings.keep == "all"
        return row.state in (READY, DELAYED) and not (row.receives or has_moved or is_shared)

    async def _answer(self, command: Recall, reply: Reply) -> None:
        try:
            reply(Recalled(await self._happened(command)))
        except asyncio.CancelledError:
            reply(Refused(Reason.UNAVAILABLE, "the shard is handed over"))
            raise
        except (PenstockError, OSError) as error:
            reply(Refused(Reason.UNAVAILABLE, str(error)))

    async def _happened(self, command: Recall) -> list[Happening]:
        """What is decided already may not be reported to somebody who follows the message only now."""
        unrefused(await durable(self.writer))
        place, since = (command.queue, command.sequence), command.since
        try:
            async with self._tracing:
                return await self._traces.look_up(place, partial(_after, since=since))
        except RequestError as error:
            if error.error not in _FORGOTTEN:
                raise
            if self.writer.engine.is_number_elsewhere(command.queue):
                return []  # It has not come yet.
            return [Happening(Kind.DELETED, self.writer.now())]  # It ended before all that the log keeps.


def _after(traced: Traced, since: Nanos) -> list[Happening]:
    events = (event for _, event in traced.records)
    return [each for each in happenings(events, traced.place) if each.time > since]
