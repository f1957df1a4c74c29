"""Commands that are decided together.

Publishes, finishes, outcomes and fetches that come in one turn of the event loop, or while a commit is under way, are
collected. They are decided just before the next commit, or before any other command: they could not be durable
earlier, and together they cost much less. Runs of messages are collected only with other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from penstock.broker.room import NoRoomError
from penstock.broker.writer.commit import GroupCommit
from penstock.broker.writer.port import Reply
from penstock.broker.writer.waiters import Waiter
from penstock.broker.writer.waking import Waking
from penstock.limits import RUN_MESSAGES_MAX, RUNS_TOGETHER_MAX
from penstock.model.answers import Delivery, Receipts, Refused
from penstock.model.commands import (
    DECIDED_TOGETHER,
    Command,
    Fetch,
    Finish,
    FinishMany,
    Publish,
    PublishRun,
    PublishTopics,
    Settle,
    SettleMany,
)
from penstock.model.values import Stage
from penstock.storage.port import BeingFetchedError

Entry = tuple[Any, Reply, Stage, Waiter | None]  # A command that is not decided yet.
Collected = dict[type[Command], list[Entry]]  # By type. There is no empty list.


class _Rule(NamedTuple):
    """How commands of one type are decided together."""

    is_alike: Callable[[Any], object] | None  # Those with the same value are; None: all are.
    merged: Callable[[list[Any]], Command]  # One command for several.
    parts: Callable[[list[Any], Any], Any]  # The answer of each from the answer of all.


def _is_alike(fetch: Any) -> object:
    return fetch.queue, fetch.lease_ns, fetch.consumer, fetch.confirm, fetch.bytes_max


def _merged_publish(publishes: list[Any]) -> Command:
    messages = [message for publish in publishes for message in publish.messages]
    return cast("Command", replace(publishes[0], messages=messages))


def _receipts(publishes: list[Any], receipts: Any) -> Sequence[Any]:
    """For each the part that is about its messages."""
    return _shared_out(receipts, [len(publish.messages) for publish in publishes])


def _shared_out(receipts: Any, counts: list[int]) -> Sequence[Any]:
    pieces = zip(accumulate(counts, initial=0), counts, strict=False)
    if type(receipts) is Receipts:
        return [Receipts(receipts.queue, receipts.first + start, count) for start, count in pieces]
    return [receipts[start : start + count] for start, count in pieces]


def _merged_runs(runs: list[Any]) -> Command:
    return cast("Command", replace(runs[0], bodies=[body for run in runs for body in run.bodies]))


def _receipts_of_runs(runs: list[Any], receipts: Any) -> Sequence[Any]:
    return _shared_out(receipts, [len(run.bodies) for run in runs])


_PUBLISHES = _Rule(lambda command: (command.queue, command.create), _merged_publish, _receipts)

_RULES: dict[type[Command], _Rule] = {
    Finish: _Rule(None, FinishMany, lambda _, answers: answers),
    Settle: _Rule(None, SettleMany, lambda _, answers: answers),
    Publish: _PUBLISHES,
    PublishTopics: _PUBLISHES,
}
_RUNS = _Rule(lambda command: (command.queue, command.create, command.template), _merged_runs, _receipts_of_runs)
_IN_ORDER = (*_RULES.items(), (PublishRun, _RUNS))
assert (*_RULES, Fetch) == DECIDED_TOGETHER, "the order of a client's commands depends on it"
# How many of each type are collected at most.
COLLECTED: dict[type[Command], int] = dict.fromkeys(DECIDED_TOGETHER, RUN_MESSAGES_MAX)
COLLECTED[PublishRun] = RUNS_TOGETHER_MAX


class Collector:
    def __init__(self, collected: Collected, waking: Waking, commit: GroupCommit, woken: Sequence[Any]) -> None:
        self._collected = collected
        self._waking = waking
        self._commit = commit
        self._woken = woken

    def decide(self) -> None:
        """Decide what has been collected."""
        collected = self._collected
        if collected:
            for kind, rule in _IN_ORDER:
                if kind in collected:
                    self._decide_together(rule, collected.pop(kind))
            if self._woken:
                self._waking.wake()  # Those who wait were there before the fetches that have just come.
            if Fetch in collected:
                self._fetch_together(collected.pop(Fetch))
        if self._woken:
            self._waking.wake()

    def _decide_together(self, rule: _Rule, entries: list[Entry]) -> None:
        for together in _grouped(entries, rule.is_alike) if rule.is_alike and len(entries) > 1 else (entries,):
            commands = [entry[0] for entry in together]
            answer = self._waking.carry_out(commands[0] if len(commands) == 1 else rule.merged(commands))
            if len(commands) == 1:
                self._commit.hold(together[0][1], answer, together[0][2])
            elif type(answer) is Refused:
                for entry in together:  # What is refused together may still be accepted one by one.
                    self._decide_alone(entry)
            else:
                self._commit.hold_all(together, rule.parts(commands, answer))

    def _fetch_together(self, fetches: list[Entry]) -> None:
        for together in _grouped(fetches, _is_alike):
            deliveries: Sequence[Delivery] = ()
            if len(together) > 1 and not self._waking.room.is_empty:
                together = self._with_room(together)
            if len(together) > 1:
                count = sum([command.count for command, _, _, _ in together])
                deliveries = self._fetched(replace(together[0][0], count=count, wait_ns=0))
            start = 0
            served: list[Entry] = []
            parts: list[Sequence[Delivery]] = []
            for entry in together:
                stop = start + entry[0].count
                if part := deliveries[start:stop]:
                    served.append(entry)
                    parts.append(part)
                else:
                    self._decide_alone(entry)
                start = stop
            self._commit.hold_all(served, parts)

    def _with_room(self, fetches: list[Entry]) -> list[Entry]:
        """Those whose clients may hold more. The others wait."""
        found = []
        for entry in fetches:
            if entry[3] and self._waking.room_for(entry[3]) == 0:
                self._decide_alone(entry)
            else:
                found.append(entry)
        return found

    def _fetched(self, fetch: Fetch) -> Sequence[Delivery]:
        try:
            answer = self._waking.carry_out(fetch, self._waking.room.free(None))
        except (BeingFetchedError, NoRoomError):
            return ()  # Some of the messages may be here, and there may be room for some.
        return () if type(answer) is Refused else cast("Sequence[Delivery]", answer)

    def _decide_alone(self, entry: Entry) -> None:
        command, reply, stage, waiter = entry
        if not (waiter and waiter.canceled):
            self._waking.answer_or_wait(command, reply, stage, waiter)


def _grouped(entries: list[Entry], is_alike: Callable[[Any], object]) -> list[list[Entry]]:
    """Those that are alike together, in the order in which they came."""
    kinds = [is_alike(entry[0]) for entry in entries]
    if kinds.count(kinds[0]) == len(kinds):
        return [entries]
    groups: dict[object, list[Entry]] = {}
    for kind, entry in zip(kinds, entries, strict=True):
        groups.setdefault(kind, []).append(entry)
    return list(groups.values())
