"""Lends the keys that this shard answers for: each to one shard at a time, with its newest version."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol, cast

from penstock.broker.services.contract import Service, resolve
from penstock.broker.writer.port import ClientPort, Reply, ServicePort
from penstock.engine.history import SharedHistory
from penstock.limits import COURIER_RETRY_SECONDS, KEYS_WAIT_SECONDS
from penstock.model.answers import Discarded, Done, Loan, Refused
from penstock.model.commands import Command
from penstock.model.courier_commands import BorrowKeys, KeepLoans, OpenLoans, ReturnKeys
from penstock.model.values import LearnedVersion, LentVersion

Key = tuple[str, bytes]  # An object and a key.


class Learning(Protocol):
    async def has_come(self, shard: int) -> None:
        """Wait until all that another shard owes now is here, durably."""


class _Taken:
    """Keys that are lent together; or one that was returned with a version that is not learned yet."""

    __slots__ = ("is_returned", "learned", "session", "shard", "versions")

    def __init__(self, shard: int, session: int) -> None:
        self.shard = shard
        self.session = session
        self.versions: dict[Key, LentVersion] = {}  # Those that are not learned yet, as far as it is known.
        self.learned: dict[Key, LentVersion] = {}  # The last ones that came since.
        self.is_returned = False


class _Request:
    """Somebody waits for keys."""

    def __init__(self, command: BorrowKeys, reply: Reply) -> None:
        self.shard, self.session, self.loan = command.borrower, command.session, command.loan
        self.keys = command.keys
        self.reply = reply
        self.timer: asyncio.TimerHandle | None = None


class Lender(Service):
    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        self._shard = 0
        self._ports: Sequence[ClientPort] = ()
        self._taken: dict[Key, _Taken] = {}
        self._loans: dict[tuple[int, int], Sequence[Key]] = {}  # By the shard and its number of the loan.
        self._waiting: dict[Key, deque[_Request]] = {}
        self._sessions: dict[int, int] = {}  # By shard: the one that counts.
        self._opened: set[int] = set()  # What these shards had when this one began is learned.
        self._last_session = 0
        self._life = object()  # Another one after each start.
        self._learning_of: dict[int, asyncio.Task[None]] = {}  # By shard.

    def connect(self, shard: int, ports: Sequence[ClientPort], learning: Learning) -> None:
        """`ports`: of all shards, this one too."""
        self._shard, self._ports, self._learning = shard, ports, learning

    def start(self) -> None:
        """Also when a failed log was replaced: what was learned and not durable is not known any more."""
        self._forget_all()
        super().start()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for shard, port in enumerate(self._ports):
                group.create_task(self._serve_shard(shard, port, self._life))

    async def stop(self) -> None:
        await super().stop()
        self._forget_all()

    def _forget_all(self) -> None:
        for request in list(self._requests()):
            self._remove(request)
            request.reply(Discarded())
        for task in list(self._learning_of.values()):
            task.cancel()
        self._taken, self._loans, self._waiting = {}, {}, {}
        self._sessions, self._opened = {}, set()
        self._life = object()

    # ── Sessions ────────────────────────────────────────────────────────────────────────────────────────────

    async def _serve_shard(self, shard: int, port: ClientPort, life: object) -> None:
        while life is self._life:  # A task that was cancelled may go on for a step.
            session = self._last_session = max(self._last_session + 1, self.writer.now())
            self._sessions[shard] = session
            if isinstance(await _asked(port, OpenLoans(self._shard, session)), Refused):
                await asyncio.sleep(COURIER_RETRY_SECONDS)
                continue
            if shard != self._shard:
                await self._learning.has_come(shard)
            if life is self._life:
                self._begin(shard)
            await _asked(port, KeepLoans(self._shard, session))
            await asyncio.sleep(COURIER_RETRY_SECONDS)  # What has ended this one may end the next.

    def _begin(self, shard: int) -> None:
        """All is learned that became of what was lent to the shard before."""
        session = self._sessions[shard]
        for key in [key for key, each in self._taken.items() if each.shard == shard and each.session != session]:
            del self._taken[key]
        self._loans = {loan: keys for loan, keys in self._loans.items() if keys[0] in self._taken}
        for request in [each for each in self._requests() if self._is_stale(each)]:
            self._remove(request)
            request.reply(Discarded())
        self._opened.add(shard)
        self._serve(list(self._waiting))

    def _requests(self) -> Iterable[_Request]:
        """Each once, though it waits for several keys."""
        return dict.fromkeys(each for requests in self._waiting.values() for each in requests)

    def _is_stale(self, request: _Request) -> bool:
        return self._sessions.get(request.shard) != request.session

    # ── Loans ───────────────────────────────────────────────────────────────────────────────────────────────

    def borrow(self, command: BorrowKeys, reply: Reply) -> None:
        request = _Request(command, reply)
        if self.writer.failure or self._is_stale(request):
            reply(Discarded())
        elif self._is_free(request) and self._waiting.keys().isdisjoint(request.keys):
            self._lend(request)
        else:
            for key in request.keys:
                self._waiting.setdefault(key, deque()).append(request)
            running = asyncio.get_running_loop()
            request.timer = running.call_later(KEYS_WAIT_SECONDS, self._give_up, request)
            self._learn_soon(request.keys)

    def _learn_soon(self, keys: Sequence[Key]) -> None:
        """Have the versions brought now that keys wait for."""
        for shard in {each.shard for key in keys if (each := self._taken.get(key)) and each.is_returned}:
            if shard not in self._learning_of:
                self._learning_of[shard] = task = asyncio.create_task(self._learning.has_come(shard))
                task.add_done_callback(partial(self._has_learned, shard))

    def _has_learned(self, shard: int, _: object) -> None:
        self._learning_of.pop(shard, None)

    def _is_free(self, request: _Request) -> bool:
        """What one shard has changed others do not get before it is learned: so versions are learned in order."""
        if len(self._opened) < len(self._ports):
            return False
        found = [self._taken.get(key) for key in request.keys]
        return all(each is None or (each.is_returned and each.shard == request.shard) for each in found)

    def _lend(self, request: _Request) -> None:
        taken = _Taken(request.shard, request.session)
        for key in request.keys:
            if before := self._taken.get(key):
                taken.versions[key] = before.versions[key]
        newest = self._newest(request.keys, taken.versions)
        if reason := self._history.room(newest.count(None)):
            request.reply(Refused(reason))
            return
        self._taken.update(dict.fromkeys(request.keys, taken))
        self._loans[request.shard, request.loan] = request.keys
        request.reply(Loan(newest))

    def _newest(self, keys: Sequence[Key], unlearned: dict[Key, LentVersion]) -> list[LentVersion | None]:
        found: list[LentVersion | None] = []
        for about, some in groupby(keys, itemgetter(0)):
            known = self._history.newest(about, [key for _, key in some])
            found += [LentVersion(*each[:3]) if each else None for each in known]
        return [unlearned.get(key, each) for key, each in zip(keys, found, strict=True)] if unlearned else found

    def take_back(self, command: ReturnKeys, reply: Reply) -> None:
        if self._sessions.get(command.borrower) == command.session:
            for loan, changed in command.loans:
                keys = self._loans.pop((command.borrower, loan), ())
                if keys:
                    self._free(keys, {(about, key): version for about, key, version in changed})
        reply(Done())

    def _free(self, keys: Sequence[Key], changed: dict[Key, LentVersion]) -> None:
        """Keys that were lent are free if there is nothing to learn of them."""
        taken = self._taken[keys[0]]
        # What this shard has stored itself, it knows.
        unlearned = {} if taken.shard == self._shard else taken.versions | changed
        for key in keys:
            version = unlearned.get(key)
            if version is None or taken.learned.get(key) == version:
                del self._taken[key]
            else:
                awaited = self._taken[key] = _Taken(taken.shard, taken.session)
                awaited.versions[key], awaited.is_returned = version, True
        self._learn_soon([key for key in keys if key in self._waiting])
        self._serve(keys)

    def learned(self, versions: Sequence[LearnedVersion]) -> None:
        """The courier has brought these versions, and they are durable: so another shard's next version comes after
        them, also if this log fails and what was learned last has to be learned again."""
        free = []
        for about, name, digest, queue, sequence, _ in versions:
            key, version = (about, name), LentVersion(digest, queue, sequence)
            if taken := self._taken.get(key):
                if taken.is_returned and taken.versions[key] == version:
                    del self._taken[key]
                    free.append(key)
                else:
                    taken.learned[key] = version
        self._serve(free)

    @property
    def _history(self) -> SharedHistory:
        return cast("SharedHistory", self.writer.engine.history)

    # ── Those who wait ──────────────────────────────────────────────────────────────────────────────────────

    def _serve(self, keys: Sequence[Key]) -> None:
        for key in keys:
            while (requests := self._waiting.get(key)) and self._is_next(requests[0]):
                request = requests[0]
                self._remove(request)
                self._lend(request)

    def _is_next(self, request: _Request) -> bool:
        return self._is_free(request) and all(self._waiting[key][0] is request for key in request.keys)

    def _remove(self, request: _Request) -> None:
        if request.timer:
            request.timer.cancel()
        for key in request.keys:
            requests = self._waiting[key]
            requests.remove(request)
            if not requests:
                del self._waiting[key]

    def _give_up(self, request: _Request) -> None:
        self._remove(request)
        request.reply(Loan(()))
        self._serve(request.keys)


async def _asked(port: ClientPort, command: Command) -> Any:
    """The answer, however long it takes. Withdrawn if nobody waits for it any more."""
    answered = asyncio.get_running_loop().create_future()
    pending = port.submit(command, partial(resolve, answered))
    try:
        return await answered
    except asyncio.CancelledError:
        if pending:
            pending.cancel()
        raise
