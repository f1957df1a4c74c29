"""What the quotas of its client mean for a connection: what is counted, what is refused, and when it rests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from penstock.broker.quotas.meter import Meter
from penstock.broker.quotas.quotas import Quotas, client_of, network_of
from penstock.broker.room import Room
from penstock.limits import FAULT_REST_SECONDS_MAX, QUOTA_REST_SECONDS_MAX, QUOTA_REST_SECONDS_MIN
from penstock.model.access import EVERYTHING, NOBODY, Access
from penstock.model.answers import Refused
from penstock.model.client import Client

logger = logging.getLogger(__name__)


class Metering(Protocol):
    """The server, as far as quotas are concerned."""

    quotas: Quotas | None
    room: Room


class Metered(asyncio.Protocol):
    """The part of a connection that knows of quotas. If there are none for its client, it has no meter."""

    __slots__ = ("_identity", "_is_unread", "_over", "_resting", "begun_at", "meter", "transport")

    _server: Metering

    def __init__(self) -> None:
        self.meter: Meter | None = None
        self._identity: Access | None = None  # Whose identity's quotas count.
        self.transport: asyncio.Transport | None = None
        self.begun_at = 0  # When the request began that is not complete. 0: there is none.
        self._is_unread = False  # The room knows what it has not read.
        self._over: Refused | None = None  # The client was over a quota when it began to send what is handled now.
        self._resting = False  # Nothing is handled for a while, because the client is over a quota.

    def _begin_meter(self) -> Refused | None:
        """Count what comes from this address, if there are quotas for addresses."""
        quotas = self._server.quotas
        account = quotas.of_address(self._address()) if quotas else None
        if quotas is None or account is None:
            return None
        self.meter = Meter(quotas)
        return self.meter.join(account)

    @property
    def client(self) -> Hashable:
        """Whose turns it takes: an identity, or an address."""
        return client_of(self._identity, self.address)

    def _address(self) -> str:
        """The address of the client, as it is counted."""
        return network_of(self.address)

    def identify(self, access: Access) -> Refused | None:
        """The client has this identity from now on: count for it too, unless it has too many connections."""
        quotas = self._server.quotas
        is_known = quotas is not None and access is not EVERYTHING and access is not NOBODY
        account = quotas.of_identity(access.identity, access.limits) if quotas and is_known else None
        if self.meter is None and quotas and account:
            self.meter = Meter(quotas)
        refused = self.meter.join(account) if self.meter is not None else None
        self._identity = None if refused else access
        return refused

    def end_meter(self) -> None:
        if self.meter is not None:
            self.meter.close()

    def _count_read(self, meter: Meter, size: int) -> None:
        """What has begun while the client was not over its quota is not refused, however much of it follows. What is
        refused does not count, so that a client recovers however often it tries."""
        if not self.begun_at:
            self._over = meter.overdrawn("bytes_per_second")
        if self._over is None:
            meter.take("bytes_per_second", size)

    def _pace(self) -> None:
        """Rest in the middle of a request, if the client is over its quota of bytes: the request is not refused any
        more, but waits. What comes after the end is read no faster."""
        if self.meter is None or not (self.begun_at or self._has_ended()):
            return
        if seconds := self.meter.pause("bytes_per_second"):
            self._rest(seconds)

    def drop(self, size: int) -> None:
        """So much came after the end."""
        if self.meter is not None:
            self._count_read(self.meter, size)
            self._pace()

    def _request_refused(self, meter: Meter) -> Refused | None:
        """Why a request is refused; later ones wait a while then. If it is not, it counts."""
        refused = self._over or meter.overdrawn("requests_per_second")
        if not refused:
            meter.take("requests_per_second", 1)
        return refused

    def _submit_metered(self, submit: Callable[..., Any], client: Client, *rest: Any) -> Any:
        assert self.meter is not None
        pending = self.meter.submit(submit, client, *rest)
        self._rest_if_refused()
        return pending

    def _count_fault(self) -> None:
        """The broker ends the connection because of what the client has sent."""
        if self.meter is not None:
            self.meter.take("faults", 1)

    def _rest_after_faults(self) -> None:
        """Read from a new connection later, if too many of the same client have ended with its fault."""
        if self.meter is not None and (seconds := self.meter.pause("faults")):
            self._rest(seconds, FAULT_REST_SECONDS_MAX)

    def _note_unread(self, size: int) -> None:
        """The client has not read this much of its answers."""
        self._is_unread = size > 0
        self._server.room.note(self, size)
        if self.meter is not None and (refused := self.meter.unread(size)):
            logger.warning("unread_answers_dropped", extra={"bytes": size, "reason": refused.sentence})
            self.abort()

    def _refuse_login(self, refuse: Callable[[], None]) -> None:
        """Refuse a client with an invalid token after a while: the longer, the more often its address has failed."""
        quotas = self._server.quotas
        if quotas is None:
            refuse()
        elif not quotas.logins.hold(quotas.logins.failed(self._address()), refuse):
            self.abort()

    # ── Rest ────────────────────────────────────────────────────────────────────────────────────────────────

    def _rest_if_refused(self) -> None:
        """A command, or work beside the writer, was over a quota: if it asks again at once, it costs much."""
        if self.meter is not None and self.meter.has_refused:
            self._rest(QUOTA_REST_SECONDS_MIN)

    def _rest(self, seconds: float, most: float = QUOTA_REST_SECONDS_MAX) -> None:
        """Handle and read nothing for a while, so that a client that is over its quota costs little. A short rest
        would cost more than what it keeps from being done."""
        self._over = None
        if self.meter is not None:
            self.meter.has_refused = False
        if not self._resting:
            self._resting = True
            self._pause(True)
            seconds = min(max(seconds, QUOTA_REST_SECONDS_MIN), most)
            asyncio.get_running_loop().call_later(seconds, self._end_rest)

    def _end_rest(self) -> None:
        self._resting = False
        if self.transport:
            self._go_on()

    # ── The connection's side ───────────────────────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        """Of the client."""
        raise NotImplementedError

    def _pause(self, wanted: bool) -> None:
        """Stop or resume reading."""
        raise NotImplementedError

    def _has_ended(self) -> bool:
        """What the client sends is only thrown away."""
        return False

    def _go_on(self) -> None:
        """There may be room for more."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close the connection, and throw away what is not sent."""
        raise NotImplementedError
