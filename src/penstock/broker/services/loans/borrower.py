"""Borrows the keys of messages from the shards that answer for them, before a command about them is decided here."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from penstock.broker.services.contract import Service
from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import ClientPort, Pending, Reply, ServicePort, is_over, through
from penstock.engine.history import Lent, SharedHistory
from penstock.engine.schedules import Planned
from penstock.errors import Reason
from penstock.limits import KEYS_WAIT_SECONDS, SCHEDULE_RETRY_SECONDS
from penstock.model.answers import Answer, Discarded, Loan, ObjectDescription, QueueNames, Refused
from penstock.model.courier_commands import BorrowKeys, KeepLoans, NameQueues, OpenLoans, ReturnKeys
from penstock.model.values import LentVersion, Stage

Key = tuple[str, bytes]  # An object and a key.
Submit = Callable[[Reply, Stage], object]

_AWAY = Refused(Reason.UNAVAILABLE, "another shard answers for the object and key, and cannot do so now")
_STOPPED = Refused(Reason.UNAVAILABLE, "this process does not serve the shard any more")


class _Loan:
    def __init__(self, lender: int, session: int, number: int, keys: Sequence[Key]) -> None:
        self.lender = lender
        self.session = session
        self.number = number
        self.keys = keys
        self.lent: dict[Key, Lent] = {}

    def changed(self) -> list[tuple[str, bytes, LentVersion]]:
        return [
            (*key, LentVersion(*each.version[:3]))
            for key, each in self.lent.items()
            if each.is_changed and each.version
        ]


class _Errand:
    """One command. It borrows from one shard after the other, in their order: so no two wait for each other."""

    def __init__(
        self, borrower: Borrower, keys: dict[int, list[Key]], submit: Submit, reply: Reply, stage: Stage
    ) -> None:
        self._borrower = borrower
        self._left = deque(sorted(keys.items()))
        self._submit, self._reply, self._stage = submit, reply, stage
        self._loans: list[_Loan] = []
        self._engine = borrower.writer.engine
        self.until = asyncio.get_running_loop().time() + KEYS_WAIT_SECONDS

    def go_on(self) -> None:
        if self._left:
            self._borrower.borrow(*self._left[0], self)
        elif is_over(self._reply):
            self._settled(None)  # It is asked again, and must not be carried out twice.
        elif not self._borrower.may_use(self._loans, self._engine):
            self.refuse(_AWAY)
        else:
            self._submit(through(self._reply, self._decided), self._stage)

    def lent(self, loan: _Loan) -> None:
        self._left.popleft()
        self._loans.append(loan)
        self.go_on()

    def refuse(self, refused: Refused) -> None:
        self._settled(refused)
        self._reply(refused)

    def _decided(self, answer: Answer) -> None:
        if self._stage is Stage.SYNC:
            self._settled(answer)
        else:
            self._borrower.writer.reach(Stage.SYNC, self._settled)
        self._reply(answer)

    def _settled(self, _: Answer | None) -> None:
        """What was decided is durable; or the log has failed, and nobody knows."""
        writer = self._borrower.writer
        is_known = not writer.failure and writer.engine is self._engine
        for loan in self._loans:
            self._borrower.give_back(loan, is_known=is_known)


class Borrower(Service):
    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        self.shard = 0
        self._shards = ShardMap()
        self._ports: Sequence[ClientPort] = ()
        self._sessions: dict[int, int] = {}  # By lender.
        self._keeping: dict[int, Reply] = {}  # By lender: it is told when its session has ended.
        self._held: defaultdict[int, set[_Loan]] = defaultdict(set)
        self._returns: defaultdict[int, list[_Loan]] = defaultdict(list)  # To be sent at the end of this turn.
        self._waiting: defaultdict[int, dict[_Errand, asyncio.TimerHandle]] = defaultdict(dict)  # For a session.
        self._numbers = 0
        self._is_stopped = False

    def connect(self, shard: int, shards: ShardMap, ports: Sequence[ClientPort]) -> None:
        """`ports`: of all shards, this one too."""
        self.shard, self._shards, self._ports = shard, shards, ports

    def start(self) -> None:
        self._is_stopped = False
        super().start()

    async def stop(self) -> None:
        self._leave()
        await super().stop()

    async def close(self) -> None:
        self._leave()
        await super().close()

    def _leave(self) -> None:
        """Lenders look for the process that has the shard from now on."""
        self._is_stopped = True
        for lender, session in list(self._sessions.items()):
            self._end_session(lender, session)
        for lender in list(self._waiting):
            for errand in list(self._waiting[lender]):
                self._give_up(lender, errand)

    @property
    def _history(self) -> SharedHistory:
        return cast("SharedHistory", self.writer.engine.history)

    # ── A command ───────────────────────────────────────────────────────────────────────────────────────────

    def carry_out(self, keys: Sequence[Key], submit: Submit, reply: Reply, stage: Stage) -> None:
        """Submit a command when the keys of its messages are borrowed. They are given back when it is durable."""
        if self._shards.shards == 1:
            submit(reply, stage)
            return
        of_each: dict[int, list[Key]] = {}
        for shard, key in zip(self._shards.of_objects(keys), keys, strict=True):
            of_each.setdefault(shard, []).append(key)
        _Errand(self, of_each, submit, reply, stage).go_on()

    def borrow(self, lender: int, keys: Sequence[Key], errand: _Errand) -> None:
        session = self._sessions.get(lender)
        if session is None:
            self._wait(lender, errand)
            return
        self._numbers += 1
        loan = _Loan(lender, session, self._numbers, keys)
        question = BorrowKeys(self.shard, session, loan.number, keys)
        self._ports[lender].submit(question, partial(self._answered, loan, errand))

    def _answered(self, loan: _Loan, errand: _Errand, answer: Loan | Discarded | Refused) -> None:
        if isinstance(answer, Refused) and answer.reason is not Reason.UNAVAILABLE:
            errand.refuse(answer)
        elif not isinstance(answer, Loan):  # It may have lent them, or begins another session.
            self._end_session(loan.lender, loan.session)
            self._wait(loan.lender, errand)
        elif not answer.versions:
            errand.refuse(_AWAY)
        elif self._sessions.get(loan.lender) != loan.session:
            errand.go_on()
        else:
            loan.lent = self._lent_by(loan.lender == self.shard, loan.keys, answer.versions)
            self._history.lent.update(loan.lent)
            self._held[loan.lender].add(loan)
            errand.lent(loan)

    def _lent_by(self, is_mine: bool, keys: Sequence[Key], versions: Sequence[LentVersion | None]) -> dict[Key, Lent]:
        before = self._history.before
        return {
            key: Lent(found or (None if is_mine else before(*key)), is_mine)
            for key, found in zip(keys, versions, strict=True)
        }

    def may_use(self, loans: Sequence[_Loan], engine: object) -> bool:
        """Whether what was lent for a command is still so."""
        return self.writer.engine is engine and all(self._sessions.get(each.lender) == each.session for each in loans)

    def give_back(self, loan: _Loan, *, is_known: bool) -> None:
        """`is_known`: what is new is durable. Otherwise the lender has to find out."""
        self._release(loan)
        if self._sessions.get(loan.lender) != loan.session:
            return
        if not is_known:
            self._end_session(loan.lender, loan.session)
            return
        if not self._returns[loan.lender]:
            asyncio.get_running_loop().call_soon(self._send_back, loan.lender)
        self._returns[loan.lender].append(loan)

    def _release(self, loan: _Loan) -> None:
        lent = self._history.lent
        for key, each in loan.lent.items():
            if lent.get(key) is each:
                del lent[key]
        self._held[loan.lender].discard(loan)

    def _send_back(self, lender: int) -> None:
        loans = self._returns.pop(lender, [])
        session = self._sessions.get(lender)
        chosen = [(each.number, each.changed()) for each in loans if each.session == session]
        if session is not None and chosen:
            self._ports[lender].submit(
                ReturnKeys(self.shard, session, chosen), partial(self._taken_back, lender, session)
            )

    def _taken_back(self, lender: int, session: int, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self._end_session(lender, session)

    # ── Sessions ────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, command: OpenLoans, reply: Reply) -> None:
        if self._is_stopped or self.writer.failure:
            reply(_STOPPED)
            return
        lender = command.lender
        self._tell_keeper(lender)
        self.writer.decide_collected()  # With what was lent for it.
        for loan in list(self._held[lender]):
            self._release(loan)
        self._sessions[lender] = command.session
        self.writer.reach(Stage.SYNC, reply)
        waiting = self._waiting.pop(lender, {})
        for errand, timer in waiting.items():
            timer.cancel()
            errand.go_on()

    def keep(self, command: KeepLoans, reply: Reply) -> Pending | None:
        if self._sessions.get(command.lender) != command.session:
            reply(Discarded())
            return None
        self._keeping[command.lender] = reply
        return _Kept(partial(self._forget_keeper, command.lender, reply))

    def _forget_keeper(self, lender: int, reply: Reply) -> None:
        if self._keeping.get(lender) is reply:
            del self._keeping[lender]

    def _end_session(self, lender: int, session: int) -> None:
        """Something was lost on the way: nothing counts that was lent."""
        if self._sessions.get(lender) == session:
            del self._sessions[lender]
            self._tell_keeper(lender)

    def _tell_keeper(self, lender: int) -> None:
        if keeper := self._keeping.pop(lender, None):
            keeper(Discarded())

    def _wait(self, lender: int, errand: _Errand) -> None:
        running = asyncio.get_running_loop()
        if self._is_stopped or running.time() >= errand.until:
            errand.refuse(_STOPPED if self._is_stopped else _AWAY)
        else:
            self._waiting[lender][errand] = running.call_at(errand.until, self._give_up, lender, errand)

    def _give_up(self, lender: int, errand: _Errand) -> None:
        if timer := self._waiting[lender].pop(errand, None):
            timer.cancel()
            errand.refuse(_AWAY)

    # ── Schedules, and descriptions ─────────────────────────────────────────────────────────────────────────

    def needs_keys(self, planned: Planned) -> bool:
        """Whether a schedule that is due cannot run yet. Then it does when its key is here."""
        key = (planned.definition.object, planned.definition.key)
        if not all(key) or key in self._history.lent:
            return False
        asyncio.get_running_loop().call_soon(self._run_later, self.writer.engine, planned.name, key)
        return True

    def _run_later(self, engine: Any, name: str, key: Key) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, Refused) and self.writer.engine is engine:
                running = asyncio.get_running_loop()
                running.call_later(SCHEDULE_RETRY_SECONDS, self._run_later, engine, name, key)

        if self.writer.engine is engine and not self._is_stopped:
            self.carry_out([key], partial(self.writer.release_schedule, name), answered, Stage.SYNC)

    def naming(self, reply: Reply) -> Reply:
        """The reply to a description of an object. Only other shards know the names of their queues."""

        def described(answer: ObjectDescription | Refused) -> None:
            if isinstance(answer, Refused):
                reply(answer)
            else:
                _Naming(answer, self._ports, self._shards, reply).begin()

        return described


class _Naming:
    def __init__(
        self, answer: ObjectDescription, ports: Sequence[ClientPort], shards: ShardMap, reply: Reply
    ) -> None:
        self._answer, self._reply = answer, reply
        self._ports = ports
        self._names = dict(answer.queues)
        self._asked: dict[int, list[int]] = {}
        for number in {version.queue for version in (answer.newest, *answer.versions)} - answer.queues.keys():
            self._asked.setdefault(shards.of_number(number), []).append(number)
        self._left = len(self._asked)
        self._refused: Refused | None = None

    def begin(self) -> None:
        if not self._asked:
            self._reply(self._answer)
        for shard, numbers in self._asked.items():
            self._ports[shard].submit(NameQueues(numbers), self._named)

    def _named(self, answer: QueueNames | Refused) -> None:
        self._left -= 1
        if isinstance(answer, Refused):
            self._refused = answer
        else:
            self._names |= answer.names
        if not self._left:
            found = ObjectDescription(self._answer.newest, self._answer.versions, self._names)
            self._reply(self._refused or found)


class _Kept:
    """A lender that waits for the end of its session."""

    is_waiting = True

    def __init__(self, forget: Callable[[], None]) -> None:
        self.cancel = forget

    def give_up(self) -> None:
        """It does not hurry."""
