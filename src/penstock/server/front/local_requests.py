"""Whole requests in a shard of this process: those of other workers, and those that are asked of all shards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from penstock.broker.quotas.meter import Meter, meter_of
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.quotas.work import payer, paying
from penstock.cluster.links.remote_requests import RespondTo
from penstock.dialects.wire.http import Awaited, Call, Calls, Request, Response, error_response
from penstock.errors import Fault
from penstock.model.client import Client, Pending
from penstock.model.commands import Command
from penstock.shells.exchanges import Exchange, Result, Route, Several

logger = logging.getLogger(__name__)


class Answering(Protocol):
    """The application of a shard."""

    @property
    def submit(self) -> Callable[[Client, Command, Callable[[Any], None]], Pending | None]: ...

    def route(self, request: Request) -> Route: ...


class LocalRequests:
    """`quotas`: for clients of other workers."""

    def __init__(self, application: Answering, quotas: Quotas | None = None) -> None:
        self._application = application
        self._quotas = quotas

    def ask(self, request: Request, respond: RespondTo) -> Pending:
        asked = _Asked(request, respond)
        exchange, quotas = asked.exchange, self._quotas
        meter = payer() or (meter_of(quotas, request.access, request.address) if quotas else None)
        try:
            with paying(meter):
                pending = self._begin(exchange, self._application.route(exchange)(exchange), meter)
            exchange.pending = pending if exchange.connection else None
        except Exception:
            logger.exception("request_failed")
            exchange.respond(error_response(Fault.INTERNAL))
        return asked

    def _begin(self, exchange: Exchange, result: Result, meter: Meter | None) -> Pending | None:
        """Also makes the response, if that is possible at once."""
        submit: Callable[..., Pending | None] = partial(self._application.submit, exchange)
        if meter is not None:
            submit = partial(meter.submit, self._application.submit, exchange)
        if isinstance(result, Response):
            exchange.respond(result)
            return None
        if isinstance(result, Call):
            exchange.render = result.render
            return submit(result.command, exchange.answer)
        if isinstance(result, Calls):
            exchange.render = result.render
            return Several(result, exchange.answer, submit)
        assert isinstance(result, Awaited), "conversations are not requests of a shard"
        return result.when_ready(exchange.respond)


class _Asked:
    """One request, in the place of the connection of its client."""

    def __init__(self, request: Request, respond: RespondTo) -> None:
        self.address = request.address
        self.holder = request.holder
        self._respond = respond
        facts = (request.method, request.target, request.headers, request.body, request.cut)
        self.exchange = Exchange(*facts, self)
        self.exchange.access, self.exchange.is_identified = request.access, True
        self.exchange.certificate = request.certificate

    def drain(self) -> None:
        """The response is ready. It is not this exchange's any more, which is let go."""
        exchange = self.exchange
        response, exchange.response, exchange.connection = exchange.response, None, None
        assert response is not None
        self._respond(response)

    def cancel(self) -> None:
        self.exchange.drop()

    def give_up(self) -> None:
        self.exchange.give_up()
