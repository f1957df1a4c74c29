"""A message that a client of this process follows, wherever its shard is.

If the shard moves, or the process that has it is lost, the message is followed again as soon as the shard is served.
What happened meanwhile is recalled from the log, and reported first.
"""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.dialects.wire.conversation import Cancelable
from penstock.limits import FOLLOW_RETRY_SECONDS
from penstock.model.answers import Recalled
from penstock.model.courier_commands import Recall
from penstock.model.happening import Happening
from penstock.model.values import Nanos, Place, Stage
from penstock.server.writer.port import ClientPort, Report


class Followed:
    """Until it is cancelled. What was not stored when its process was lost ends silently: nobody knows whether it is
    there, and another message may have its place."""

    def __init__(self, port: ClientPort, place: Place, report: Report) -> None:
        """`port`: of the shard, wherever that is."""
        self._port = port
        self._place = place
        self._report = report
        self._since: Nanos = 0  # The time of what was reported last.
        self._is_stored = self._is_over = False
        self._meanwhile: list[Happening] | None = None  # What is not reported yet: earlier things are being recalled.
        self._again: asyncio.TimerHandle | None = None
        port.when(Stage.SYNC, self._stored)
        self._handle: Cancelable = port.follow(*place, self._happened, self._lost)

    def cancel(self) -> None:
        self._is_over = True
        self._handle.cancel()
        if self._again:
            self._again.cancel()

    def _stored(self) -> None:
        self._is_stored = True

    def _happened(self, what: Happening) -> None:
        if self._meanwhile is not None:
            self._meanwhile.append(what)
        elif what.time > self._since and not self._is_over:
            self._is_stored, self._since = True, what.time
            self._report(what)

    def _lost(self) -> None:
        if self._is_stored and not self._is_over and self._again is None:
            self._again = asyncio.get_running_loop().call_later(FOLLOW_RETRY_SECONDS, self._go_on)

    def _go_on(self) -> None:
        """First follow, then recall: so nothing is missed, and what comes twice is known by its time."""
        self._again, self._meanwhile = None, []
        self._handle = self._port.follow(*self._place, self._happened, self._lost)
        self._port.submit(Recall(*self._place, self._since), self._recalled)

    def _recalled(self, answer: Any) -> None:
        meanwhile, self._meanwhile = self._meanwhile or [], None
        if not isinstance(answer, Recalled):
            self._handle.cancel()
            self._lost()
            return
        for what in (*answer.happened, *meanwhile):
            self._happened(what)
