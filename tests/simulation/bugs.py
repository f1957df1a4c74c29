"""Bugs seeded on purpose: the simulation must find each. `python -m tests.simulation --bug NAME`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.broker.services.courier_source import CourierSource
from penstock.broker.services.loans import borrower
from penstock.broker.services.loans.lender import Lender
from penstock.broker.writer.commit import GroupCommit, give
from penstock.broker.writer.rounds import Rounds
from penstock.cluster.links.codec import Answered, Ask, Frames
from penstock.cluster.links.link import Link
from penstock.cluster.links.served_commands import ServedCommands
from penstock.cluster.routing import destinations
from penstock.model.answer_bytes import unpack
from penstock.model.answers import Refused
from penstock.model.courier_commands import CollectParcels, NoteTaken
from penstock.model.values import Nanos, Stage
from penstock.storage.port import Progress
from tests.simulation import nodes
from tests.simulation.nodes import StoreLog
from tests.simulation.store import Done, Row, Statement, Store


class Bug(NamedTuple):
    world: str  # In which it is found.
    what: str
    of: Any  # A class or module of the broker,
    name: str  # and what of it is replaced
    instead: Callable[..., Any]  # by this.


def _answer_and_keep(self: Link, entry: Answered) -> None:
    if call := self.calls.get(entry.number):
        call.reply(unpack(entry.answer))


def _forget_calls(self: Link) -> None:
    self._served.cancel_all()
    self.calls, self.unanswered_bytes = {}, 0


def _ask_for_less(self: ServedCommands, entry: Ask) -> None:
    port, reply = self._ports[entry.shard], self._begin(entry.number)
    self._waits(entry.number, port.submit(entry.command, reply, Stage.READY))


def _as_they_come(_: list[list[int]], answers: list[Any]) -> Any:
    return [each for answer in answers for each in getattr(answer, "published", answer)]


_receive = Frames.receive


def _forget_beginning(self: Frames, data: bytes) -> list[Any]:
    self._pieces = []
    return _receive(self, data)


async def _look_too_far(self: CourierSource, wanted: Any, offset: int) -> Any:
    found = await _promised(self, wanted, offset)
    return found._replace(to=found.to + 3) if found else found


_promised = CourierSource._promised


async def _take_for_granted(self: CourierSource, command: CollectParcels) -> Any:
    owed = await _owed(self, command)
    if not isinstance(owed, Refused):
        self.writer.submit(NoteTaken(command.shard, owed[1]), lambda _: None)
    return owed


_owed = CourierSource._owed


def _append_anyway(_: int, __: int, data: bytes) -> Statement:
    def statement(row: Row, _: Nanos) -> bool:
        row.batches.append(data)
        return True

    return statement


def _answer_before_standby(self: Store, shard: int, statement: Statement, done: Done) -> None:
    results: list[Any] = []

    def noted(row: Row, now: Nanos) -> Any:
        results.append(statement(row, now))
        return results[-1]

    _execute(self, shard, noted, lambda _: None)
    done(results[0])


_execute = Store.execute


def _hope(self: StoreLog, result: Any, progress: Progress) -> None:
    _appended(self, result is not False, progress)


_appended = StoreLog._appended


def _stay(self: Rounds, member: Any) -> None:
    if not member.failure:
        _ended(self, member)


_ended = Rounds.ended


def _answer_all(self: GroupCommit) -> None:
    _synced(self)
    for member in list(self.rounds.under_way):
        assert isinstance(member, GroupCommit)
        given, member.in_flight = member.in_flight, {Stage.WRITE: [], Stage.SYNC: []}
        give(given[Stage.SYNC] if given else [])


_synced = GroupCommit._synced


def _give_back_early(self: Any) -> None:
    if self._left or not self._borrower.may_use(self._loans, self._engine):
        _go_on(self)
        return

    def decided(answer: Any) -> None:
        self._settled(answer)
        reach = self._borrower.writer.reach
        reach(Stage.SYNC, lambda reached: self._reply(reached if isinstance(reached, Refused) else answer))

    self._submit(decided, Stage.READY)


_go_on = borrower._Errand.go_on


def _lend_to_all(self: Lender, _: Any) -> bool:
    return len(self._opened) == len(self._ports)


BUGS = {
    "back-too-early": Bug(
        "shards",
        "a key is given back before the message with its new version is durable",
        borrower._Errand,
        "go_on",
        _give_back_early,
    ),
    "lend-to-all": Bug("shards", "a key is lent to two shards at once", Lender, "_is_free", _lend_to_all),
    "answer-twice": Bug(
        "shards",
        "a command that was answered is answered again when the link is lost",
        Link,
        "_answered",
        _answer_and_keep,
    ),
    "forget-in-flight": Bug(
        "shards", "a link that is lost forgets what is not answered", Link, "_end", _forget_calls
    ),
    "ready-is-enough": Bug(
        "shards", "the owner of a shard answers before the log is synced", ServedCommands, "_asked", _ask_for_less
    ),
    "parts-mixed-up": Bug(
        "shards",
        "the answers of several shards are joined in the wrong order",
        destinations,
        "_in_order",
        _as_they_come,
    ),
    "frame-cut": Bug(
        "shards", "a frame that arrives in pieces loses its beginning", Frames, "receive", _forget_beginning
    ),
    "skip-cursor": Bug(
        "shards", "a cursor passes messages that were not taken", CourierSource, "_promised", _look_too_far
    ),
    "taken-too-early": Bug(
        "shards", "a message that left is forgotten before it has come", CourierSource, "_owed", _take_for_granted
    ),
    "stay-in-round": Bug("shards", "a round waits for a log that has failed", Rounds, "ended", _stay),
    "one-sync-for-all": Bug(
        "shards", "a round is answered when one of its logs is synced", GroupCommit, "_synced", _answer_all
    ),
    "no-fence": Bug(
        "nodes", "the store takes a batch of a node that does not own the shard", nodes, "append", _append_anyway
    ),
    "no-quorum": Bug(
        "nodes", "a commit is answered before the standby has it", Store, "execute", _answer_before_standby
    ),
    "unknown-is-done": Bug(
        "nodes", "a commit whose outcome is unknown counts as durable", StoreLog, "_appended", _hope
    ),
}


@contextmanager
def seeded(name: str) -> Iterator[None]:
    """The broker with this bug."""
    bug = BUGS[name]
    before = vars(bug.of)[bug.name]
    setattr(bug.of, bug.name, bug.instead)
    try:
        yield
    finally:
        setattr(bug.of, bug.name, before)
