"""One question that is asked of one shard after another, as their answers lead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import ClientPort, Reply
from penstock.cluster.links.flows import close
from penstock.errors import Reason
from penstock.model.answers import Refused
from penstock.model.client import Client
from penstock.model.client import Pending as PendingAnswer
from penstock.model.queries import INTERNAL, Ask, Query

logger = logging.getLogger(__name__)


class NoAnswerError(Exception):
    """The answer of one shard, which is none, is that to the client."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.answer = answer


class Asking:
    """Asks shards for a client, who may hurry them."""

    def __init__(self, shards: ShardMap, ports: Sequence[ClientPort], client: Client) -> None:
        self.shards, self._ports, self._client = shards, ports, client
        self._pending: set[PendingAnswer] = set()
        self.has_given_up = False

    async def at(self, shard: int, query: Query) -> Any:
        """The answer of one shard."""
        return await answer_of(self._ports[shard].ask, self._client, query, begun=self._begun)

    @contextmanager
    def _begun(self, pending: PendingAnswer) -> Iterator[None]:
        self._pending.add(pending)
        if self.has_given_up:
            pending.give_up()
        try:
            yield
        finally:
            self._pending.discard(pending)

    def give_up(self) -> None:
        """The client may be gone: everybody answers with what there is."""
        self.has_given_up = True
        for pending in list(self._pending):
            pending.give_up()


Lead = Callable[[Asking, Any], Coroutine[Any, Any, Any]]


class Leading:
    """Replies with what a lead returns, unless the client goes away."""

    def __init__(self, lead: Lead, asking: Asking, query: Query, reply: Reply) -> None:
        self._asking = asking
        self._task = asyncio.create_task(self._run(lead, query, reply))

    async def _run(self, lead: Lead, query: Query, reply: Reply) -> None:
        try:
            answer = await lead(self._asking, query)
        except NoAnswerError as error:
            answer = error.answer
        except Exception:
            logger.exception("merge_failed")
            answer = INTERNAL
        reply(answer)

    @property
    def is_waiting(self) -> bool:
        return not self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    def give_up(self) -> None:
        self._asking.give_up()


# ── One shard ─────────────────────────────────────────────────────────────────────────────────────────────────


async def answer_of(
    ask: Ask,
    client: Client,
    query: Query,
    seconds: float | None = None,
    begun: Callable[[PendingAnswer], AbstractContextManager[object]] = nullcontext,
) -> Any:
    """`seconds`: how long it may take, if the question does not say it. `begun`: entered while it is waited for."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending = ask(client, query, partial(_resolve, answered))
    try:
        async with asyncio.timeout(seconds or query.seconds_max):
            with begun(pending) if pending and not answered.done() else nullcontext():
                return await answered
    except (asyncio.CancelledError, TimeoutError) as error:
        if pending:
            pending.cancel()
        if answered.done() and not answered.cancelled():
            close(answered.result())
        if isinstance(error, TimeoutError):
            return Refused(Reason.UNAVAILABLE, "the process that has a shard does not answer in time")
        raise


def _resolve(answered: asyncio.Future[Any], answer: Any) -> None:
    if not answered.done():
        answered.set_result(answer)
    else:
        close(answer)  # Nobody waits for it any more.
