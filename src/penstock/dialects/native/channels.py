"""Channels in the native API: queues of one subscriber each, which get what is published to their topics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from penstock.dialects.native.looking import Looking, Respond, Submit
from penstock.dialects.native.queue_document import ChannelDocument, changed, listed, view
from penstock.dialects.wire import http
from penstock.errors import Fault, ProtocolError, Reason
from penstock.limits import CHANNEL_RETRIES_MAX
from penstock.model.answers import Answer, QueueDescription, Refused
from penstock.model.commands import CreateQueue, DeleteQueue, DescribeQueue, UpdateQueue
from penstock.model.permissions import needs_of, require
from penstock.model.pushes import CheckPush, PushChecked, PushStates, ReadPushes, State
from penstock.model.queries import Query
from penstock.model.settings import QueueSettings

_NEW = QueueSettings(retries=CHANNEL_RETRIES_MAX)


class Channels:
    """Requests in, commands and questions out; answers in, responses out."""

    def __init__(self, submit: Submit, asked: http.Asked) -> None:
        self._submit = submit
        self._asked = asked
        self.routes: http.Routes = {
            (b"v1/channels", 2): {b"GET": self._list, b"HEAD": self._list},
            (b"v1/channels", 3): {
                b"GET": self._get,
                b"HEAD": self._get,
                b"PUT": self._put,
                b"DELETE": self._delete,
            },
        }

    def _list(self, request: http.Request, _: bytes) -> http.Work:
        states: dict[str, State] = {}
        return listed(request, "channels", partial(_shown, states), partial(_pushes, states))

    def _get(self, request: http.Request, segment: bytes) -> http.Awaited:
        describe = DescribeQueue(http.queue_name(segment))

        def shown(respond: Respond) -> None:
            self._submit(request, describe, lambda answer: http.give(self._render(request, answer), respond))

        return http.Awaited(shown)

    def _put(self, request: http.Request, segment: bytes) -> http.Awaited:
        """Create a channel, or give an existing one exactly these settings."""
        name = http.queue_name(segment)
        wanted = changed(_NEW, request.body, ChannelDocument)
        if not wanted.topics:
            raise ProtocolError("topics is missing; a channel needs at least one")
        require(request.access, *needs_of(CreateQueue(name, wanted)))

        def make(found: QueueDescription | None, looking: Looking) -> None:
            if found is None:
                looking.change(CreateQueue(name, wanted), 201, again=Reason.QUEUE_EXISTS)
            elif not found.settings.topics:
                looking.respond(http.error_response(Reason.QUEUE_EXISTS, f"{name}; it is not a channel"))
            else:
                looking.change(UpdateQueue(name, wanted, was=found.settings), again=Reason.NO_QUEUE)

        made = self._looked_at(request, name, make, partial(self._render, request))
        return (
            self._asked(request, CheckPush(name, wanted.push), partial(_unless_refused, made))
            if wanted.push
            else made
        )

    def _delete(self, request: http.Request, segment: bytes) -> http.Awaited:
        name = http.queue_name(segment)

        def remove(found: QueueDescription | None, looking: Looking) -> None:
            if found is None or not found.settings.topics:
                looking.respond(_no_channel(name))
            else:
                looking.change(DeleteQueue(name, was=found.settings), 204)

        return self._looked_at(request, name, remove, _removed)

    def _looked_at(
        self,
        request: http.Request,
        name: str,
        act: Callable[[QueueDescription | None, Looking], None],
        render: Callable[[Answer, int], http.Rendered],
    ) -> http.Awaited:
        def look(found: Answer, looking: Looking) -> None:
            if isinstance(found, Refused) and found.reason is not Reason.NO_QUEUE:
                looking.respond(http.refusal(found))
            else:
                act(found if isinstance(found, QueueDescription) else None, looking)

        return http.Awaited(Looking(self._submit, request, DescribeQueue(name), look, render).when_ready)

    def _render(self, request: http.Request, answer: Answer, status: int = 200) -> http.Rendered:
        if isinstance(answer, Refused):
            return _no_channel(answer.detail) if answer.reason is Reason.NO_QUEUE else http.refusal(answer)
        assert isinstance(answer, QueueDescription)
        if not answer.settings.topics:
            return _no_channel(answer.name)
        if not answer.settings.push:
            return http.json_response(status, _shown({}, answer))
        return self._asked(
            request,
            ReadPushes([answer.name]),
            lambda found: http.json_response(status, _shown(found.states, answer)),
        )


def _removed(answer: Answer, status: int) -> http.Response:
    return http.refusal(answer) if isinstance(answer, Refused) else http.Response(status)


def _unless_refused(made: http.Awaited, checked: PushChecked) -> http.Rendered:
    return http.bad_request(ProtocolError(checked.refusal)) if checked.refusal else made


def _shown(states: dict[str, State], channel: QueueDescription) -> dict[str, Any]:
    shown = view(channel)
    if channel.settings.push:
        shown["push"] |= states.get(channel.name, {})
    return shown


def _pushes(states: dict[str, State], channels: Sequence[QueueDescription]) -> Generator[Query, Any, None]:
    """Find out how these are pushed."""
    names = [channel.name for channel in channels if channel.settings.push]
    found = (yield ReadPushes(names)) if names else None
    if isinstance(found, PushStates):
        states |= found.states


def _no_channel(name: str) -> http.Response:
    return http.error_response(Fault.NO_CHANNEL, name)
