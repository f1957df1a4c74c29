"""Work that services do for a client beside the writer: who is charged for its time.

The shell names the client of a request (`paying`). A service begins a bill for it, and the threads that work on the
request, however far from it, add their time to the bill: it is part of the context of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from penstock.broker.quotas.meter import Meter
from penstock.errors import RequestError
from penstock.model.answers import Refused
from penstock.model.client import Client
from penstock.model.commands import Command
from penstock.model.values import Stage

Work = Literal["search_seconds_per_minute", "replay_seconds_per_minute"]

_payer: ContextVar[Meter | None] = ContextVar("payer", default=None)


class Bill:
    """The time of one request. Work that `pauses` waits until the account has recovered."""

    def __init__(self, meter: Meter, quota: Work, *, pauses: bool) -> None:
        self._meter = meter
        self._quota: Work = quota
        self._pauses = pauses

    def add(self, seconds: float) -> None:
        self._meter.take(self._quota, seconds)

    def pause(self) -> float:
        """How many seconds to pause now."""
        return self._meter.pause(self._quota) if self._pauses else 0.0


_bill: ContextVar[Bill | None] = ContextVar("bill", default=None)


@contextmanager
def paying(meter: Meter | None) -> Iterator[None]:
    """What begins in here is work for this client."""
    token = _payer.set(meter)
    try:
        yield
    finally:
        _payer.reset(token)


def payer() -> Meter | None:
    return _payer.get()


def counted(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Submit for the client whose request is handled, and also what its answers lead to."""

    def submit_as(client: Client, command: Command, reply: Callable[[Any], None], *stage: Stage) -> Any:
        meter = _payer.get()
        if meter is None:
            return submit(client, command, reply, *stage)

        def go_on(answer: Any) -> None:
            with paying(meter):
                reply(answer)

        return meter.submit(submit, client, command, go_on, *stage)

    return submit_as


def begin_bill(quota: Work, *, pauses: bool = False) -> None:
    """From now on the current task works for its client. Raises `RequestError` if the client is over this quota."""
    meter = _payer.get()
    if meter is not None and meter.limits(quota):
        if refused := meter.overdrawn(quota):
            raise over_quota(refused)
        _bill.set(Bill(meter, quota, pauses=pauses))


def current_bill() -> Bill | None:
    return _bill.get()


def over_quota(refused: Refused) -> RequestError:
    return RequestError(refused.reason, refused.detail, refused.retry_seconds)
