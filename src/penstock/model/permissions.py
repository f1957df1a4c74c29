"""What each command needs: one row a command. Every dialect sends commands, so all of them are covered here.

A row returns needs: one of some verbs on a name. All needs of a command must be met. A command that names a queue by
its number needs nothing if that queue is gone: the engine refuses it.

Names are no secrets: a client that may not use one hears so, whether or not there is anything of that name. Ids are:
one of a queue that the client does not see is to it an id that was never given out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from penstock.errors import Reason, RequestError
from penstock.model import commands, courier_commands, schedules, tokens
from penstock.model.access import EVERY_NAME, SOME_NAME, Access, Need, Verb
from penstock.model.answers import Refused
from penstock.model.commands import Command
from penstock.model.consuming import Consume
from penstock.model.probe import Probe
from penstock.model.settings import QueueSettings
from penstock.model.values import DEFAULT_QUEUE

NameOf = Callable[[int], str | None]  # The name of the queue with this number.
Row = Callable[[Any, NameOf], Iterable[Need]]

_PUBLISH, _CONSUME, _MANAGE = (Verb.PUBLISH,), (Verb.CONSUME,), (Verb.MANAGE,)
_READ = (Verb.READ,)
_LOOK = (Verb.READ, Verb.CONSUME, Verb.MANAGE)
AWAIT = (Verb.PUBLISH, Verb.READ)
UNSEEN = Refused(Reason.NO_MESSAGE, "unseen")  # As for an id that was never given out. Nobody looks for it elsewhere.
_NO_QUEUE_NUMBER = 0
_FAILED = ".failed"  # After the name of a queue: what its dead letters are in, if nothing else is said.
READ_THE_LOG: Need = (_READ, EVERY_NAME)
ADMINISTER: Need = ((Verb.ADMIN,), EVERY_NAME)


def forbidden(access: Access, command: Command, name_of: NameOf) -> Refused | None:
    """Why an identity may not send a command; None if it may."""
    row = PERMISSIONS[type(command)]
    if row is None:
        return Refused(Reason.FORBIDDEN, type(command).__name__)
    for need in row(command, name_of):
        if not access.allows(need):
            return denied(need)
    return None


def needs_of(command: Command) -> tuple[Need, ...]:
    """What a command needs on the names in it."""
    row = PERMISSIONS[type(command)]
    return tuple(dict.fromkeys(row(command, lambda _: None))) if row else ()


def told(access: Access, command: Command, refused: Refused, name_of: NameOf) -> Refused:
    """What the client hears of this refusal."""
    about: Any = command.head if isinstance(command, Probe) else command
    return UNSEEN if type(about) in BY_NUMBER and not _sees(access, name_of(about.queue)) else refused


def only_seen(access: Access, command: Command, name_of: NameOf) -> Command:
    """The same, but with a number that no queue has in place of those of queues that the client does not see: so
    messages of these are missing, as those that were never there."""
    if not isinstance(command, commands.ReadClaimed | commands.FinishClaimed):
        return command
    return replace(
        command,
        claimed=[
            (number if _sees(access, name_of(number)) else _NO_QUEUE_NUMBER, first, last)
            for number, first, last in command.claimed
        ],
    )


def _sees(access: Access, name: str | None) -> bool:
    return name is not None and access.sees(name)


def denied(need: Need) -> Refused:
    verbs, name = need
    where = "any queue" if name == SOME_NAME else name
    return Refused(Reason.FORBIDDEN, f"{' or '.join(verbs)} on {where}")


# ── Rows ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _queue(verbs: tuple[Verb, ...]) -> Row:
    return lambda command, _: ((verbs, command.queue),)


def _name(verbs: tuple[Verb, ...]) -> Row:
    return lambda command, _: ((verbs, command.name),)


def _number(verbs: tuple[Verb, ...]) -> Row:
    return lambda command, name_of: _numbers(verbs, (command.queue,), name_of)


def _numbers(verbs: tuple[Verb, ...], numbers: Iterable[int], name_of: NameOf) -> list[Need]:
    return [(verbs, name) for number in dict.fromkeys(numbers) if (name := name_of(number)) is not None]


def _nothing(_: Command, __: NameOf) -> Iterable[Need]:
    """The answer shows only what the identity may see."""
    return ()


def _somewhere(_: Command, __: NameOf) -> Iterable[Need]:
    """Batches are not those of one queue: what is in them was checked when it was staged."""
    return ((_PUBLISH, SOME_NAME),)


def _named_queue(command: Any, _: NameOf) -> Iterable[Need]:
    """What is looked for in one queue; in all queues, only those are looked at that may be read."""
    queue = command.criteria.queue if hasattr(command, "criteria") else command.queue
    return ((_READ, queue),) if queue else ()


def _topics(command: commands.PublishTopics, _: NameOf) -> Iterator[Need]:
    for message in command.messages:
        if command.queue:
            names: tuple[str, ...] = (command.queue,)
        else:
            names = message.topics or (message.object or DEFAULT_QUEUE,)
        for name in names:
            yield _PUBLISH, name
        if message.key and message.object and not _is_root(message.object, names):
            yield _PUBLISH, message.object  # It decides what counts as changed there.


def _staged(command: commands.StageRows, _: NameOf) -> Iterator[Need]:
    names = sorted(command.queues | command.topics)
    for name in (*names, *(about for about in sorted(command.objects) if not _is_root(about, names))):
        yield _PUBLISH, name


def _is_root(about: str, names: Iterable[str]) -> bool:
    return any(name.partition(".")[0] == about for name in names)


def _creation(command: commands.CreateQueue, name_of: NameOf) -> Iterator[Need]:
    """Who may create a queue may create one for its dead letters too."""
    owner = command.name.removesuffix(_FAILED) or command.name
    yield from _settings(replace(command, name=owner), name_of)


def _settings(command: commands.CreateQueue | commands.UpdateQueue, _: NameOf) -> Iterator[Need]:
    yield _MANAGE, command.name
    settings: QueueSettings = command.settings
    if settings.redrive_policy and settings.redrive_policy.dead_letter_queue != command.name + _FAILED:
        yield _PUBLISH, settings.redrive_policy.dead_letter_queue
    for pattern in settings.topics:
        yield _READ, pattern


def _schedule(command: schedules.SetSchedule, _: NameOf) -> Iterator[Need]:
    yield _MANAGE, command.name
    wanted = command.definition
    for name in (wanted.queue,) if wanted.queue else wanted.topics:
        yield _PUBLISH, name
    if wanted.key and wanted.object and not _is_root(wanted.object, (wanted.queue, *wanted.topics)):
        yield _PUBLISH, wanted.object


def _head(command: Probe, name_of: NameOf) -> Iterable[Need]:
    row = PERMISSIONS[type(command.head)]
    return row(command.head, name_of) if row else ()


def _look_up(command: commands.LookUp, name_of: NameOf) -> Iterable[Need]:
    """The log still has messages of queues that are gone."""
    return ((_READ, name_of(command.queue) or EVERY_NAME),)


BY_NUMBER: frozenset[type[Command]] = frozenset(
    (
        *(commands.Finish, commands.Release, commands.Settle, commands.Extend, commands.Delete, commands.Cancel),
        *(commands.Reschedule, commands.LookUp, commands.AwaitMessage),
    )
)
"""About one message, which its id names."""

PERMISSIONS: dict[type[Command], Row | None] = {
    commands.Publish: _queue(_PUBLISH),
    commands.PublishRun: _queue(_PUBLISH),
    commands.PublishInTurn: lambda command, _: [(_PUBLISH, each.queue) for each in command.publishes],
    commands.PublishTopics: _topics,
    commands.PublishOnce: lambda command, name_of: _topics(command.publish, name_of),
    commands.Fetch: _queue(_CONSUME),
    commands.Receive: _queue(_CONSUME),
    Consume: _queue(_CONSUME),
    commands.Pull: lambda command, _: [
        (_CONSUME, name)
        for name in (*(draw.queue for draw in command.draws), *(name for name, *_ in command.results))
    ],
    commands.Finish: _number(_CONSUME),
    commands.FinishMany: lambda command, name_of: _numbers(
        _CONSUME, (each.queue for each in command.finishes), name_of
    ),
    commands.Release: _number(_CONSUME),
    commands.Settle: _number(_CONSUME),
    commands.SettleMany: lambda command, name_of: _numbers(
        _CONSUME, (each.queue for each in command.settles), name_of
    ),
    commands.Extend: _number(_CONSUME),
    commands.ReadClaimed: lambda command, name_of: _numbers(_CONSUME, (each[0] for each in command.claimed), name_of),
    commands.FinishClaimed: lambda command, name_of: _numbers(
        _CONSUME, (each[0] for each in command.claimed), name_of
    ),
    commands.AwaitResult: _queue(AWAIT),
    commands.AwaitMessage: lambda command, name_of: ((AWAIT, name_of(command.queue) or EVERY_NAME),),
    commands.Search: _named_queue,
    commands.ListCandidates: _named_queue,
    commands.ListScheduled: _named_queue,
    commands.LookUp: _look_up,
    commands.DescribeObject: _nothing,
    commands.DescribeQueue: _name(_LOOK),
    commands.ListQueues: _nothing,
    commands.CreateQueue: _creation,
    commands.UpdateQueue: _settings,
    commands.DeleteQueue: _name(_MANAGE),
    commands.Purge: _queue(_MANAGE),
    commands.Redrive: lambda command, _: [(_MANAGE, name) for name in (command.queue, command.to) if name],
    commands.Delete: _number(_MANAGE),
    commands.Cancel: _number(_MANAGE),
    commands.Reschedule: _number(_MANAGE),
    schedules.SetSchedule: _schedule,
    schedules.DeleteSchedule: _name(_MANAGE),
    schedules.RunSchedule: _name(_MANAGE),
    schedules.DescribeSchedule: _name(_LOOK),
    schedules.ListSchedules: _nothing,
    commands.StageRows: _staged,
    commands.CommitBatch: _somewhere,
    commands.DropStaged: _somewhere,
    commands.DescribeStaged: _somewhere,
    tokens.DescribeToken: lambda _, __: (ADMINISTER,),
    tokens.ListTokens: lambda _, __: (ADMINISTER,),
    **dict.fromkeys((tokens.SetToken, tokens.RotateToken, tokens.RevokeToken), lambda _, __: (ADMINISTER,)),
    Probe: _head,
    # Only services of the broker send these.
    commands.AdmitRows: None,
    commands.TakeRows: None,
    commands.Carry: None,
    commands.ForgetNames: None,
    commands.ListHeld: None,
    commands.Restore: None,
    schedules.RunDue: None,
    commands.SetAside: None,
    commands.Tick: None,
    **dict.fromkeys(
        (courier_commands.ListOwed, courier_commands.NoteTaken, courier_commands.Admit, courier_commands.Locate), None
    ),
    **dict.fromkeys((courier_commands.CollectParcels, courier_commands.Recall), None),
    **dict.fromkeys((courier_commands.ClaimKey, courier_commands.ReleaseKey, courier_commands.NameQueues), None),
    **dict.fromkeys((courier_commands.OpenLoans, courier_commands.KeepLoans), None),
    **dict.fromkeys((courier_commands.BorrowKeys, courier_commands.ReturnKeys), None),
    courier_commands.NoteDecided: None,
    courier_commands.CheckDeadLetterQueue: _nothing,
    courier_commands.CheckStaged: _nothing,
    courier_commands.LearnChannel: _nothing,
}


class NotAllowedError(RequestError):
    """The identity of the client lacks something that no command says it needs."""

    def __init__(self, need: Need) -> None:
        refused = denied(need)
        super().__init__(refused.reason, refused.detail)
        self.need = need


def require(access: Access, *needs: Need) -> None:
    """Raises `NotAllowedError` if one of these is not allowed."""
    for need in needs:
        if not access.allows(need):
            raise NotAllowedError(need)
