"""Requests that coroutines answer: with what they return, or with the error that they raise."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock.dialects.wire.http import Response, Stream
from penstock.errors import DamagedLogError, EventsRemovedError, Fault, ProtocolError, Reason, RequestError
from penstock.server.later import Later


async def answered(error: Exception | None = None) -> Response:
    if error:
        raise error
    return Response(204)


async def response_to(error: Exception | None = None) -> Response | Stream:
    later = Later()
    response: asyncio.Future[Response | Stream] = asyncio.get_running_loop().create_future()
    later(answered(error)).when_ready(response.set_result)
    return await response


def test_the_answer_is_what_the_coroutine_returns() -> None:
    assert asyncio.run(response_to()) == Response(204)


@pytest.mark.parametrize(
    ("error", "code", "facts"),
    [
        (ProtocolError("from is missing"), Fault.BAD_REQUEST, {}),
        (RequestError(Fault.PAST_END, "7", end=7), Fault.PAST_END, {"end": 7}),
        (RequestError(Reason.NO_QUEUE, "work"), Reason.NO_QUEUE, {}),
        (EventsRemovedError(5), Fault.EVENTS_REMOVED, {"earliest": 5}),
        (DamagedLogError("a batch is damaged"), Fault.UNREADABLE, {}),
        (ZeroDivisionError(), Fault.INTERNAL, {}),
    ],
)
def test_an_error_is_an_answer_with_its_code(error: Exception, code: Fault, facts: dict[str, int]) -> None:
    response = asyncio.run(response_to(error))
    assert isinstance(response, Response)
    document = json.loads(response.body)
    assert (response.status, document["code"]) == (code.status, code.code)
    assert {name: value for name, value in document.items() if name not in ("error", "code")} == facts


def test_requests_end_with_the_broker() -> None:
    async def story() -> None:
        later, never = Later(), asyncio.Event()

        async def wait() -> Response:
            await never.wait()
            return Response(204)

        later(wait()).when_ready(lambda _: never.set())
        await asyncio.sleep(0)
        (task,) = later._tasks
        later.close()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not never.is_set()

    asyncio.run(story())
