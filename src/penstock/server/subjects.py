"""What each request is about: one row a path, or a method of it.

Whether its client may send a request, and whether there is what it names, is said before anything else that is wrong
with it (`dialects/wire/subjects.py`). For a request that becomes one command, the gate and the engine see to that. So
a row says what is needed for a request that a service answers, or that becomes several commands, and which command to
ask about before a request is refused as wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from penstock.dialects.glovebox.status import STATUS_FORM
from penstock.dialects.native.consume import CHANNEL_FORM, confirmed
from penstock.dialects.native.parameters import values_of
from penstock.dialects.native.publish import published_to
from penstock.dialects.native.schedules import planned
from penstock.dialects.native.search import redriven
from penstock.dialects.native.workers import worked_for
from penstock.dialects.nq import FORM as NQ_FORM
from penstock.dialects.nq import posted_to, pulled_from
from penstock.dialects.wire.http import Request, queue_name, segments_of
from penstock.dialects.wire.subjects import FORM, Form, Subject, message_named, settings_named
from penstock.errors import RequestError
from penstock.ids import MessageIds, is_uuid
from penstock.limits import SEQUENCE_MAX
from penstock.model.access import EVERY_NAME, SOME_NAME, Need, Verb
from penstock.model.commands import (
    AwaitResult,
    Cancel,
    CreateQueue,
    Delete,
    DeleteQueue,
    DescribeQueue,
    Fetch,
    Finish,
    LookUp,
    NewMessage,
    Publish,
    PublishTopics,
    Purge,
    Reschedule,
    UpdateQueue,
)
from penstock.model.consuming import Consume
from penstock.model.permissions import ADMINISTER, AWAIT, BY_NUMBER, READ_THE_LOG, needs_of
from penstock.model.probe import Head
from penstock.model.schedules import DescribeSchedule, RunSchedule
from penstock.model.settings import QueueSettings
from penstock.model.tokens import DescribeToken, RevokeToken, RotateToken, SetToken, Token

Needs = Callable[[Request], tuple[Need, ...]]
SubjectOf = Callable[[Request, MessageIds], Subject]

_SETTINGS, _HELLO = QueueSettings(), NewMessage(b"")
_CONSUME, _READ, _MANAGE = (Verb.CONSUME,), (Verb.READ,), (Verb.MANAGE,)


class Row(Struct, frozen=True):
    """`needs`: what the client needs before anything else is done. `subject`: what a request is about that is wrong.
    Both raise `ProtocolError` if the head does not say it, `subject` also `RequestError`."""

    needs: Needs | None = None
    subject: SubjectOf | None = None


NOTHING: Final = Row()
"""Shows what its client sees, of whatever is asked for. Nothing in it is a name that needs anything."""


# ── What a head says ──────────────────────────────────────────────────────────────────────────────────────────


def _name(request: Request, index: int) -> str:
    return queue_name(segments_of(request.target)[index])


def _about(command: Callable[[str], Head], index: int) -> Row:
    """About what this segment of the path names."""
    return Row(subject=lambda request, _: command(_name(request, index)))


def _needing(verbs: tuple[Verb, ...], index: int, command: Callable[[str], Head] | None = None) -> Row:
    """The same, where other commands follow, or none."""
    return Row(lambda request: ((verbs, _name(request, index)),), _about(command, index).subject if command else None)


def _message(command: Callable[[int, int], Head]) -> Row:
    """About the message with the id at the end of the path."""
    return Row(subject=lambda request, ids: message_named(segments_of(request.target)[-1], ids, command))


def _finished(request: Request, ids: MessageIds) -> Subject:
    """In mqs, an id that is no UUID is wrong."""
    segment = segments_of(request.target)[-1]
    return message_named(segment, ids, Finish) if is_uuid(segment) else None


def _result(request: Request, _: MessageIds) -> Subject:
    name, sequence = _name(request, 2), segments_of(request.target)[3]
    if sequence.isdigit() and len(sequence) <= len(str(SEQUENCE_MAX)):
        return AwaitResult(name, int(sequence))
    return ((AWAIT, name),)


def _manages(request: Request) -> tuple[Need, ...]:
    return ((_MANAGE, _name(request, 2)),)


def _created(request: Request, _: MessageIds) -> Subject:
    """It may be there already, with the same settings."""
    return needs_of(CreateQueue(_name(request, 2), settings_named(request)))


def _always(need: Need) -> Row:
    return Row(lambda _: (need,))


def _reads(request: Request) -> tuple[Need, ...]:
    return tuple([(_READ, queue) for queue in values_of(request, "queue") if queue])


def _one_queue(request: Request, _: MessageIds) -> Subject:
    queues = values_of(request, "queue")
    return DescribeQueue(queues[0]) if len(queues) == 1 else None


def _reads_or_all(request: Request) -> tuple[Need, ...]:
    return _reads(request) or ((_READ, EVERY_NAME),)


def _in_body(subject: Callable[[Request], Subject]) -> Row:
    return Row(subject=lambda request, _: subject(request))


def _read(row: Row) -> Mapping[bytes, Row]:
    return {b"GET": row, b"HEAD": row}


# ── The table ─────────────────────────────────────────────────────────────────────────────────────────────────

_DESCRIBED_QUEUE = _read(_about(DescribeQueue, 2))
_STAGES: Final = _always(((Verb.PUBLISH,), SOME_NAME))
_TOKEN = Token(scopes=())

SUBJECTS: Mapping[tuple[bytes, int], Row | Mapping[bytes, Row]] = {
    # mqs, NQ, glovebox
    (b"messages", 2): {
        b"GET": _about(Fetch, 1),
        b"POST": _about(lambda name: Publish(name, (_HELLO,)), 1),
        b"DELETE": Row(subject=_finished),
    },
    (b"queues", 1): NOTHING,
    (b"queues", 2): {
        **_read(_about(DescribeQueue, 1)),
        b"PUT": Row(subject=lambda request, _: CreateQueue(_name(request, 1), settings_named(request))),
        b"POST": Row(subject=lambda request, _: UpdateQueue(_name(request, 1), settings_named(request))),
        b"DELETE": _about(DeleteQueue, 1),
    },
    (b"post", 1): _in_body(posted_to),
    (b"pull", 1): _in_body(pulled_from),
    (b"v1/results", 4): Row(subject=_result),
    (b"status", 2): _about(DescribeQueue, 1),
    # Queues and channels
    (b"v1/queues", 2): NOTHING,
    (b"v1/queues", 3): {
        **_DESCRIBED_QUEUE,
        b"PUT": Row(_manages, _created),
        b"PATCH": Row(_manages, lambda request, _: UpdateQueue(_name(request, 2), settings_named(request))),
        b"DELETE": _about(DeleteQueue, 2),
    },
    (b"v1/queues", 4): {
        b"GET": _about(Fetch, 2),
        b"POST": _about(lambda name: PublishTopics((_HELLO,), _SETTINGS, name), 2),
        b"DELETE": _about(Purge, 2),
    },
    (b"v1/channels", 2): NOTHING,
    (b"v1/channels", 3): {**_DESCRIBED_QUEUE, b"PUT": Row(_manages, _created), b"DELETE": Row(_manages)},
    (b"v1/channels", 4): _needing(_CONSUME, 2, lambda name: Consume(name, channel=True)),
    # Messages
    (b"v1/publish", 2): _in_body(published_to),
    (b"v1/confirm", 2): Row(subject=confirmed),
    (b"v1/extend", 2): Row(subject=confirmed),
    (b"v1/wait", 2): NOTHING,  # Each id is answered for itself.
    (b"v1/search", 2): Row(_reads, _one_queue),
    (b"v1/schedule", 2): Row(_reads, _one_queue),
    (b"v1/messages", 3): {**_read(_message(LookUp)), b"DELETE": _message(Delete)},
    (b"v1/schedule", 3): {
        b"PATCH": _message(lambda queue, sequence: Reschedule(queue, sequence, 0)),
        b"DELETE": _message(Cancel),
    },
    (b"v1/redrive", 2): {**_read(NOTHING), b"POST": _in_body(redriven)},
    (b"v1/redrive", 3): NOTHING,
    (b"v1/purges", 2): NOTHING,
    (b"v1/purges", 3): NOTHING,
    (b"v1/objects", 4): NOTHING,  # Who may read no version of it hears that there is none.
    (b"v1/claims", 3): _about(Fetch, 2),
    (b"v1/claims", 4): _needing(_CONSUME, 2),  # What is not there is missing.
    # Logs
    (b"v1/events", 2): Row(_reads),
    (b"v1/log", 2): _always(READ_THE_LOG),
    (b"v1/log", 3): _always(READ_THE_LOG),
    (b"v1/backup", 2): _always(ADMINISTER),
    (b"v1/backup", 3): _always(ADMINISTER),
    # Administration
    (b"v1/schedules", 2): NOTHING,
    (b"v1/schedules", 3): {
        **_read(_about(DescribeSchedule, 2)),
        b"PUT": Row(subject=lambda request, _: planned(_name(request, 2), request)),
        b"PATCH": Row(_manages, lambda request, _: DescribeSchedule(_name(request, 2))),
        b"DELETE": _about(DescribeSchedule, 2),
    },
    (b"v1/schedules", 4): _about(RunSchedule, 2),
    (b"v1/tokens", 2): _always(ADMINISTER),
    (b"v1/tokens", 3): {
        **_read(_about(DescribeToken, 2)),
        b"PUT": _about(lambda name: SetToken(name, _TOKEN, is_new=True, has_admins=True), 2),
        b"PATCH": _about(DescribeToken, 2),
        b"DELETE": _about(RevokeToken, 2),
    },
    (b"v1/tokens", 4): _about(lambda name: RotateToken(name, ""), 2),
    (b"v1/workers", 2): NOTHING,
    (b"v1/workers", 3): {b"PUT": _in_body(worked_for), b"DELETE": NOTHING},
    **dict.fromkeys([(b"v1/stage", 3), (b"v1/stage", 4), (b"v1/stage", 5)], _STAGES),
    (b"v1/settings", 2): _always(ADMINISTER),
    (b"v1/cluster", 2): _always(ADMINISTER),
    (b"v1/lake", 3): Row(_reads_or_all),
    **dict.fromkeys([(b"v1/connections", 2), (b"v1/consumers", 2), (b"v1/stats", 2), (b"v1/stats", 3)], NOTHING),
    (b"v1/identity", 2): NOTHING,
    # Pages
    **dict.fromkeys([(b"health", 1), (b"metrics", 1), (b"openapi.json", 1), (b"asyncapi.json", 1)], NOTHING),
    **dict.fromkeys([(b"", 1), (b"console", 2), (b"console", 3)], NOTHING),
}

_FORMS: Mapping[tuple[bytes, int], Form] = {
    **dict.fromkeys([(b"post", 1), (b"pull", 1), (b"v1/results", 4)], NQ_FORM),
    (b"status", 2): STATUS_FORM,
    (b"v1/channels", 4): CHANNEL_FORM,
}


def subject_of(path: tuple[bytes, int], request: Request, ids: MessageIds) -> Subject:
    subject = row_of(path, request.method).subject
    return subject(request, ids) if subject else None


def row_of(path: tuple[bytes, int], method: bytes) -> Row:
    row = SUBJECTS[path]
    return row[method] if isinstance(row, Mapping) else row


def needs_in_head(path: tuple[bytes, int], request: Request, ids: MessageIds) -> tuple[Need, ...]:
    """What the client needs, as far as that is known without the body. Raises `ProtocolError`."""
    row = row_of(path, request.method)
    if row.needs:
        return row.needs(request)
    try:
        subject = row.subject(request, ids) if row.subject else None
    except RequestError:
        return ()  # There is no such message.
    if subject is None or isinstance(subject, tuple):
        return subject or ()
    return () if type(subject) in BY_NUMBER else needs_of(subject)


def form_of(path: tuple[bytes, int]) -> Form:
    return _FORMS.get(path, FORM)
