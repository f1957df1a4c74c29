"""Backups in the native API: what there is to copy, and its bytes (`docs/backup.md`)."""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.dialects.native.parameters import Given, number, one_shard, parameters, shard_in
from penstock.dialects.wire import http
from penstock.dialects.wire.flows import Rendered
from penstock.errors import ProtocolError
from penstock.model.backups import (
    BackupState,
    BackupStates,
    ReadBackup,
    ReadBackupLog,
    ReadHistory,
    ReadSnapshot,
    StandStill,
    Still,
)
from penstock.model.streams import Flow

_NUMBER_MAX = (1 << 63) - 1
_BYTES = b"Content-Type: application/octet-stream\r\nCache-Control: no-store\r\n"
_JSON = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
_NO_STORE = b"Cache-Control: no-store\r\n"


class Backup:
    """Requests in, questions out; states and bytes in, responses out."""

    def __init__(self, asked: http.Asked, shards: int = 1) -> None:
        """`shards`: how many the store has."""
        self._asked = asked
        self._shards = shards
        self.routes: http.Routes = {
            (b"v1/backup", 2): {b"GET": self._state},
            (b"v1/backup", 3): {b"GET": self._part},
        }

    def _state(self, request: http.Request, _: bytes) -> http.Awaited:
        query = ReadBackup(shard_in(parameters(request, "shard"), self._shards))
        return self._asked(request, query, _described)

    def _part(self, request: http.Request, segment: bytes) -> http.Response | http.Awaited:
        if segment == b"log":
            given = parameters(request, "from", "to", "shard")
            start, end = _needed(given, "from"), _needed(given, "to")
            if end < start:
                raise ProtocolError(f"to ({end}) is before from ({start})")
            query = ReadBackupLog(start, end, self._shard(given))
            return self._asked(request, query, partial(_bytes, length=end - start))
        if segment == b"snapshot":
            given = parameters(request, "offset", "shard")
            snapshot = ReadSnapshot(_needed(given, "offset"), self._shard(given))
            return self._asked(request, snapshot, lambda flow: _bytes(flow, flow.head.bytes))
        if segment == b"history":
            return self._asked(request, ReadHistory(self._shard(parameters(request, "shard"))), _bytes)
        if segment == b"moment":
            return self._asked(request, StandStill(self._shard(parameters(request, "shard"))), _moment)
        return http.not_found(request)

    def _shard(self, given: Given) -> int:
        return one_shard(given, self._shards)


def _described(found: BackupState | BackupStates) -> http.Response:
    if isinstance(found, BackupState):
        return http.json_response(200, found.document, _NO_STORE)
    documents = [state.document for state in found.states]
    return http.json_response(
        200, {"shards": found.shards, "elsewhere": found.elsewhere, "backups": documents}, _NO_STORE
    )


def _bytes(flow: Flow, length: int | None = None) -> http.Stream:
    return http.Stream(200, _BYTES, flow.source, length=length)


def _moment(flow: Flow) -> http.Stream:
    return http.Stream(200, _JSON, Rendered(flow.source, _shown_moment))


def _shown_moment(piece: Still | BackupState) -> bytes:
    """A line feed before the document, where it means nothing."""
    return b"\n" if isinstance(piece, Still) else msgspec.json.encode(piece.document)


def _needed(given: Given, name: str) -> int:
    if name not in given:
        raise ProtocolError(f"{name} is missing")
    return number(given, name, 0, _NUMBER_MAX, 0)
