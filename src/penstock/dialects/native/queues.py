"""Queues with all their settings, in the native API. `docs/native/queues.md` has it in prose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from penstock.dialects.native.queue_document import ChannelDocument, QueueDocument, changed, listed, view
from penstock.dialects.wire import http
from penstock.errors import ProtocolError, Reason
from penstock.model.answers import Answer, QueueDescription, Refused
from penstock.model.client import Cancelable, Client
from penstock.model.commands import Command, CreateQueue, DeleteQueue, DescribeQueue, UpdateQueue
from penstock.model.permissions import needs_of, require
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage


class Submit(Protocol):
    def __call__(
        self, client: Client, command: Command, reply: Callable[[Any], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None: ...


class Queues:
    """Requests in, commands out; answers in, responses out."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self.routes: http.Routes = {
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

    def _list_queues(self, request: http.Request, _: bytes) -> http.Work:
        return listed(request, "queues", view)

    def _get_queue(self, _: http.Request, segment: bytes) -> http.Call:
        return http.Call(DescribeQueue(http.queue_name(segment)), lambda answer: _render_queue(answer, 200))

    def _delete_queue(self, _: http.Request, segment: bytes) -> http.Call:
        return http.Call(
            DeleteQueue(http.queue_name(segment)),
            lambda answer: http.refusal(answer) if isinstance(answer, Refused) else http.Response(204),
        )

    def _put_queue(self, request: http.Request, segment: bytes) -> http.Awaited:
        """Create a queue. One that exists with exactly these settings counts as created."""
        name, submit = http.queue_name(segment), partial(self._submit, request)
        wanted = changed(QueueSettings(), request.body or b"{}")
        require(request.access, *needs_of(CreateQueue(name, wanted)))

        def look(respond: Callable[[http.Response], None]) -> None:
            def act(found: Answer) -> None:
                if isinstance(found, QueueDescription):
                    if found.settings == wanted:
                        submit(DescribeQueue(name), lambda answer: respond(_render_queue(answer, 200)))
                    else:
                        why = "it is a channel" if found.settings.topics else "its settings differ"
                        respond(http.error_response(Reason.QUEUE_EXISTS, f"{name}; {why}"))
                else:
                    submit(CreateQueue(name, wanted), lambda answer: respond(_render_queue(answer, 201)))

            submit(DescribeQueue(name), act, Stage.READY)

        return http.Awaited(look)

    def _patch_queue(self, request: http.Request, segment: bytes) -> http.Awaited:
        """Change settings that all queues have. The queue is read and changed in one turn, so that no other change is
        undone; a channel keeps the bounds of channels."""
        name, submit = http.queue_name(segment), partial(self._submit, request)
        require(request.access, *needs_of(UpdateQueue(name, changed(QueueSettings(), request.body))))

        def look(respond: Callable[[http.Response], None]) -> None:
            def act(found: Answer) -> None:
                if not isinstance(found, QueueDescription):
                    respond(_render_queue(found, 200))
                    return
                rules = ChannelDocument if found.settings.topics else QueueDocument
                try:
                    command = UpdateQueue(name, changed(found.settings, request.body, rules))
                except ProtocolError as error:
                    respond(http.bad_request(error))
                    return
                submit(command, lambda answer: respond(_render_queue(answer, 200)))

            submit(DescribeQueue(name), act, Stage.READY)

        return http.Awaited(look)


def _render_queue(answer: Answer, status: int) -> http.Response:
    if isinstance(answer, Refused):
        return http.refusal(answer)
    assert isinstance(answer, QueueDescription)
    return http.json_response(status, view(answer))
