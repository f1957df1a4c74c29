"""Waiting in the native API until messages are taken, or done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from penstock.dialects.native.message_document import time_text
from penstock.dialects.native.parameters import Given
from penstock.dialects.wire import http
from penstock.dialects.wire.json_bodies import text_or_base64
from penstock.errors import ProtocolError, Reason
from penstock.ids import MessageIds
from penstock.limits import BATCH_MESSAGES_MAX, REQUEST_BODY_BYTES_MAX, WAIT_SECONDS_MAX
from penstock.model.outcomes import Until
from penstock.model.queries import Failed
from penstock.model.traces import WORDS
from penstock.model.values import Place
from penstock.model.waits import AwaitMessages, Fate, Waited

_Seconds = Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)]


class Wait(Struct, forbid_unknown_fields=True):
    ids: list[str]
    until: Until = "done"
    wait: _Seconds = 0


decode_wait = msgspec.json.Decoder(Wait).decode


class Waiting:
    """Requests in, questions out; what messages have come to in, responses out."""

    def __init__(self, asked: http.Asked, ids: MessageIds) -> None:
        self._asked = asked
        self._ids = ids
        self.routes: http.Routes = {(b"v1/wait", 2): {b"POST": self._wait}}

    def body_rule(self, _: bytes, __: bytes, ___: http.Headers) -> http.BodyRule:
        return http.BodyRule(REQUEST_BODY_BYTES_MAX)

    def _wait(self, request: http.Request, _: bytes) -> http.Response | http.Awaited:
        wanted = http.decoded(decode_wait, request.body)
        if len(wanted.ids) > BATCH_MESSAGES_MAX:
            raise http.too_many_messages(len(wanted.ids))
        found = {text: self._ids.find(text.encode()) for text in wanted.ids}
        places = list(dict.fromkeys([place for place in found.values() if place]))
        if not places:
            return _shown(found, Waited([]))
        # An id that does not exist is an answer already.
        seconds = 0 if None in found.values() else wanted.wait
        return self._asked(request, AwaitMessages(places, wanted.until, seconds), partial(_shown, found))

    def before(
        self, request: http.Request, place: Place, given: Given, document: Callable[[], http.Awaited]
    ) -> http.Awaited:
        """A document that is made when its message has come so far, or the time is over."""
        wanted = {"ids": [], "until": given.get("until", ["done"])[0], "wait": given.get("wait", ["0"])[0]}
        try:
            checked = msgspec.convert(wanted, Wait, strict=False)
        except msgspec.ValidationError:
            raise ProtocolError(
                f"until is taken or done, wait is a number of seconds up to {WAIT_SECONDS_MAX}"
            ) from None
        query = AwaitMessages([place], checked.until, checked.wait, reads=True)
        return self._asked(request, query, lambda _: document())


def _shown(found: Mapping[str, Place | None], waited: Waited) -> http.Response:
    entries, reached = [], dict(waited.messages)
    for text, place in found.items():
        if place is None:
            entries.append(_error(text, Reason.NO_MESSAGE.code, Reason.NO_MESSAGE.sentence))
        elif place in reached:
            entries.append(_entry(text, reached[place]))
    return http.json_response(200, {"messages": entries})


def _entry(text: str, what: Fate | Failed) -> dict[str, Any]:
    return _error(text, what.code, what.sentence) if isinstance(what, Failed) else outcome_document(text, what)


def outcome_document(text: str, what: Fate) -> dict[str, Any]:
    facts = {"state": what.letter, "event": WORDS[what.letter], "outcome": what.outcome}
    document = {"id": text, **facts, "time": time_text(what.time), "consumer": what.consumer}
    return document | (text_or_base64("result", what.result) if what.result else {})


def _error(text: str, code: str, sentence: str) -> dict[str, Any]:
    return {"id": text, "error": sentence, "code": code}
