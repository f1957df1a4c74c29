"""One request of a client that is asked of several shards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from penstock.broker.shard_map import ShardMap
from penstock.cluster.links.flows import Pieces
from penstock.cluster.links.remote_requests import ForwardedRequest, RequestPort, RespondTo
from penstock.dialects.wire import http
from penstock.errors import Fault, PenstockError, ProtocolError
from penstock.ids import MessageIds
from penstock.model.access import Access
from penstock.model.answers import Refused
from penstock.model.client import Pending

logger = logging.getLogger(__name__)

Responded = http.Response | http.Stream

_OK = range(200, 300)


class AnsweredError(Exception):
    """The answer of one shard is that to the client."""

    def __init__(self, response: http.Response) -> None:
        super().__init__(response.status)
        self.response = response


class Asking:
    """A request, and the shards that it may be sent to."""

    def __init__(
        self,
        request: http.Request,
        shards: ShardMap,
        ids: MessageIds,
        ports: Callable[[int], RequestPort],
        wrong: Callable[[ProtocolError], RequestPort],
    ) -> None:
        """`wrong`: refuses the request for what is wrong with it."""
        self.request = request
        self._wrong = wrong
        self.shards = shards
        self.ids = ids
        self._ports = ports
        self._pending: dict[asyncio.Future[Responded], Pending] = {}
        self.has_given_up = False

    def give_up(self) -> None:
        """The client may be gone: everybody answers with what there is."""
        self.has_given_up = True
        for pending in list(self._pending.values()):
            pending.give_up()

    async def at(self, shard: int, **changes: Any) -> Responded:
        """The answer of one shard, to the request or to one with another method, target, body or access, or more
        headers."""
        return await self._asked(self._ports(shard), changes)

    async def whole(self, shard: int, **changes: Any) -> http.Response:
        """The whole answer of a shard. Raises `AnsweredError` if it is an error."""
        return await _accepted(self.at(shard, **changes))

    async def refused(self, problem: ProtocolError) -> Responded:
        """The answer to a request that is wrong."""
        return await self._asked(self._wrong(problem), {})

    async def all(self, **changes: Any) -> list[http.Response]:
        """The answers of all shards, in their order. Raises `AnsweredError` if one is an error."""
        return await asyncio.gather(*[self.whole(shard, **changes) for shard in range(self.shards.shards)])

    async def _asked(self, port: RequestPort, changes: dict[str, Any]) -> Responded:
        answered: asyncio.Future[Responded] = asyncio.get_running_loop().create_future()
        pending = port.ask(self._changed(**changes), settled(partial(_resolve, answered)))
        if pending and not answered.done():
            self._pending[answered] = pending
            if self.has_given_up:
                pending.give_up()
        try:
            return await answered
        except asyncio.CancelledError:
            if pending:
                pending.cancel()
            raise
        finally:
            self._pending.pop(answered, None)

    def _changed(
        self,
        method: bytes | None = None,
        target: bytes | None = None,
        body: bytes | None = None,
        headers: http.Headers | None = None,
        access: Access | None = None,
    ) -> http.Request:
        request = self.request
        changed = ForwardedRequest(
            method or request.method,
            target or request.target,
            request.headers | (headers or {}),
            request.body if body is None else body,
            request.cut,
            client=request,
        )
        changed.access, changed.certificate = access or request.access, request.certificate
        return changed


async def _accepted(answer: Awaitable[Responded]) -> http.Response:
    response = await collected(await answer)
    if response.status not in _OK:
        raise AnsweredError(response)
    return response


Merge = Callable[[Asking], Coroutine[Any, Any, Responded]]


class Merging:
    """Makes one answer of several, and calls `respond` with it unless the client goes away."""

    def __init__(self, merge: Merge, asking: Asking, respond: Callable[[Responded], None]) -> None:
        self._asking = asking
        self._task = asyncio.create_task(self._run(merge, respond))

    async def _run(self, merge: Merge, respond: Callable[[Responded], None]) -> None:
        try:
            response = await merge(self._asking)
        except AnsweredError as error:
            response = error.response
        except ProtocolError as error:
            response = await self._asking.refused(error)
        except PenstockError as error:
            response = http.failure(error)
        except Exception:
            logger.exception("merge_failed")
            response = http.error_response(Fault.INTERNAL)
        respond(response)

    def cancel(self) -> None:
        self._task.cancel()

    def give_up(self) -> None:
        self._asking.give_up()


def settled(respond: Callable[[Responded], None]) -> RespondTo:
    """The same, but a refusal of the link is a response too."""

    def take(response: Responded | Refused) -> None:
        respond(http.refusal(response) if isinstance(response, Refused) else response)

    return take


def _resolve(answered: asyncio.Future[Responded], response: Responded) -> None:
    if not answered.done():
        answered.set_result(response)
    elif isinstance(response, http.Stream):
        response.source.close()  # Nobody waits for it any more.


# ── Streams as a whole ────────────────────────────────────────────────────────────────────────────────────────


async def collected(response: Responded) -> http.Response:
    """The whole of an answer, however it comes."""
    if isinstance(response, http.Response):
        return response
    pieces = Pieces(response.source)
    try:
        data = [piece async for piece in pieces]
    finally:
        pieces.close()
    return http.Response(response.status, b"".join(data), response.headers)
