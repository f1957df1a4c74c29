"""Requests whose answers come later: of coroutines, which may take long, and of questions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from penstock.broker.quotas.work import payer, paying
from penstock.dialects.wire.http import (
    Awaited,
    Rendered,
    Request,
    Response,
    Stream,
    error_response,
    failure,
    give,
    no_answer,
)
from penstock.errors import DamagedLogError, Fault, PenstockError
from penstock.model.queries import Ask, NoAnswer, Query

logger = logging.getLogger(__name__)

_Answer = Coroutine[Any, Any, Response | Stream]
_Respond = Callable[[Response | Stream], None]


class Later:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, answer: _Answer) -> Awaited:
        """Answer with what the coroutine returns, or with the error that it raises."""
        return Awaited(partial(self._begin, answer))

    def _begin(self, answer: _Answer, respond: _Respond) -> None:
        task = asyncio.create_task(_respond(answer, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def asked(
    ask: Ask,
    request: Request,
    query: Query,
    render: Callable[[Any], Rendered],
    refused: Callable[[NoAnswer], Response] = no_answer,
) -> Awaited:
    """What the answer leads to is work for the same client."""
    meter = payer()

    def when_ready(respond: _Respond) -> Any:
        def take(answer: Any) -> None:
            with paying(meter):
                give(_rendered(answer, render, refused), respond)

        return ask(request, query, take)

    return Awaited(when_ready)


def _rendered(answer: Any, render: Callable[[Any], Rendered], refused: Callable[[NoAnswer], Response]) -> Rendered:
    try:
        return refused(answer) if isinstance(answer, NoAnswer) else render(answer)
    except Exception:
        logger.exception("answer_failed")
        return error_response(Fault.INTERNAL)


async def _respond(answer: _Answer, respond: _Respond) -> None:
    try:
        response = await answer
    except PenstockError as error:
        if isinstance(error, DamagedLogError):
            logger.error("reader_failed", extra={"reason": str(error)})
        response = failure(error)
    except Exception:
        logger.exception("request_failed")
        response = error_response(Fault.INTERNAL)
    respond(response)
