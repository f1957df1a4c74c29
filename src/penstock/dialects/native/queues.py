"""Queues with all their settings, in the native API. `docs/native.md` has it in prose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.dialects.native.queue_document import ChannelDocument, QueueDocument, changed, listed, view
from penstock.dialects.wire.conversation import Cancelable
from penstock.dialects.wire.http import (
    Awaited,
    Call,
    Request,
    Response,
    Routes,
    Work,
    bad_request,
    error_response,
    json_response,
    queue_name,
    refusal,
)
from penstock.errors import ProtocolError, Reason
from penstock.model.answers import Answer, QueueDescription, Refused
from penstock.model.commands import Command, CreateQueue, DeleteQueue, DescribeQueue, UpdateQueue
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage


class Submit(Protocol):
    def __call__(
        self, command: Command, reply: Callable[[Any], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None: ...


class Queues:
    """Requests in, commands out; answers in, responses out."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self.routes: Routes = {
            (b"v1/queues", 2): {b"GET": self._list_queues, b"HEAD": self._list_queues},
            (b"v1/queues", 3): {
                b"GET": self._get_queue,
                b"HEAD": self._get_queue,
                b"PUT": self._put_queue,
                b"PATCH": self._patch_queue,
                b"DELETE": self._delete_queue,
            },
        }

    # ── Queues ──────────────────────────────────────────────────────────────────────────────────────────────

    def _list_queues(self, request: Request, _: bytes) -> Work:
        return listed(request, "queues", view)

    def _get_queue(self, _: Request, segment: bytes) -> Call:
        return Call(DescribeQueue(queue_name(segment)), lambda answer: _render_queue(answer, 200))

    def _delete_queue(self, _: Request, segment: bytes) -> Call:
        return Call(
            DeleteQueue(queue_name(segment)),
            lambda answer: refusal(answer) if isinstance(answer, Refused) else Response(204),
        )

    def _put_queue(self, request: Request, segment: bytes) -> Awaited:
        """Create a queue. One that exists with exactly these settings counts as created."""
        name = queue_name(segment)
        wanted = changed(QueueSettings(), request.body or b"{}")

        def look(respond: Callable[[Response], None]) -> None:
            def act(found: Answer) -> None:
                if isinstance(found, QueueDescription):
                    if found.settings == wanted:
                        self._submit(DescribeQueue(name), lambda answer: respond(_render_queue(answer, 200)))
                    else:
                        why = "it is a channel" if found.settings.topics else "its settings differ"
                        respond(error_response(Reason.QUEUE_EXISTS, f"{name}; {why}"))
                else:
                    self._submit(CreateQueue(name, wanted), lambda answer: respond(_render_queue(answer, 201)))

            self._submit(DescribeQueue(name), act, Stage.READY)

        return Awaited(look)

    def _patch_queue(self, request: Request, segment: bytes) -> Awaited:
        """Change settings that all queues have. The queue is read and changed in one turn, so that no other change is
        undone; a channel keeps the bounds of channels."""
        name = queue_name(segment)
        changed(QueueSettings(), request.body)

        def look(respond: Callable[[Response], None]) -> None:
            def act(found: Answer) -> None:
                if not isinstance(found, QueueDescription):
                    respond(_render_queue(found, 200))
                    return
                rules = ChannelDocument if found.settings.topics else QueueDocument
                try:
                    command = UpdateQueue(name, changed(found.settings, request.body, rules))
                except ProtocolError as error:
                    respond(bad_request(error))
                    return
                self._submit(command, lambda answer: respond(_render_queue(answer, 200)))

            self._submit(DescribeQueue(name), act, Stage.READY)

        return Awaited(look)


def _render_queue(answer: Answer, status: int) -> Response:
    if isinstance(answer, Refused):
        return refusal(answer)
    assert isinstance(answer, QueueDescription)
    return json_response(status, view(answer))
