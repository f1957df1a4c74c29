"""Queues with all their settings, in the native API. `docs/native/queues.md` has it in prose."""

from __future__ import annotations

from collections.abc import Callable

from penstock.dialects.native.looking import Looking, Submit
from penstock.dialects.native.queue_document import ChannelDocument, QueueDocument, changed, listed, view
from penstock.dialects.wire import http
from penstock.errors import ProtocolError, Reason
from penstock.model.answers import Answer, QueueDescription, Refused
from penstock.model.commands import CreateQueue, DeleteQueue, DescribeQueue, UpdateQueue
from penstock.model.permissions import needs_of, require
from penstock.model.settings import QueueSettings


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
        return http.Call(DescribeQueue(http.queue_name(segment)), _render_queue)

    def _delete_queue(self, _: http.Request, segment: bytes) -> http.Call:
        return http.Call(
            DeleteQueue(http.queue_name(segment)),
            lambda answer: http.refusal(answer) if isinstance(answer, Refused) else http.Response(204),
        )

    def _put_queue(self, request: http.Request, segment: bytes) -> http.Awaited:
        """Create a queue. One that exists with exactly these settings counts as created."""
        name = http.queue_name(segment)
        wanted = changed(QueueSettings(), request.body or b"{}")
        require(request.access, *needs_of(CreateQueue(name, wanted)))

        def act(found: Answer, looking: Looking) -> None:
            if not isinstance(found, QueueDescription):
                looking.change(CreateQueue(name, wanted), 201, again=Reason.QUEUE_EXISTS)
            elif found.settings == wanted:
                looking.change(DescribeQueue(name))
            else:
                why = "it is a channel" if found.settings.topics else "its settings differ"
                looking.respond(http.error_response(Reason.QUEUE_EXISTS, f"{name}; {why}"))

        return self._looking(request, name, act)

    def _patch_queue(self, request: http.Request, segment: bytes) -> http.Awaited:
        """Change settings that all queues have; no other change is undone. A channel keeps the bounds of channels."""
        name = http.queue_name(segment)
        require(request.access, *needs_of(UpdateQueue(name, changed(QueueSettings(), request.body))))

        def act(found: Answer, looking: Looking) -> None:
            if not isinstance(found, QueueDescription):
                looking.respond(_render_queue(found))
                return
            rules = ChannelDocument if found.settings.topics else QueueDocument
            try:
                settings = changed(found.settings, request.body, rules)
            except ProtocolError as error:
                looking.respond(http.bad_request(error))
                return
            looking.change(UpdateQueue(name, settings, was=found.settings))

        return self._looking(request, name, act)

    def _looking(self, request: http.Request, name: str, act: Callable[[Answer, Looking], None]) -> http.Awaited:
        return http.Awaited(Looking(self._submit, request, DescribeQueue(name), act, _render_queue).when_ready)


def _render_queue(answer: Answer, status: int = 200) -> http.Response:
    if isinstance(answer, Refused):
        return http.refusal(answer)
    assert isinstance(answer, QueueDescription)
    return http.json_response(status, view(answer))
