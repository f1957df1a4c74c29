"""The Object History in the native API: the versions of an object and key (`docs/native/objects.md`)."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

from penstock.dialects.native.message_document import time_text
from penstock.dialects.native.parameters import number, parameters
from penstock.dialects.wire import http
from penstock.dialects.wire.json_bodies import text_or_base64
from penstock.errors import ProtocolError, Reason
from penstock.ids import MessageIds
from penstock.limits import KEY_BYTES_MAX, VERSIONS_SHOWN_DEFAULT, VERSIONS_SHOWN_MAX
from penstock.model.answers import Answer, ObjectDescription, Refused
from penstock.model.commands import DescribeObject
from penstock.model.values import Version


class Objects:
    def __init__(self, ids: MessageIds) -> None:
        self._ids = ids
        self.routes: http.Routes = {(b"v1/objects", 4): {b"GET": self._get, b"HEAD": self._get}}

    def _get(self, request: http.Request, segment: bytes) -> http.Call:
        limit, problem = VERSIONS_SHOWN_DEFAULT, None
        try:
            limit = number(parameters(request, "limit"), "limit", 1, VERSIONS_SHOWN_MAX, limit)
        except ProtocolError as error:
            problem = error  # Said when it is certain that the client sees the object.
        about, key = (
            http.checked_name(unquote_to_bytes(http.segments_of(request.target)[2]), "an object"),
            _key(segment),
        )

        def render(answer: Answer) -> http.Response:
            if isinstance(answer, Refused):
                return http.refusal(answer)
            assert isinstance(answer, ObjectDescription)
            access, queues = request.access, answer.queues
            seen = [
                version for version in (answer.newest, *answer.versions) if access.reads(queues.get(version.queue))
            ]
            if not seen:
                return http.error_response(Reason.NO_OBJECT)
            if problem:
                return http.bad_request(problem)
            shown = [self._shown(version, queues) for version in answer.versions if version in seen]
            newest = self._shown(seen[0], queues)
            newest["versions"] = newest.pop("version")
            return http.json_response(
                200, {"object": about, **text_or_base64("key", key), **newest, "history": shown}
            )

        return http.Call(DescribeObject(about, key, limit), render)

    def _shown(self, version: Version, queues: dict[int, str]) -> dict[str, Any]:
        return {
            "version": version.versions,
            "id": self._ids.make(version.queue, version.sequence).decode(),
            "queue": queues.get(version.queue),
            "digest": version.digest.hex(),
            "changed": time_text(version.changed),
        }


def _key(segment: bytes) -> bytes:
    key = unquote_to_bytes(segment)
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise ProtocolError(f"a key has 1 to {KEY_BYTES_MAX} bytes, got {len(key)}")
    return key
