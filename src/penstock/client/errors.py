"""What can go wrong for a client, by the broker's stable codes (`docs/errors.md`).

Every error names the broker, what was asked of it, and what to do. `code` and `status` are the broker's; both are
empty if it did not answer.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec
from msgspec import Struct, structs

from penstock.errors import PenstockError


class ClientError(PenstockError):
    """The base of all errors of a client."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = ""
        self.status = 0
        self.facts: dict[str, Any] = {}  # What the broker answered beside the code and the sentence.
        self.retry_after: float | None = None  # Seconds, if the broker named some.


class BadRequest(ClientError):
    """A value is not allowed. The sentence names it."""


class Unauthorized(ClientError):
    """The token is missing or wrong."""


class Forbidden(ClientError):
    """The broker does not serve this host name."""


class NotFound(ClientError):
    """What was named does not exist."""


class QueueNotFound(NotFound):
    """No queue has this name."""


class ChannelNotFound(NotFound):
    """No channel has this name."""


class MessageNotFound(NotFound):
    """No message has this id, or the Event Log no longer has its events."""


class ScheduleNotFound(NotFound):
    """No schedule has this name."""


class Conflict(ClientError):
    """The state of the queue or message does not allow this."""


class QueueExists(Conflict):
    """A queue with this name is there with other settings."""


class LeaseGone(Conflict):
    """The lease of this delivery has ended: another consumer may have the message."""


class EventsRemoved(ClientError):
    """The events asked for are past the retention of the Event Log. `facts["earliest"]` is the first one left."""


class OfAnotherType(ClientError, msgspec.ValidationError):
    """What was delivered cannot be decoded as it was asked for. The sentence says where it differs."""


class TooLarge(ClientError):
    """The message or the request is too large."""


class BrokerFailed(ClientError):
    """The broker had an error of its own, or answered with something that is not its API."""


class Unavailable(ClientError):
    """The broker cannot be reached, or cannot store anything now."""


class LimitReached(Unavailable):
    """A limit of the broker is reached; `retry_after` says when to try again, if that may help."""


class Timeout(ClientError, TimeoutError):
    """No answer came in time. `outcome_unknown`: the request may have been carried out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.outcome_unknown = False


class OutcomeUnknown(Timeout):
    """The request may have been carried out. No answer came, or the broker cannot find out: the process that had the
    request is gone."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.outcome_unknown = True


class MessageFailed(ClientError):
    """A message, or a job, ended without success, so there is no result. `facts` has its outcome."""

    @classmethod
    def with_outcome(cls, text: str, outcome: Struct) -> Self:
        error = cls(text)
        error.facts = structs.asdict(outcome)
        return error


_BY_CODE: dict[str, type[ClientError]] = {
    "no_queue": QueueNotFound,
    "no_channel": ChannelNotFound,
    "no_schedule": ScheduleNotFound,
    "no_message": MessageNotFound,
    "message_removed": MessageNotFound,
    "queue_exists": QueueExists,
    "lease_gone": LeaseGone,
    "events_removed": EventsRemoved,
    "unavailable": Unavailable,
    "outcome_unknown": OutcomeUnknown,
}
_BY_STATUS: dict[int, type[ClientError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    413: TooLarge,
    422: Conflict,
    503: LimitReached,
}
_REMEDIES = {
    "no_queue": "Create it with `queues.create`, or check the name",
    "no_channel": "Create it with `channels.create`, or check the name",
    "unauthorized": "Give the token as `token=` or in PENSTOCK_TOKEN",
    "queue_exists": "Change it with `queues.change`, or create it with the same settings",
    "lease_gone": "Finish sooner, extend the lease with `extend`, or raise the queue's `lease`",
    "internal_error": "Look at the log of the broker",
    "outcome_unknown": "Look whether it was done, or give an idempotency key, so that it can be sent again",
}


def refused(status: int, document: dict[str, Any], request: str, retry_after: float | None) -> ClientError:
    """The error for a refusal that the broker answered to a request."""
    code, sentence = str(document.pop("code", "")), str(document.pop("error", "no reason was given"))
    by_status = BadRequest if 400 <= status < 500 else BrokerFailed
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, by_status)
    remedy = f". {_REMEDIES[code]}" if code in _REMEDIES else ""
    error = kind(f"{sentence} ({request} was answered with {status} {code}){remedy}".replace(" )", ")"))
    error.code, error.status, error.facts, error.retry_after = code, status, document, retry_after
    return error
