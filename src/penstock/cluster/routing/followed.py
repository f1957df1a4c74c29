"""Messages that clients of this process follow, wherever they and their shards are.

If the shard moves, or the process that has it is lost, its messages are followed again as soon as it is served. What
happened meanwhile is recalled from the log, and reported first. A message that is moved to another shard is followed
there in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.broker.writer.port import ClientPort, Report
from penstock.limits import FOLLOW_RETRY_SECONDS
from penstock.model.answers import Recalled
from penstock.model.client import Cancelable
from penstock.model.courier_commands import Recall
from penstock.model.happening import Happening
from penstock.model.kinds import Kind
from penstock.model.values import Nanos, Place, Stage


class FollowedShard:
    """The messages of one shard. While it is not served, one of them is tried for all."""

    def __init__(self, port: ClientPort) -> None:
        """`port`: of the shard, wherever that is."""
        self.port = port
        self._lost: dict[Followed, None] = {}  # The one that is being tried is not among them.
        self._tried: Followed | None = None
        self._timer: asyncio.TimerHandle | None = None

    def lost(self, followed: Followed) -> None:
        self._lost[followed] = None
        if followed is self._tried:
            self._tried = None
        if not self._timer and not self._tried:
            self._timer = asyncio.get_running_loop().call_later(FOLLOW_RETRY_SECONDS, self._try)

    def _try(self) -> None:
        self._timer = None
        if self._lost:
            self._tried = next(iter(self._lost))
            del self._lost[self._tried]
            self._tried.go_on()

    def served(self, followed: Followed) -> None:
        """What one of them has missed is known, so the others can be asked for too."""
        if followed is self._tried:
            self._tried = None
            lost, self._lost = self._lost, {}
            for each in lost:
                each.go_on()

    def forget(self, followed: Followed) -> None:
        self._lost.pop(followed, None)
        if followed is self._tried:
            self._tried = None
            self._try()


class Followed:
    """One message, until it is cancelled. What was not stored when its process was lost ends silently: nobody knows
    whether it is there, and another message may have its place."""

    def __init__(self, shards: Sequence[FollowedShard], home: int, place: Place, report: Report) -> None:
        """`home`: the shard of its place."""
        self._shards = shards
        self._shard = shards[home]
        self._place = place
        self._report = report
        self._since: Nanos = 0  # The time of what the shard has reported last.
        # The same for the shards that it has left, because clocks may differ. Most messages leave none.
        self._left: dict[FollowedShard, Nanos] | None = None
        self._is_stored = self._is_over = self._is_lost = False
        self._meanwhile: list[Happening] | None = None  # What is not reported yet: earlier things are being recalled.
        self._shard.port.when(Stage.SYNC, self._stored)
        self._handle: Cancelable = self._shard.port.follow(*place, self._happened, self._lost)

    def cancel(self) -> None:
        self._is_over = True
        self._handle.cancel()
        self._shard.forget(self)

    def go_on(self) -> None:
        """First follow, then recall: so nothing is missed, and what comes twice is known by its time."""
        self._is_lost, self._meanwhile = False, []
        self._handle = self._shard.port.follow(*self._place, self._happened, self._lost)
        self._shard.port.submit(Recall(*self._place, self._since), partial(self._recalled, self._handle))

    def _stored(self) -> None:
        self._is_stored = True

    def _happened(self, what: Happening) -> None:
        if self._meanwhile is not None:
            self._meanwhile.append(what)
        elif what.time > self._since and not self._is_over:
            self._is_stored, self._since = True, what.time
            self._report(what)
            if what.kind == Kind.SENT and not self._is_over:
                self._leave_for(self._shards[what.shard])

    def _leave_for(self, shard: FollowedShard) -> None:
        self._handle.cancel()
        self._left = self._left or {}
        self._left[self._shard] = self._since
        self._shard, self._since = shard, self._left.get(shard, 0)
        self.go_on()

    def _lost(self) -> None:
        if self._is_stored and not self._is_over and not self._is_lost:
            self._is_lost = True
            self._shard.lost(self)

    def _recalled(self, handle: Cancelable, answer: Any) -> None:
        if self._is_over or self._is_lost or handle is not self._handle:
            return  # If it was lost, it is recalled again.
        meanwhile, self._meanwhile = self._meanwhile or [], None
        if not isinstance(answer, Recalled):
            self._handle.cancel()
            self._lost()
            return
        shard = self._shard
        shard.served(self)
        for what in (*answer.happened, *meanwhile):
            if self._shard is shard:  # What it reports of a message that has left is about a later stay.
                self._happened(what)
