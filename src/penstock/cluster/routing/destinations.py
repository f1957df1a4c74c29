"""Where each command goes: one row a command.

A row returns the shard, or the parts that a command is cut into and how their answers are joined. A command that only
the services of a shard send stays there.

What it guarantees: a command that is about one queue is decided whole, in one shard, in one batch. One that is cut is
decided in parts, each whole in itself; the join says of each item what became of it, and never says of a part that
was stored that it was not (`_all_or_unknown`, `_each`).

Why so: names are spread by their hash, so a queue never has to be asked for. There is no commit over several shards:
what has to happen elsewhere because of a command is a promise in the log of the shard that decides it (ADR 41).

What would break it: a row that sends a command by what may change while it is under way; a join that answers with the
first refusal and forgets that another part is stored; a command of two queues that is not cut and reaches a shard
that has only one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.broker.shard_map import ShardMap
from penstock.cluster.routing.cut_commands import ADMINISTRATION as ADMINISTRATION  # Most look for it here.
from penstock.cluster.routing.cut_commands import Destination, Parts, by_shard
from penstock.cluster.routing.pulls import pull
from penstock.engine.routing import roots
from penstock.errors import Reason
from penstock.model import commands, courier_commands, schedules, tokens
from penstock.model.answers import (
    Answer,
    ObjectDescription,
    QueueList,
    Refused,
    Repeated,
    ScheduleList,
)
from penstock.model.commands import Command
from penstock.model.consuming import Consume
from penstock.model.probe import Probe
from penstock.model.staging import roots_of

Row = Callable[[Any, ShardMap], Destination]


def destination(command: Command, shards: ShardMap) -> Destination:
    row = DESTINATIONS[type(command)]
    assert row is not None, f"{type(command).__name__} does not leave its shard"
    return row(command, shards)


# ── One shard ─────────────────────────────────────────────────────────────────────────────────────────────────


def _queue(command: Any, shards: ShardMap) -> int:
    return shards.of_name(command.queue)


def _name(command: Any, shards: ShardMap) -> int:
    return shards.of_name(command.name)


def _number(command: Any, shards: ShardMap) -> int:
    return shards.of_number(command.queue)


def _claimed(command: Any, shards: ShardMap) -> int:
    """What was claimed together is in one queue."""
    return shards.of_number(command.claimed[0][0]) if command.claimed else ADMINISTRATION


def _administration(_: Any, __: ShardMap) -> int:
    return ADMINISTRATION


# ── Parts of a list: each item goes to one shard ──────────────────────────────────────────────────────────────


def _spread(
    items: Sequence[Any],
    shard_of: Callable[[Any], int],
    command_of: Callable[[list[Any]], Command],
    *,
    belong_together: bool,
) -> Destination:
    """One command a shard, of its items alone. The answer is a list with an answer for each item."""
    indexes = by_shard(items, shard_of)
    if len(indexes) <= 1:
        return next(iter(indexes), ADMINISTRATION)
    parts = [(shard, command_of([items[index] for index in some])) for shard, some in indexes.items()]
    join = _all_or_unknown if belong_together else _each
    return Parts(parts, lambda answers: join(list(indexes.values()), answers), belong_together=belong_together)


def _all_or_unknown(indexes: list[list[int]], answers: list[Any]) -> Answer:
    """The answers in the order of the items; or if one part was refused, why."""
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    if not refused:
        return _in_order(indexes, answers)
    in_doubt = [answer for answer in refused if answer.reason is Reason.OUTCOME_UNKNOWN]
    if in_doubt or len(refused) == len(answers):
        return (in_doubt or refused)[0]
    done = sum(len(some) for some, answer in zip(indexes, answers, strict=True) if not isinstance(answer, Refused))
    why = f"{done} of {sum(map(len, indexes))} are stored; the others were refused: {refused[0].sentence}"
    return Refused(Reason.OUTCOME_UNKNOWN, why)


def _each(indexes: list[list[int]], answers: list[Any]) -> Answer:
    """The answers in the order of the items. A refusal of a part is the answer to each of its items."""
    if all(isinstance(answer, Refused) for answer in answers):
        return answers[0]  # type: ignore[no-any-return]
    each = [
        [answer] * len(some) if isinstance(answer, Refused) else answer
        for some, answer in zip(indexes, answers, strict=True)
    ]
    return _in_order(indexes, each)


def _in_order(indexes: list[list[int]], answers: list[Any]) -> Answer:
    published = [each.published if isinstance(each, Repeated) else each for each in answers]
    found = {
        index: answer
        for some, each in zip(indexes, published, strict=True)
        for index, answer in zip(some, each, strict=True)
    }
    ordered = [found[index] for index in range(len(found))]
    return Repeated(ordered) if all(isinstance(each, Repeated) for each in answers) else ordered


def _finish_many(command: commands.FinishMany, shards: ShardMap) -> Destination:
    found = command.finishes
    return _spread(found, lambda each: shards.of_number(each.queue), commands.FinishMany, belong_together=False)


def _settle_many(command: commands.SettleMany, shards: ShardMap) -> Destination:
    found = command.settles
    return _spread(found, lambda each: shards.of_number(each.queue), commands.SettleMany, belong_together=False)


def _publish_topics(command: commands.PublishTopics, shards: ShardMap) -> Destination:
    """A message is published in the shard of the first queue that it names; couriers take it to the others."""
    if command.queue:
        return shards.of_name(command.queue)
    return _spread(
        command.messages,
        lambda each: _home(each, shards),
        lambda some: replace(command, messages=some),
        belong_together=True,
    )


def _home(message: commands.NewMessage, shards: ShardMap) -> int:
    return shards.of_name(next(iter(roots(message.topics, message.object))))


def _publish_once(command: commands.PublishOnce, shards: ShardMap) -> Destination:
    """Each part is stored with the key: repeated, it is cut in the same way."""
    found = _publish_topics(command.publish, shards)
    if isinstance(found, int):
        return found
    return replace(found, commands=[(shard, replace(command, publish=part)) for shard, part in found.commands])


# ── Parts that go one after the other ─────────────────────────────────────────────────────────────────────────


def _publish_in_turn(command: commands.PublishInTurn, shards: ShardMap) -> Destination:
    """The answers end with the first refusal, and nothing is published after it."""
    runs: list[tuple[int, list[Any]]] = []
    for publish in command.publishes:
        shard = shards.of_name(publish.queue)
        if not runs or runs[-1][0] != shard:
            runs.append((shard, []))
        runs[-1][1].append(publish)
    if len(runs) <= 1:
        return runs[0][0] if runs else ADMINISTRATION
    parts = [(shard, commands.PublishInTurn(some)) for shard, some in runs]
    return Parts(parts, _chained, len(parts), lambda answers: not _is_refused(answers[-1]))


def _is_refused(answer: Any) -> bool:
    return isinstance(answer, Refused) or isinstance(answer[-1], Refused)


def _chained(answers: list[Any]) -> Answer:
    joined: list[Any] = []
    for answer in answers:
        joined += [answer] if isinstance(answer, Refused) else answer
    return joined


# ── A queue and what others know of it ────────────────────────────────────────────────────────────────────────


def _settings(command: commands.CreateQueue | commands.UpdateQueue, shards: ShardMap) -> Destination:
    """A dead-letter queue elsewhere must exist, but that is asked when nothing is wrong with the name of the queue
    itself. In the end all others know of a channel."""
    home, policy, topics = shards.of_name(command.name), command.settings.redrive_policy, command.settings.topics
    fields = getattr(command, "fields", None)
    first: list[tuple[int, Command]] = []
    if policy and (fields is None or "redrive_policy" in fields):
        there = shards.of_name(policy.dead_letter_queue)
        check = courier_commands.CheckDeadLetterQueue(policy.dead_letter_queue)
        first = [(home, Probe(command)), (there, check)] if there != home else []
    learn = courier_commands.LearnChannel(home, command.name, topics)
    is_channel = topics and (fields is None or "topics" in fields)
    others = [(shard, learn) for shard in range(shards.shards) if shard != home and is_channel]
    if not first and not others:
        return home
    at = len(first)
    return Parts([*first, (home, command), *others], lambda answers: answers[: at + 1][-1], at + 1, _all_done)


def _stage(command: commands.StageRows, shards: ShardMap) -> Destination:
    """Only the shards of the queues know whether they exist, so they are asked first."""
    targets = roots_of(command.topics)
    others = {shards.of_name(name) for name in command.queues | targets} - {ADMINISTRATION}
    if not others:
        return ADMINISTRATION

    def of(shard: int, some: frozenset[str]) -> frozenset[str]:
        return frozenset(name for name in some if shards.of_name(name) == shard)

    asked = [
        (shard, courier_commands.CheckStaged(of(shard, command.queues), of(shard, targets)))
        for shard in sorted(others)
    ]
    here = replace(command, elsewhere=command.queues - of(ADMINISTRATION, command.queues))
    return Parts([*asked, (ADMINISTRATION, here)], lambda answers: answers[-1], len(asked) + 1, _all_done)


def _all_done(answers: list[Any]) -> bool:
    return not isinstance(answers[-1], Refused)


def _set_schedule(command: schedules.SetSchedule, shards: ShardMap) -> int:
    """The shard of the queue that it publishes to. It may have been in another one before, which forgets it."""
    wanted = command.definition
    return shards.of_name(wanted.queue or roots(wanted.topics, wanted.object)[0])


# ── All shards ────────────────────────────────────────────────────────────────────────────────────────────────


def _everywhere(command: Command, shards: ShardMap, join: Callable[[list[Any]], Answer]) -> Destination:
    if shards.shards == 1:
        return ADMINISTRATION
    return Parts([(shard, command) for shard in range(shards.shards)], join)


def _list_queues(command: commands.ListQueues, shards: ShardMap) -> Destination:
    """In the order of their creation. Any shard may have all that are asked for."""
    end = None if command.limit is None else command.offset + command.limit
    wanted = replace(command, offset=0, limit=end)
    return _everywhere(
        command if shards.shards == 1 else wanted, shards, lambda lists: _listed(lists, slice(command.offset, end))
    )


def _listed(lists: list[QueueList | Refused], wanted: slice) -> Answer:
    found: list[QueueList] = []
    for each in lists:
        if isinstance(each, Refused):
            return each
        found.append(each)
    queues = sorted(
        [queue for each in found for queue in each.queues], key=lambda queue: (queue.created, queue.number)
    )
    return QueueList(sum(each.total for each in found), queues[wanted])


def _describe_object(command: commands.DescribeObject, shards: ShardMap) -> Destination:
    """Others know of a key that has not changed since an earlier release: then each had its own versions."""
    home = shards.of_object(command.object, command.key)
    others = [(shard, command) for shard in range(shards.shards) if shard != home]
    return Parts([(home, command), *others], _described, 1, _is_unknown) if others else home


def _is_unknown(answers: list[Any]) -> bool:
    return isinstance(answers[-1], Refused) and answers[-1].reason is Reason.NO_OBJECT


def _described(answers: list[ObjectDescription | Refused]) -> Answer:
    found = [answer for answer in answers if isinstance(answer, ObjectDescription)]
    return max(found, key=lambda each: each.newest.changed) if found else answers[0]


def _schedule(command: Any, shards: ShardMap) -> Destination:
    """One of the shards has it."""
    return _everywhere(command, shards, _the_one)


def _the_one(answers: list[Any]) -> Answer:
    def is_missing(answer: Any) -> bool:
        return isinstance(answer, Refused) and answer.reason is Reason.NO_SCHEDULE

    found: Answer = next((answer for answer in answers if not is_missing(answer)), answers[0])
    return found


def _list_schedules(command: schedules.ListSchedules, shards: ShardMap) -> Destination:
    """By name. Any shard may have all that are asked for."""
    end = command.offset + command.limit
    wanted = replace(command, offset=0, limit=end)
    return _everywhere(
        command if shards.shards == 1 else wanted, shards, lambda lists: _planned(lists, slice(command.offset, end))
    )


def _planned(lists: list[ScheduleList | Refused], wanted: slice) -> Answer:
    found = [each for each in lists if isinstance(each, ScheduleList)]
    if len(found) < len(lists):
        return next(each for each in lists if isinstance(each, Refused))
    schedules = sorted([schedule for each in found for schedule in each.schedules], key=lambda each: each.name)
    return ScheduleList(sum(each.total for each in found), schedules[wanted])


# ── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────


def _probe(command: Probe, shards: ShardMap) -> Destination:
    """Where the command would go first. One about a schedule goes everywhere: any shard may have it. A redrive has a
    target, too."""
    head, found = command.head, destination(command.head, shards)
    if isinstance(head, commands.Redrive) and head.to and found != (there := shards.of_name(head.to)):
        parts = [(shards.of_name(head.queue), command), (there, Probe(commands.DescribeQueue(head.to)))]
        return Parts(parts, lambda answers: answers[-1], len(parts), _all_done)
    if isinstance(found, int):
        return found
    if found.in_turn:
        return found.commands[0][0]
    return replace(found, commands=[(shard, command) for shard, _ in found.commands])


# ── The table ─────────────────────────────────────────────────────────────────────────────────────────────────

DESTINATIONS: dict[type[Command], Row | None] = {
    **dict.fromkeys(
        (
            *(commands.Publish, commands.PublishRun, commands.Fetch, commands.Receive, commands.AwaitResult, Consume),
            *(commands.Redrive, commands.Purge),
        ),
        _queue,
    ),
    **dict.fromkeys((commands.CreateQueue, commands.UpdateQueue), _settings),
    Probe: _probe,
    **dict.fromkeys((commands.DeleteQueue, commands.DescribeQueue), _name),
    schedules.SetSchedule: _set_schedule,
    **dict.fromkeys(
        (schedules.DeleteSchedule, schedules.RunSchedule, schedules.DescribeSchedule),
        _schedule,
    ),
    schedules.ListSchedules: _list_schedules,
    **dict.fromkeys(
        (
            *(commands.Finish, commands.Release, commands.Settle, commands.Extend, commands.AwaitMessage),
            *(commands.Delete, commands.Cancel, commands.Reschedule, commands.LookUp),
        ),
        _number,
    ),
    commands.FinishMany: _finish_many,
    commands.SettleMany: _settle_many,
    commands.PublishTopics: _publish_topics,
    commands.PublishOnce: _publish_once,
    commands.PublishInTurn: _publish_in_turn,
    commands.Pull: pull,
    commands.ListQueues: _list_queues,
    commands.DescribeObject: _describe_object,
    **dict.fromkeys(
        (
            *(tokens.SetToken, tokens.RotateToken, tokens.RevokeToken),
            *(tokens.DescribeToken, tokens.ListTokens),
            *(commands.CommitBatch, commands.DropStaged, commands.DescribeStaged),
        ),
        _administration,
    ),
    commands.StageRows: _stage,
    **dict.fromkeys((commands.ReadClaimed, commands.FinishClaimed), _claimed),
    # Parts of other commands.
    **dict.fromkeys(
        (courier_commands.CheckDeadLetterQueue, courier_commands.CheckStaged, courier_commands.LearnChannel),
        None,
    ),
    # Only services of a shard and routers send these.
    **dict.fromkeys(
        (
            *(commands.Search, commands.ListCandidates, commands.ListHeld, commands.ListScheduled),
            *(
                commands.AdmitRows,
                commands.TakeRows,
                commands.Carry,
                commands.ForgetNames,
                commands.Restore,
                commands.SetAside,
            ),
            *(commands.Tick, schedules.RunDue),
            *(courier_commands.ListOwed, courier_commands.NoteTaken, courier_commands.Admit),
            *(courier_commands.CollectParcels, courier_commands.Locate, courier_commands.Recall),
            *(courier_commands.ClaimKey, courier_commands.ReleaseKey, courier_commands.NameQueues),
            *(courier_commands.OpenLoans, courier_commands.KeepLoans),
            *(courier_commands.BorrowKeys, courier_commands.ReturnKeys),
            courier_commands.NoteDecided,
        ),
        None,
    ),
}
