"""Waiting in the native API until messages are taken, or done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, get_args

import msgspec
from msgspec import Meta, Struct

from penstock.dialects.native.message_document import time_text
from penstock.dialects.native.parameters import Given
from penstock.dialects.wire import http
from penstock.dialects.wire.json_bodies import text_or_base64
from penstock.errors import ErrorCode, Fault, PenstockError, ProtocolError, Reason, RequestError
from penstock.ids import MessageIds
from penstock.limits import BATCH_MESSAGES_MAX, REQUEST_BODY_BYTES_MAX, WAIT_SECONDS_MAX
from penstock.model.client import Pending
from penstock.model.commands import AwaitMessage
from penstock.model.outcomes import OF_NOBODY, Outcome, Part, Until
from penstock.model.traces import WORDS, TextOf
from penstock.model.values import Place

_Reached = Mapping[Place, Outcome | PenstockError]
_Respond = Callable[[http.Response | http.Stream], None]
_Seconds = Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)]


class Waits(Protocol):
    """The service that follows messages."""

    def begin(
        self,
        places: Sequence[Place],
        until: Until,
        seconds: float,
        reply: Callable[[_Reached], None],
        *,
        part: Part = "all",
    ) -> Pending:
        """Call `reply` once: when some of the messages have come so far, or the time is over. A message that was
        moved to another shard is `away`. Of one that may come here nothing is said until it has come so far. Raises
        `RequestError`."""


class Wait(Struct, forbid_unknown_fields=True):
    ids: list[str]
    until: Until = "done"
    wait: _Seconds = 0


COPIED = "copied"  # Only shards say it to each other.
PART = b"penstock-part"
"""A header of waits that are sent to several shards: which part each is asked about."""
_PARTS = {part.encode(): part for part in get_args(Part)}


decode_wait = msgspec.json.Decoder(Wait).decode


class Waiting:
    """Requests in, places to follow out; outcomes in, responses out."""

    def __init__(self, waits: Waits, ids: MessageIds, name: TextOf, refusal: http.Refusal) -> None:
        self._waits = waits
        self._ids = ids
        self._name = name
        self._refusal = refusal
        self.routes: http.Routes = {(b"v1/wait", 2): {b"POST": self._wait}}

    def body_rule(self, _: bytes, __: bytes, ___: http.Headers) -> http.BodyRule:
        return http.BodyRule(REQUEST_BODY_BYTES_MAX)

    def _wait(self, request: http.Request, _: bytes) -> http.Response | http.Awaited:
        wanted = http.decoded(decode_wait, request.body)
        if len(wanted.ids) > BATCH_MESSAGES_MAX:
            raise http.too_many_messages(len(wanted.ids))
        found = {text: self._ids.find(text.encode()) for text in wanted.ids}
        known = dict.fromkeys([place for place in found.values() if place])
        refused = self._refused(request, known)
        places = [place for place in known if place not in refused]
        if not places:
            return self._render(found, refused)
        # An id that does not exist, or is refused, is an answer already.
        seconds = 0 if None in found.values() or refused else wanted.wait
        return self._awaited(
            places,
            wanted.until,
            seconds,
            lambda reached, respond: respond(self._render(found, {**reached, **refused})),
            part=_PARTS.get(request.headers.get(PART, b""), "all"),
        )

    def _refused(self, request: http.Request, places: Iterable[Place]) -> dict[Place, Outcome | PenstockError]:
        refused = {place: self._refusal(request, AwaitMessage(*place)) for place in places}
        return {place: RequestError(each.reason, each.detail) for place, each in refused.items() if each}

    def before(self, place: Place, given: Given, document: Callable[[], http.Awaited]) -> http.Awaited:
        """A document that is made when its message has come so far, or the time is over."""
        wanted = {"ids": [], "until": given.get("until", ["done"])[0], "wait": given.get("wait", ["0"])[0]}
        try:
            checked = msgspec.convert(wanted, Wait, strict=False)
        except msgspec.ValidationError:
            raise ProtocolError(
                f"until is taken or done, wait is a number of seconds up to {WAIT_SECONDS_MAX}"
            ) from None
        return self._awaited([place], checked.until, checked.wait, lambda _, respond: _give(document(), respond))

    def _awaited(
        self,
        places: Sequence[Place],
        until: Until,
        seconds: float,
        then: Callable[[_Reached, _Respond], None],
        *,
        part: Part = "all",
    ) -> http.Awaited:
        def when_ready(respond: _Respond) -> Pending | None:
            def reply(reached: _Reached) -> None:
                then(reached, respond)

            try:
                return self._waits.begin(places, until, seconds, reply, part=part)
            except RequestError as error:
                respond(http.failure(error))
                return None

        return http.Awaited(when_ready)

    def _render(self, found: Mapping[str, Place | None], reached: _Reached) -> http.Response:
        entries = []
        for text, place in found.items():
            if place is None:
                entries.append(_error(text, Reason.NO_MESSAGE, Reason.NO_MESSAGE.sentence))
            elif place in reached:
                entries.append(self._entry(text, reached[place]))
        return http.json_response(200, {"messages": entries})

    def _entry(self, text: str, what: Outcome | PenstockError) -> dict[str, Any]:
        if isinstance(what, Outcome):
            return outcome_document(text, what, self._name)
        return _error(text, what.error if isinstance(what, RequestError) else Fault.UNREADABLE, str(what))


def _give(document: http.Awaited, respond: _Respond) -> None:
    document.when_ready(respond)


def outcome_document(text: str, what: Outcome, name: TextOf) -> dict[str, Any]:
    consumer = None if what.letter in OF_NOBODY else name(what.consumer)
    facts = {"state": what.letter, "event": WORDS[what.letter], "outcome": what.outcome}
    document = {"id": text, **facts, "time": time_text(what.time), "consumer": consumer}
    document |= text_or_base64("result", what.result) if what.result else {}
    return document | ({COPIED: True} if what.is_copied else {})


def _error(text: str, error: ErrorCode, sentence: str) -> dict[str, Any]:
    return {"id": text, "error": sentence, "code": error.code}
