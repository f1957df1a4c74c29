"""Changes that depend on what there is undo no other change, however far away it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.dialects.native.channels import Channels
from penstock.dialects.native.queues import Queues
from penstock.dialects.native.tokens import Tokens
from penstock.dialects.wire.http import Awaited, Request, Response
from penstock.model.answers import QueueDescription
from penstock.model.client import Client
from penstock.model.commands import Command, CreateQueue, DeleteQueue, UpdateQueue
from penstock.model.settings import QueueSettings
from penstock.model.tokens import DescribeToken, SetToken, Token
from penstock.model.values import Stage
from tests.support.engine_rig import Rig

LOOK = Stage.READY
CHANNEL = QueueSettings(topics=("t",))


class Far:
    """An engine far away: others change something after it was looked at, and before it is changed."""

    has_admins = True

    def __init__(self, *others: Command) -> None:
        self.rig = Rig()
        self._others = list(others)

    def submit(
        self, client: Client, command: Command, reply: Callable[[Any], None], stage: Stage = Stage.SYNC
    ) -> None:
        answer = self.rig.do(command)
        if stage is LOOK and self._others:
            self.rig.do(self._others.pop(0))
        reply(answer)

    def used(self, _: str) -> int:
        return 0


def answer_to(routes: Any, method: bytes, target: bytes, body: bytes = b"") -> Response:
    """The answer to a request that looks first."""
    segments = target.split(b"/")
    awaited = routes[b"/".join(segments[1:3]), len(segments) - 1][method](
        Request(method, target, {}, body), segments[-1]
    )
    assert isinstance(awaited, Awaited)
    given: list[Any] = []
    awaited.when_ready(given.append)
    (response,) = given
    assert isinstance(response, Response)
    return response


def queue_in(far: Far) -> QueueDescription:
    return far.rig.describe("q")


def test_settings_that_somebody_else_changes_meanwhile_stay_changed() -> None:
    far = Far(UpdateQueue("q", QueueSettings(delay_ns=5)), UpdateQueue("q", QueueSettings(delay_ns=7)))
    far.rig.create("q")
    changed = answer_to(Queues(far.submit).routes, b"PATCH", b"/v1/queues/q", b'{"max_attempts": 3}')
    assert (changed.status, json.loads(changed.body)["max_attempts"]) == (200, 3)
    assert (queue_in(far).settings.retries, queue_in(far).settings.delay_ns) == (3, 7)


def test_who_creates_a_queue_that_somebody_else_has_just_created_looks_again() -> None:
    far = Far(CreateQueue("q", QueueSettings()))
    assert answer_to(Queues(far.submit).routes, b"PUT", b"/v1/queues/q").status == 200
    far = Far(CreateQueue("q", QueueSettings(retries=2)))
    refused = answer_to(Queues(far.submit).routes, b"PUT", b"/v1/queues/q")
    assert (refused.status, json.loads(refused.body)["code"]) == (409, "queue_exists")
    assert queue_in(far).settings.retries == 2


@pytest.mark.parametrize("method", [b"PUT", b"DELETE"])
def test_what_is_no_channel_any_more_is_left_alone(method: bytes) -> None:
    far = Far(UpdateQueue("q", QueueSettings()))
    far.rig.do(CreateQueue("q", CHANNEL))
    body = b'{"topics": ["u"]}' if method == b"PUT" else b""
    refused = answer_to(Channels(far.submit, None).routes, method, b"/v1/channels/q", body)  # type: ignore[arg-type]
    assert refused.status == (409 if method == b"PUT" else 404)
    assert queue_in(far).settings == QueueSettings()


def test_a_channel_that_is_gone_meanwhile_is_created() -> None:
    far = Far(DeleteQueue("q"))
    far.rig.do(CreateQueue("q", CHANNEL))
    routes = Channels(far.submit, None).routes  # type: ignore[arg-type]
    assert answer_to(routes, b"PUT", b"/v1/channels/q", b'{"topics": ["u"]}').status == 201


def test_a_token_that_somebody_else_changes_meanwhile_keeps_that_change() -> None:
    token = Token(scopes=("read:a",), digest="d")
    far = Far(SetToken("t", Token(scopes=("read:b",), digest="e"), has_admins=True))
    far.rig.do(SetToken("t", token, is_new=True, has_admins=True))
    tokens = Tokens(far.submit, far, lambda: ("", ""), dict)
    limited = b'{"limits": {"published_per_second": 5}}'
    assert answer_to(tokens.routes, b"PATCH", b"/v1/tokens/t", limited).status == 200
    known: Any = far.rig.do(DescribeToken("t"))
    assert (known.token.scopes, known.token.digest) == (("read:b",), "e")
    assert known.token.limits == {"published_per_second": 5}
