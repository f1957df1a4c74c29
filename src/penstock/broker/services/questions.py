"""Questions of clients to one shard: each has a service that answers it.

What a client may not ask is refused here. An answer comes when what it has seen is durable, as those of commands do.
An error that ends a question is an answer too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker.services.audit import Audit
from penstock.broker.services.contract import Service, durable, unrefused
from penstock.broker.writer.port import Answering, Reply, ServicePort
from penstock.errors import DamagedLogError, PenstockError, Reason, RequestError
from penstock.model.answers import Refused
from penstock.model.client import Client, Pending
from penstock.model.permissions import NotAllowedError, denied
from penstock.model.queries import INTERNAL, Act, Query, failure

logger = logging.getLogger(__name__)

Answers = dict[type[Query], Callable[[Client, Any], Awaitable[Any]]]
AtOnce = dict[type[Query], Callable[[Client, Any, Reply], Pending | None]]
_HANDED_OVER = Refused(Reason.UNAVAILABLE, "the shard is handed over")


class Questions(Service):
    def __init__(self, writer: ServicePort, audit: Audit, answers: Answers, at_once: AtOnce) -> None:
        """`at_once`: what needs no task, and may be hurried."""
        super().__init__(writer)
        self._audit = audit
        self.answers = answers
        self.at_once = at_once
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def take(self, client: Client, query: Query, reply: Reply) -> Pending | None:
        """Call `reply` once, unless what is returned is cancelled first."""
        if (needs := query.needs()) and (refused := self.writer.refusal(client, needs)):
            reply(refused)
            return None
        if at_once := self.at_once.get(type(query)):
            return at_once(client, query, reply)
        task = asyncio.create_task(self._answer(client, query, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None if isinstance(query, Act) else Answering(task)

    async def _answer(self, client: Client, query: Query, reply: Reply) -> None:
        try:
            async with asyncio.timeout(query.seconds_max):
                answer = await self.answers[type(query)](client, query)
                if query.waits_for_log:
                    unrefused(await durable(self.writer))
        except asyncio.CancelledError:
            if self._is_closed:  # Else nobody waits for it any more.
                reply(_HANDED_OVER)
            raise
        except TimeoutError:
            answer = failure(RequestError(Reason.UNAVAILABLE, "the answer takes too long"))
        except NotAllowedError as error:
            (verb, *_), name = error.need
            answer = denied(error.need)
            self._audit.refuse(client, verb, name, answer.reason)
        except PenstockError as error:
            if isinstance(error, DamagedLogError):
                logger.error("reader_failed", extra={"reason": str(error)})
            answer = failure(error)
        except Exception:
            logger.exception("request_failed")
            answer = INTERNAL
        reply(answer)

    async def close(self) -> None:
        await super().close()
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
