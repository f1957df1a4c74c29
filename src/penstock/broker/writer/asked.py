"""Commands that came from other processes, and may be asked again.

Where a process loses its connection to this one, it cannot know what became of the commands that were under way. It
asks again: this process, or the next one that has the shard. So before a batch of the log is committed, what became
of such commands is logged in it: once for each process that asks, in runs, and until that process has the answers. If
it is not in the log, it was not done, and is done now.

What would break it: a command of an old connection that is decided after its process has asked again. So everything
that was collected is decided before a command is looked for. And an answer that was changed on its way to the client
must be logged as the client gets it: whoever stands between the writer and the other process uses `through`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.broker.writer.bodies import fill, has_bodies
from penstock.decoding import decode_msgpack
from penstock.engine.outcomes import Asker
from penstock.errors import DamagedExtentError, Reason, StoreError
from penstock.model.answer_bytes import AnyAnswer, pack, unpack
from penstock.model.answers import (
    Answer,
    Claimed,
    Delivery,
    Drawn,
    Published,
    Pulled,
    Receipt,
    Received,
    Refused,
    StoredResult,
)
from penstock.model.courier_commands import NoteDecided
from penstock.model.values import Stage
from penstock.storage.port import BeingFetchedError

if TYPE_CHECKING:
    from penstock.broker.writer.commit import GroupCommit
    from penstock.broker.writer.executor import Executor
    from penstock.broker.writer.fetches import Fetches
    from penstock.broker.writer.port import Reply

# Commands with consecutive numbers: the first number, how many, and the answer to the first, which also tells the
# others. Of a list, so many items each that follow from the first of them.
_Items = list[tuple[int, AnyAnswer]]
_Run = tuple[int, int, AnyAnswer | None, _Items | None]
_encode = msgspec.msgpack.Encoder().encode


class Via(Protocol):
    """A link over which commands come."""

    is_over: bool  # What was asked over it and is not decided, is not wanted any more.
    sent: int  # Answers,
    arrived: int  # and those of them that are known to have arrived: the first ones.

    def answer(self, number: int, answer: Any) -> None: ...


class Asked(Struct, eq=False):
    """The reply to a command that came from another process. There is one for each, so it does little."""

    origin: Origin
    number: int
    via: Via
    is_noted: bool = False  # What became of it is in the log, or in the batch that collects.
    at: int = 0  # Which of the answers that were sent over the link is its own. 0: it is not sent.

    def __call__(self, answer: Any) -> None:
        self.via.answer(self.number, answer)
        self.at = self.via.sent


class Through:
    """The same, where somebody stands between the writer and the other process."""

    __slots__ = ("_change", "_reply", "inner")

    def __init__(self, inner: Asked | Through, reply: Reply, change: Callable[[Any], Any] | None) -> None:
        self.inner = inner
        self._reply = reply
        self._change = change

    def __call__(self, answer: Any) -> None:
        self._reply(answer)

    def resolved(self, answer: Any) -> tuple[Asked, Any]:
        """The reply that it is, and the answer that will arrive there."""
        changed = self._change(answer) if self._change else answer
        return self.inner.resolved(changed) if isinstance(self.inner, Through) else (self.inner, changed)


def through(inner: Reply, reply: Reply, change: Callable[[Any], Any] | None = None) -> Reply:
    """`reply`, which hands the answer to `inner`; `change`: what it makes of it before."""
    return Through(inner, reply, change) if isinstance(inner, Asked | Through) else reply


def is_over(reply: Reply) -> bool:
    """Whether the link is lost over which a command came. Where it was not decided, it is asked again."""
    asked = _asked_by(reply)
    return asked is not None and asked.via.is_over


class Record:
    """One or more records of a process that asks, as they are in the log."""

    __slots__ = ("asked", "count", "is_over")

    def __init__(self, count: int, asked: list[Asked], *, is_over: bool = True) -> None:
        self.count = count
        self.asked = asked  # It is kept until these answers have arrived.
        self.is_over = is_over  # Nobody waits for more than is known here.

    def may_go(self) -> bool:
        asked = self.asked
        while asked and 0 < asked[-1].at <= asked[-1].via.arrived:
            asked.pop()
        return self.is_over and not asked


class Origin:
    """A process that asks, from its start to its end."""

    def __init__(self, name: bytes, known: Asker) -> None:
        self.name = name
        self.first, self.end = known.forgotten, known.end  # The numbers of the records that are not to be forgotten.
        # Those that an earlier process has left count as arrived when everything was asked again.
        self.records = deque([Record(len(known.records), [], is_over=False)] if known.records else [])
        self.found: list[Asked] = []  # Asked again, and known.
        self.outcomes: dict[int, Any] | None = None  # By number, while commands are asked again.

    def ended_asking(self, via: object) -> None:
        """Whatever it was not answered before over another link, it has asked again over this one."""
        for record in self.records:
            record.is_over = True
            record.asked = [asked for asked in record.asked if asked.via is via]
        if self.found and self.records:
            self.records[0].asked += self.found
        self.found, self.outcomes = [], None

    def agree(self, known: Asker) -> int:
        """A log that failed may have lost its last records. Returns how many of the oldest are to be forgotten,
        because their answers have arrived."""
        while self.records and self.records[0].may_go():
            self.first += self.records.popleft().count
        while self.records and self.end > known.end:
            last = self.records[-1]
            lost = min(last.count, self.end - known.end)
            last.count -= lost
            self.end -= lost
            if not last.count:
                self.records.pop()
        self.end = known.end
        self.first = min(max(self.first, known.forgotten), self.end)
        return self.first - known.forgotten

    def add(self, asked: list[Asked]) -> None:
        """One more record, with what became of these."""
        self.records.append(Record(1, asked))
        self.end += 1


class OutcomeRecords:
    """What becomes of commands of other processes in one shard."""

    def __init__(self, executor: Executor, commit: GroupCommit, fetches: Fetches, settle: Callable[[], None]) -> None:
        """`settle`: decides what was collected."""
        self._executor = executor
        self._commit = commit
        self._fetches = fetches
        self._settle = settle
        self._origins: dict[bytes, Origin] = {}

    def origin(self, name: bytes) -> Origin:
        """A process that asks from now on, and may ask again."""
        found = self._origins.get(name)
        if found is None:
            self._commit.note_outcomes = self.note
            found = self._origins[name] = Origin(name, self._known(name))
        return found

    def note(self) -> None:
        """Log what has become of commands in the batch that collects."""
        decided: defaultdict[bytes, list[tuple[Asked, Any]]] = defaultdict(list)
        entry: Any  # A reply, and its answer.
        for held in self._commit.decided():
            for entry in held:
                reply = entry[0]
                if type(reply) is Through:
                    entry = reply.resolved(entry[1])
                    reply = entry[0]
                elif type(reply) is not Asked:
                    continue
                answer = entry[1]
                is_done = type(answer) is not Refused and (answer or type(answer) is Pulled)
                if is_done and not reply.is_noted:  # A pull that brings nothing may have stored results.
                    reply.is_noted = True
                    decided[reply.origin.name].append(entry)
        for name, answered in decided.items():
            origin = self.origin(name)
            forgotten = origin.agree(self._known(name))
            self._executor.decide(NoteDecided(forgotten, name, _encode(_runs(answered))))
            origin.add([asked for asked, _ in answered])
        if decided:
            self._forget()

    def _forget(self) -> None:
        """Processes of which the log knows nothing any more."""
        known = self._executor.engine.outcomes.by_origin
        if len(self._origins) > len(known):
            self._origins = {name: origin for name, origin in self._origins.items() if name in known}

    def answer_again(self, origin: Origin, number: int, reply: Reply, stage: Stage) -> bool:
        """Answer a command that was asked before. False if it was not carried out."""
        answer = None if self._commit.failure else self._find(origin, number)
        if answer is None:
            return False
        if asked := _asked_by(reply):
            origin.found.append(asked)
        self._give_again(answer, unless_refused(reply), stage)
        return True

    def _find(self, origin: Origin, number: int) -> Answer | None:
        """The answer, without bodies."""
        if origin.outcomes is None:
            self._settle()
            self.note()
            records = self._known(origin.name).records
            origin.outcomes = {key: answer for each in records for key, answer in _answers(each)}
        return origin.outcomes.get(number)

    def _give_again(self, answer: Answer, reply: Reply, stage: Stage) -> None:
        try:
            if has_bodies(answer):
                fill(answer, self._commit.log.read)
        except BeingFetchedError as error:
            self._fetches.add(error.fetch, reply, lambda: self._give_again(answer, reply, stage))
        except (DamagedExtentError, StoreError, OSError) as error:
            reply(Refused(Reason.OUTCOME_UNKNOWN, f"what it has delivered cannot be read: {error}"))
        else:
            self._commit.hold(reply, answer, stage)

    def _known(self, name: bytes) -> Asker:
        return self._executor.engine.outcomes.by_origin.get(name) or Asker()


def _asked_by(reply: Reply) -> Asked | None:
    while isinstance(reply, Through):
        reply = reply.inner
    return reply if isinstance(reply, Asked) else None


def unless_refused(reply: Reply) -> Reply:
    """For what was done: it is not refused, whatever keeps its answer from being given."""

    def give(answer: Answer) -> None:
        is_refused = isinstance(answer, Refused) and answer.reason is Reason.UNAVAILABLE
        reply(Refused(Reason.OUTCOME_UNKNOWN, answer.detail) if is_refused else answer)  # type: ignore[union-attr]

    return give


# ── Runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _runs(answered: Sequence[tuple[Asked, Any]]) -> list[_Run]:
    """Publishes one after the other, and confirmations, take some bytes together."""
    runs: list[_Run] = []
    number, count, first = 0, 0, None  # The run so far.
    for asked, answer in answered:
        if count and asked.number == number + count and _follows(first, answer, count):
            count += 1
            continue
        if count:
            runs.append(_run(number, count, first))
        number, count, first = asked.number, 1, answer
    if count:
        runs.append(_run(number, count, first))
    return runs


def _run(number: int, count: int, answer: Any) -> _Run:
    if isinstance(answer, list | tuple):
        return number, count, None, _items(answer)
    return number, count, pack(_bare(answer)), None


def _follows(first: Any, answer: Any, distance: int) -> bool:
    """Whether an answer tells of the message that comes so long after that of the first one."""
    kind = type(first)
    if kind is not type(answer):
        return False
    if kind is list or kind is tuple:
        return len(first) == 1 == len(answer) and _comes_after(first[0], answer[0], distance)
    return kind not in _WITH_BODIES and bool(answer == first)


def _comes_after(first: Any, item: Any, distance: int) -> bool:
    kind = type(first)
    if kind is not type(item):
        return False
    if kind is Receipt:
        return bool(
            item.sequence == first.sequence + distance and item.queue == first.queue and item.fresh == first.fresh
        )
    if kind is Published:
        return bool(item == replace(first, sequence=first.sequence + distance))
    return kind not in _WITH_BODIES and bool(item == first)


def _items(items: Sequence[Any]) -> _Items:
    runs: _Items = []
    first: Any = None
    count = 0
    for item in items:
        if count and _comes_after(first, item, count):
            count += 1
            continue
        if count:
            runs.append((count, pack(_bare(first))))
        first, count = item, 1
    return [*runs, (count, pack(_bare(first)))]


def _bare(answer: Any) -> Any:
    """Without what is elsewhere in the log."""
    kind = type(answer)
    if kind is Delivery:
        return replace(answer, body=b"", key=b"", headers=b"")
    if kind is Pulled:
        drawn = [replace(each, bodies=[], headers=[]) for each in answer.drawn]
        return replace(answer, drawn=drawn)
    if kind is Received or kind is Claimed:
        return replace(answer, deliveries=[_bare(each) for each in answer.deliveries])
    if kind is StoredResult:
        return replace(answer, result=b"")
    return answer


_WITH_BODIES = frozenset((Delivery, Drawn, Pulled, Received, Claimed, StoredResult))


def _answers(record: bytes) -> Iterable[tuple[int, Any]]:
    for number, count, answer, items in decode_msgpack(record, list[_Run]):
        for distance in range(count):
            yield number + distance, unpack(answer) if items is None else _spread(items, distance)


def _spread(items: _Items, distance: int) -> list[Any]:
    return [_later(unpack(item), distance + step) for count, item in items for step in range(count)]


def _later(item: Any, distance: int) -> Any:
    moves = distance and type(item) in (Receipt, Published)
    return replace(item, sequence=item.sequence + distance) if moves else item
