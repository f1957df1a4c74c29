"""Waiting until messages are taken, or done: many callers share few requests.

A wait changes nothing, so one that is under way may be given up at any time and asked for again together with others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from penstock.client import errors
from penstock.client.encoding import encode
from penstock.client.results import Outcome, Until
from penstock.client.session import Session
from penstock.client.transport import Request
from penstock.limits import BATCH_MESSAGES_MAX

_POLL_SECONDS = 20
_POLLS_MAX = 8


class _Entry(Outcome, frozen=True, kw_only=True):
    """What the broker answers for one message."""

    error: str = ""
    code: str = ""


class _Reached(Struct):
    messages: list[_Entry]


class _Awaited:
    """A message that callers wait for."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.callers = 0


class Waits:
    """All waits of a client for one stage."""

    def __init__(self, session: Session, until: Until) -> None:
        self._session = session
        self._until = until
        self._awaited: dict[str, _Awaited] = {}  # By the id of the message.
        self._new: list[str] = []  # Those that no request asks for yet.
        self._polls: dict[asyncio.Task[None], Sequence[str]] = {}
        self._scheduled = False

    async def wait(self, message_id: str) -> Outcome:
        """What became of a message. Raises `MessageNotFound`."""
        awaited = self._awaited.get(message_id)
        if awaited is None:
            awaited = self._awaited[message_id] = _Awaited()
            self._new.append(message_id)
            self._ask_soon()
        awaited.callers += 1
        try:
            return await asyncio.shield(awaited.outcome)
        finally:
            awaited.callers -= 1
            if not awaited.callers and self._awaited.get(message_id) is awaited:
                del self._awaited[message_id]  # Its last caller has gone: it is not asked for again.

    def close(self) -> None:
        for poll in self._polls:
            poll.cancel()
        for message_id in list(self._awaited):
            self._give(message_id, errors.ClientError(f"the client of {self._session.transport.url} was closed"))

    def _ask_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        """Ask for the new ones; together with all others if there are too many requests by now."""
        self._scheduled = False
        if len(self._polls) >= _POLLS_MAX:
            for poll, ids in self._polls.items():
                poll.cancel()
                self._new += ids
            self._polls.clear()
        wanted, self._new = [each for each in self._new if each in self._awaited], []
        for start in range(0, len(wanted), BATCH_MESSAGES_MAX):
            ids = wanted[start : start + BATCH_MESSAGES_MAX]
            poll = asyncio.get_running_loop().create_task(self._poll(ids))
            self._polls[poll] = ids
            poll.add_done_callback(self._ended)

    async def _poll(self, ids: Sequence[str]) -> None:
        document = {"ids": ids, "until": self._until, "wait": _POLL_SECONDS}
        request = Request("POST", "/v1/wait", encode(document))
        try:
            reply = await self._session.ask(request, self._session.timeout + _POLL_SECONDS)
            reached = self._session.decoded(request, reply, _decode_reached)
        except errors.ClientError as error:
            for each in ids:
                self._give(each, error)
            return
        for entry in reached.messages:
            asked = f"{self._session.transport.describe(request)}, message {entry.id},"
            refusal: dict[str, Any] = {"error": entry.error, "code": entry.code}
            self._give(entry.id, errors.refused(404, refusal, asked, None) if entry.code else entry)

    def _ended(self, poll: asyncio.Task[None]) -> None:
        """Ask again for those that are not there yet."""
        self._new += self._polls.pop(poll, ())
        if self._new:
            self._ask_soon()

    def _give(self, message_id: str, what: Outcome | errors.ClientError) -> None:
        awaited = self._awaited.pop(message_id, None)
        if awaited is None:
            return
        if isinstance(what, errors.ClientError):
            awaited.outcome.set_exception(what)
        else:
            awaited.outcome.set_result(what)


_decode_reached = msgspec.json.Decoder(_Reached).decode
