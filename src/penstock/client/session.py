"""What every part of a client needs: ask the broker, and turn its answer into a type or an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from penstock import __version__
from penstock.client import errors
from penstock.client.transport import Reply, Request, Transport, refusal
from penstock.client.trust import Trust
from penstock.decoding import decode_json

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:7843"


class Session:
    """One client's connections and its defaults."""

    def __init__(self, url: str | None, token: str | None, timeout: float, name: str | None, trust: Trust) -> None:
        token = token if token is not None else os.environ.get("PENSTOCK_TOKEN")
        agent = f"penstock-python/{__version__}"
        url = url or os.environ.get("PENSTOCK_URL") or DEFAULT_URL
        self.transport = Transport(url, token, agent, trust.or_environment())
        self.timeout = timeout
        self.name = name

    def limit(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    async def ask(self, request: Request, timeout: float | None = None, since: float | None = None) -> Reply:
        """The answer to a request. Raises the error that a refusal stands for."""
        reply = await self.transport.ask(request, self.limit(timeout), since)
        if reply.answer.status >= 300:
            raise self.refused(request, reply)
        return reply

    def refused(self, request: Request, reply: Reply) -> errors.ClientError:
        return refusal(reply.answer, self.transport.describe(request))

    async def get(self, target: str, kind: type[T], timeout: float | None = None) -> T:
        return await self.change("GET", target, kind, timeout=timeout)

    async def change(
        self, method: str, target: str, kind: type[T], document: Any = None, *, timeout: float | None = None
    ) -> T:
        """Send a document, if there is one, and decode the answer."""
        body = b"" if document is None else msgspec.json.encode(document)
        request = Request(method, target, body)
        reply = await self.ask(request, timeout)
        return self.decoded(request, reply, lambda data: decode_json(data, kind))

    async def delete(self, target: str) -> None:
        """Delete something. It is no error if an earlier attempt of ours has deleted it."""
        request = Request("DELETE", target)
        reply = await self.transport.ask(request, self.timeout)
        if reply.answer.status >= 300 and not (reply.repeated and reply.answer.status == 404):
            raise self.refused(request, reply)

    def decoded(self, request: Request, reply: Reply, decode: Callable[[bytes], T]) -> T:
        try:
            return decode(reply.answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.BrokerFailed(
                f"the answer to {self.transport.describe(request)} is not what the API promises: {error}."
                " Check that the address is that of a Penstock broker of version 0.3 or later"
            ) from None
