"""Batches of a stream processor over HTTP: staged as Arrow, committed once. `docs/pipeline.md` has it in prose."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Meta, Struct

from penstock import limits
from penstock.dialects.native.parameters import number, parameters
from penstock.dialects.native.spark.arrow import staged_rows
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.model.answers import Answer, Refused, StagedDescription
from penstock.model.commands import (
    DescribeStaged,
    DropStaged,
    StageRows,
)
from penstock.model.staging import CommitStaged
from penstock.model.values import Nanos

BATCH_MAX = (1 << 63) - 1
_COMMIT = b"commit"
_RULE = http.BodyRule(limits.STAGED_CHUNK_BYTES_MAX)


class _Part(Struct, forbid_unknown_fields=True):
    part: str
    chunks: Annotated[int, Meta(ge=0, le=limits.STAGED_CHUNKS_MAX)]


class _Commit(Struct, forbid_unknown_fields=True):
    parts: Annotated[list[_Part], Meta(max_length=limits.STAGED_PARTS_MAX)]


_decode_commit = msgspec.json.Decoder(_Commit).decode


class Staging:
    """Requests in, commands and questions out; answers in, responses out."""

    def __init__(self, asked: http.Asked, *, bytes_max: int, lifetime_ns: Nanos) -> None:
        self._asked = asked
        self._bytes_max = bytes_max
        self._lifetime_ns = lifetime_ns
        self.routes: http.Routes = {
            (b"v1/stage", 3): {b"GET": self._describe, b"HEAD": self._describe},
            (b"v1/stage", 4): {b"DELETE": self._drop},
            (b"v1/stage", 5): {b"POST": self._post},
        }

    def body_rule(self, _: bytes, __: bytes, ___: http.Headers) -> http.BodyRule:
        return _RULE

    def _post(self, request: http.Request, segment: bytes) -> http.Call | http.Awaited:
        query, batch = _query_and_batch(request)
        return self._commit(request, query, batch) if segment == _COMMIT else self._stage(request, query, batch)

    def _stage(self, request: http.Request, query: str, batch: int) -> http.Call:
        part = http.checked_name(unquote_to_bytes(http.segments_of(request.target)[4]), "the name of a part")
        chunk = number(parameters(request, "chunk"), "chunk", 0, limits.STAGED_CHUNKS_MAX, 0)
        rows = staged_rows(request.body, trusted=False)
        rows.check()
        command = StageRows(
            *(query, batch, part, chunk, rows.count, request.body),
            *(rows.queues, self._lifetime_ns, self._bytes_max, rows.topics, rows.objects),
        )
        return http.Call(command, lambda answer: _render(answer, 201, {"rows": rows.count}))

    def _commit(self, request: http.Request, query: str, batch: int) -> http.Awaited:
        parts = [(each.part, each.chunks) for each in http.decoded(_decode_commit, request.body).parts]
        if len(dict(parts)) < len(parts):
            raise ProtocolError("a part is named twice")
        document = {"query": query, "batch": batch}
        return self._asked(request, CommitStaged(query, batch, parts), lambda answer: _render(answer, 200, document))

    def _drop(self, request: http.Request, _: bytes) -> http.Call:
        return http.Call(
            DropStaged(*_query_and_batch(request)),
            lambda answer: http.refusal(answer) if isinstance(answer, Refused) else http.Response(204),
        )

    def _describe(self, _: http.Request, segment: bytes) -> http.Call:
        query = http.checked_name(unquote_to_bytes(segment), "the name of a query")
        return http.Call(DescribeStaged(query), lambda answer: _render_described(answer, query))


def _query_and_batch(request: http.Request) -> tuple[str, int]:
    segments = http.segments_of(request.target)
    return http.checked_name(unquote_to_bytes(segments[2]), "the name of a query"), http.whole_number(
        segments[3], "the batch", 0, BATCH_MAX
    )


def _render(answer: Answer, status: int, document: object) -> http.Response:
    return http.refusal(answer) if isinstance(answer, Refused) else http.json_response(status, document)


def _render_described(answer: Answer, query: str) -> http.Response:
    if isinstance(answer, Refused):
        return http.refusal(answer)
    assert isinstance(answer, StagedDescription)
    rows = {"admitting": answer.admitting, "staged": answer.staged}
    return http.json_response(200, {"query": query, "committed": answer.committed, **rows})
