"""What becomes of delivered messages: confirmed, given back, or kept a little longer. Each kind goes in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from penstock.client import errors
from penstock.client.batches import Batches
from penstock.client.encoding import OutcomeName, encode, reason_field, result_fields
from penstock.client.results import Confirmed, MessageFacts
from penstock.client.session import Session
from penstock.client.transport import Reply, Request

logger = logging.getLogger("penstock.client")

_STATUSES = {"no_message": 404, "lease_gone": 409}


class _Entry(Struct):
    """What the broker answers for one message of a list."""

    id: str
    outcome: str = ""
    discarded: bool = False
    visible_at: datetime | None = None
    error: str = ""
    code: str = ""


_Answered = _Entry | errors.ClientError
_decode = msgspec.json.Decoder(list[_Entry]).decode


class Settling:
    """Reports outcomes to the broker, and asks it for more time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._batches: dict[str, Batches[_Answered]] = {}  # By path.
        self._under_way: set[asyncio.Task[Confirmed]] = set()

    async def settle(
        self,
        message: MessageFacts,
        outcome: OutcomeName,
        result: object = None,
        delay: float | None = None,
        reason: str = "",
        *,
        begun: bool = True,
    ) -> Confirmed:
        document = message.lease | {"outcome": outcome} | result_fields(result) | reason_field(reason)
        if outcome in ("retry", "failed"):
            # Only this delivery is given back: the next one may be somebody else's.
            document |= {"delivery": message.receives} | ({} if delay is None else {"delay": delay})
            document |= {} if begun or not message.ahead else {"begun": False}
        entry = await self._ask("/v1/confirm", document)
        message.settle()
        return Confirmed(entry.id, outcome, entry.discarded)

    def give_back(self, message: MessageFacts) -> None:
        """Give a message back, and do not wait for the answer."""
        task = asyncio.get_running_loop().create_task(self.settle(message, "retry", begun=False))
        self._under_way.add(task)
        task.add_done_callback(self._given_back)

    def _given_back(self, task: asyncio.Task[Confirmed]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning("a message is delivered again when its lease ends: %s", error)

    async def extend(self, message: MessageFacts, seconds: float, *, begin: bool = False) -> None:
        document = message.lease | {"seconds": seconds, "delivery": message.receives}
        entry = await self._ask("/v1/extend", document | ({"begin": True} if begin else {}))
        message.visible_at = entry.visible_at or message.visible_at

    async def finish(self) -> None:
        """Wait until everything is answered."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        for batches in self._batches.values():
            await batches.finish()

    async def _ask(self, target: str, document: dict[str, Any]) -> _Entry:
        if target not in self._batches:
            self._batches[target] = Batches(self._sender(target))
        answered = await self._batches[target].add(encode(document))
        if isinstance(answered, errors.ClientError):
            raise answered
        return answered

    def _sender(self, target: str) -> Callable[[bytes, float], Any]:
        async def send(body: bytes, since: float) -> list[_Answered]:
            request = Request("POST", target, body, pipelined=True)
            reply = await self._session.ask(request, since=since)
            return [self._answered(request, reply, entry) for entry in self._session.decoded(request, reply, _decode)]

        return send

    def _answered(self, request: Request, reply: Reply, entry: _Entry) -> _Answered:
        """What an attempt of ours has settled is a success, also if its answer was lost."""
        entry.discarded = entry.discarded and not reply.repeated
        if not entry.code or (reply.repeated and entry.code == "lease_gone" and request.target == "/v1/confirm"):
            return entry
        asked = f"{self._session.transport.describe(request)}, message {entry.id},"
        refusal = {"error": entry.error, "code": entry.code}
        return errors.refused(_STATUSES.get(entry.code, 400), refusal, asked, None)
