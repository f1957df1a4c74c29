"""What a request is about, as far as its head says it, or a body that is wrong in something else.

A request is answered in this order: may its client do that (401, 403), is there what it names (404, 409), and only
then what else is wrong with it (400, 413). The command of a well-formed request is checked in this order anyway.
`server/subjects.py` has a row for each path, for all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from penstock.decoding import decode_json
from penstock.dialects.wire.http import Request, Response, bad_request, refusal
from penstock.dialects.wire.json_bounds import NOT_JSON, check_keys
from penstock.errors import ProtocolError, Reason, RequestError
from penstock.ids import MessageIds
from penstock.limits import REQUEST_KEYS_MAX
from penstock.model.access import Need
from penstock.model.answers import Refused
from penstock.model.probe import Head
from penstock.model.settings import QueueSettings, RedrivePolicy

Subject = Head | tuple[Need, ...] | None
"""A command that says what is needed and what must be there; or only what is needed; or nothing."""


class Form(Struct, frozen=True):
    """How a dialect says that a request is refused."""

    refusal: Callable[[Refused], Response]
    bad_request: Callable[[ProtocolError], Response]


FORM = Form(refusal, bad_request)  # Of mqs and the native API.

_Names = TypeVar("_Names", bound=Struct)


def names_in(request: Request, kind: type[_Names]) -> _Names | None:
    """The fields with names of a body that cannot be carried out. None if these are wrong, too."""
    try:
        check_keys(request.body, REQUEST_KEYS_MAX)
        return decode_json(request.body, kind)
    except (ProtocolError, *NOT_JSON):
        return None


class _Policy(Struct):
    dead_letter_queue: str


class _Settings(Struct):
    redrive_policy: _Policy | None = None
    topics: list[str] = []


def settings_named(request: Request) -> QueueSettings:
    """Settings with the names in a body that is wrong in something else."""
    named = names_in(request, _Settings) or _Settings()
    policy = RedrivePolicy(1, named.redrive_policy.dead_letter_queue) if named.redrive_policy else None
    return QueueSettings(redrive_policy=policy, topics=tuple(named.topics))


def message_named(text: bytes, ids: MessageIds, command: Callable[[int, int], Head]) -> Head:
    """A command about the message with this id. Raises `RequestError` for an id that was never given out."""
    place = ids.find(text)
    if place is None:
        raise RequestError(Reason.NO_MESSAGE)
    return command(*place)
