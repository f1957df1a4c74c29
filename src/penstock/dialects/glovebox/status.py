"""The one page of HTTP that glovebox has: `GET /status/QUEUE`."""

from __future__ import annotations

from functools import partial

from penstock.dialects.glovebox.codec import Code
from penstock.dialects.glovebox.replies import CODES
from penstock.dialects.wire.http import Asked, Awaited, Request, Response, Routes, json_response, queue_name
from penstock.dialects.wire.subjects import Form
from penstock.errors import ProtocolError, Reason
from penstock.model.answers import QueueDescription, Refused
from penstock.model.connections import CountReaders, Readers
from penstock.model.queries import Failed


class Status:
    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.routes: Routes = {(b"status", 2): {b"GET": self._status, b"HEAD": self._status}}

    def _status(self, request: Request, segment: bytes) -> Response | Awaited:
        try:
            name = queue_name(segment)
        except ProtocolError:
            return _status_error(400, segment.decode("latin-1"), "BadRequest")
        return self._asked(request, CountReaders(name), _shown, partial(_not_shown, name))


def _shown(found: Readers) -> Response:
    queue = found.queue
    counts = {"length": queue.messages, "in_flight": queue.leased, "delayed": queue.delayed}
    status = {"type": "Status", "readers_waiting": found.waiting, **counts}
    return json_response(200, {**status, "shards": [{"shard": 0, **counts}], **_shard_counts(queue)})


def _not_shown(name: str, why: Refused | Failed) -> Response:
    if isinstance(why, Failed):
        return _status_error(why.error.status, why.sentence, "Unavailable")
    return _status_error(
        why.reason.status, why.sentence if why.reason is Reason.FORBIDDEN else name, CODES[why.reason]
    )


def _shard_counts(queue: QueueDescription) -> dict[str, int]:
    """A queue is one shard, which is always written to. The messages that have left it count as a finished one."""
    finished = queue.last_sequence > queue.messages
    return {"shards_read_write": 1, "shards_read_only": 0, "shards_finished": int(finished)}


def _status_error(status: int, name: str, code: Code) -> Response:
    return json_response(status, {"type": "Error", "name": name, "code": code})


STATUS_FORM = Form(
    lambda refused: _status_error(refused.reason.status, refused.sentence, CODES[refused.reason]),
    lambda error: _status_error(error.fault.status, str(error), "BadRequest"),
)
