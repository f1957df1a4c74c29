"""Answers requests with coroutines, which may take long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from penstock.dialects.wire.http import Awaited, Response, Stream, error_response, failure
from penstock.errors import DamagedLogError, Fault, PenstockError
from penstock.server.services.contract import Service
from penstock.server.writer.port import ServicePort

logger = logging.getLogger(__name__)

_Answer = Coroutine[Any, Any, Response | Stream]
_Respond = Callable[[Response | Stream], None]


class Requests(Service):
    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        self._tasks: set[asyncio.Task[None]] = set()

    def later(self, answer: _Answer) -> Awaited:
        """Answer with what the coroutine returns, or with the error that it raises."""
        return Awaited(partial(self._begin, answer))

    def _begin(self, answer: _Answer, respond: _Respond) -> None:
        task = asyncio.create_task(_respond(answer, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await super().close()
        for task in self._tasks:
            task.cancel()


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
