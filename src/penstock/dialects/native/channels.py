"""Channels in the native API: queues of one subscriber each, which get what is published to their topics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from penstock.dialects.native.queue_document import ChannelDocument, changed, listed, view
from penstock.dialects.native.queues import Submit
from penstock.dialects.wire import http
from penstock.errors import Fault, ProtocolError, Reason
from penstock.limits import CHANNEL_RETRIES_MAX
from penstock.model.answers import Answer, QueueDescription, Refused
from penstock.model.commands import CreateQueue, DeleteQueue, DescribeQueue, UpdateQueue
from penstock.model.permissions import needs_of, require
from penstock.model.pushes import PushStates, ReadPushes, State
from penstock.model.queries import Query
from penstock.model.settings import Push, QueueSettings
from penstock.model.values import Stage

_NEW = QueueSettings(retries=CHANNEL_RETRIES_MAX)

CheckPush = Callable[[str, Push], None]  # Raises `ProtocolError` if the channel cannot be pushed like this.
PushState = Callable[[str], dict[str, Any]]  # How pushing a channel goes.


class Channels:
    """Requests in, commands out; answers in, responses out."""

    def __init__(
        self,
        submit: Submit,
        check_push: CheckPush,
        push_state: PushState,
    ) -> None:
        self._submit = submit
        self._check_push = check_push
        self._push_state = push_state
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

    def _get(self, _: http.Request, segment: bytes) -> http.Call:
        return http.Call(DescribeQueue(http.queue_name(segment)), lambda answer: self._render(answer, 200))

    def _put(self, request: http.Request, segment: bytes) -> http.Awaited:
        """Create a channel, or give an existing one exactly these settings."""
        name, submit = http.queue_name(segment), partial(self._submit, request)
        wanted = changed(_NEW, request.body, ChannelDocument)
        if not wanted.topics:
            raise ProtocolError("topics is missing; a channel needs at least one")
        require(request.access, *needs_of(CreateQueue(name, wanted)))
        if wanted.push:
            self._check_push(name, wanted.push)

        def make(found: QueueDescription | None, respond: Callable[[http.Response], None]) -> None:
            if found is None:
                submit(CreateQueue(name, wanted), lambda answer: respond(self._render(answer, 201)))
            elif not found.settings.topics:
                respond(http.error_response(Reason.QUEUE_EXISTS, f"{name}; it is not a channel"))
            else:
                submit(UpdateQueue(name, wanted), lambda answer: respond(self._render(answer, 200)))

        return self._looked_at(request, name, make)

    def _delete(self, request: http.Request, segment: bytes) -> http.Awaited:
        name = http.queue_name(segment)

        def remove(found: QueueDescription | None, respond: Callable[[http.Response], None]) -> None:
            if found is None or not found.settings.topics:
                respond(_no_channel(name))
            else:
                self._submit(
                    request,
                    DeleteQueue(name),
                    lambda answer: respond(
                        http.refusal(answer) if isinstance(answer, Refused) else http.Response(204)
                    ),
                )

        return self._looked_at(request, name, remove)

    def _looked_at(
        self,
        request: http.Request,
        name: str,
        act: Callable[[QueueDescription | None, Callable[[http.Response], None]], None],
    ) -> http.Awaited:
        """Look at the queue and act on it in one turn, so that nothing changes in between."""

        def look(respond: Callable[[http.Response], None]) -> None:
            def render(found: Answer) -> None:
                if isinstance(found, Refused) and found.reason is not Reason.NO_QUEUE:
                    respond(http.refusal(found))
                else:
                    act(found if isinstance(found, QueueDescription) else None, respond)

            self._submit(request, DescribeQueue(name), render, Stage.READY)

        return http.Awaited(look)

    def _render(self, answer: Answer, status: int) -> http.Response:
        if isinstance(answer, Refused):
            return _no_channel(answer.detail) if answer.reason is Reason.NO_QUEUE else http.refusal(answer)
        assert isinstance(answer, QueueDescription)
        if not answer.settings.topics:
            return _no_channel(answer.name)
        return http.json_response(status, _shown({answer.name: self._push_state(answer.name)}, answer))


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
