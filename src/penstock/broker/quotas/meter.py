"""Counts what one connection uses, for the accounts of its address and its identity.

Time quotas work with debt: what begins while an account is not overdrawn is carried out, whatever it takes, and what
begins later is refused until the account has recovered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.quotas.account import Account
from penstock.broker.quotas.quotas import Quotas, network_of
from penstock.broker.quotas.uses import COUNTED, CREATED, PUBLISHED, RECEIVED, received
from penstock.model.access import EVERYTHING, NOBODY, Access
from penstock.model.answers import Answer, Refused
from penstock.model.client import Client
from penstock.model.commands import Command

Reply = Callable[[Any], None]


class Meter:
    """One connection's. It counts as a connection of its accounts until it is closed."""

    __slots__ = ("_accounts", "_quotas", "_unread_bytes", "has_refused")

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._accounts: list[Account] = []
        self._unread_bytes = 0
        self.has_refused = False  # Since the connection last rested.

    def join(self, account: Account | None) -> Refused | None:
        """Count the connection for this account, and for no other of its kind, unless it has too many. None: for no
        identity."""
        if account in self._accounts:
            return None
        scope = account.scope if account else "identity"
        if account and (refused := self._connection_refused(account)):
            return refused
        for other in [each for each in self._accounts if each.scope == scope]:
            self._leave(other)
        if account:
            account.connections += 1
            account.unread_bytes += self._unread_bytes
            self._accounts.append(account)
        return None

    def charge(self, account: Account | None) -> None:
        """Count what is used for this account, but no connection: another process has it."""
        if account:
            self._accounts.append(account)

    def _connection_refused(self, account: Account) -> Refused | None:
        if account.connections >= account.connections_max:
            return self._quotas.refuse(account, "connections")
        if bucket := account.buckets.get("connections_per_second"):
            now = self._quotas.clock()
            if seconds := bucket.wait(now):
                return self._quotas.refuse(account, "connections_per_second", seconds)
            bucket.take(1, now)
        return None

    def _leave(self, account: Account) -> None:
        account.connections -= 1
        account.unread_bytes -= self._unread_bytes
        self._accounts.remove(account)

    def close(self) -> None:
        for account in list(self._accounts):
            self._leave(account)

    # ── Over time ───────────────────────────────────────────────────────────────────────────────────────────

    def take(self, quota: str, amount: float) -> None:
        """So much of it was used."""
        for account in self._accounts:
            if amount and (bucket := account.buckets.get(quota)):
                bucket.take(amount, self._quotas.clock())

    def overdrawn(self, quota: str) -> Refused | None:
        """Why nothing may begin that uses it."""
        for account in self._accounts:
            if bucket := account.buckets.get(quota):
                seconds = bucket.wait(self._quotas.clock())
                if seconds:
                    self.has_refused = True
                    return self._quotas.refuse(account, quota, seconds)
        return None

    def pause(self, quota: str) -> float:
        """How many seconds something has to pause that uses it."""
        now = self._quotas.clock()
        return max([bucket.wait(now) for each in self._accounts if (bucket := each.buckets.get(quota))], default=0.0)

    def limits(self, quota: str) -> bool:
        return any(quota in account.buckets for account in self._accounts)

    # ── Commands ────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, submit: Callable[..., Any], client: Client, command: Command, reply: Reply, *stage: Any) -> Any:
        """Carry out a command unless it is over a quota: then the answer is `Refused`."""
        kind = type(command)
        waits = getattr(command, "wait_ns", 0) > 0
        if not waits and kind not in COUNTED:
            return submit(client, command, reply, *stage)
        if refused := self._admit(command, kind) or (self.wait_refused() if waits else None):
            reply(refused)
            return None
        if kind in RECEIVED and self.limits("received_per_second"):
            reply = _Receiving(self, command, reply).answer
        if not waits:
            return submit(client, command, reply, *stage)
        poll = Poll(self, reply)
        poll.pending = submit(client, command, poll.answer, *stage)
        return poll

    def _admit(self, command: Command, kind: type[Command]) -> Refused | None:
        if kind in RECEIVED:
            return self.overdrawn("received_per_second")
        created = self._created(command, kind)
        refused = self.overdrawn("published_per_second") if kind in PUBLISHED else None
        if created and not refused:
            refused = self.overdrawn("queues_per_minute")
        if not refused:
            self.take("queues_per_minute", created)
            self.take("published_per_second", PUBLISHED[kind](command) if kind in PUBLISHED else 0)
        return refused

    def creation_refused(self, created: int) -> Refused | None:
        """Why so many queues may not be created. If they may, they count."""
        refused = self.overdrawn("queues_per_minute")
        if not refused:
            self.take("queues_per_minute", created)
        return refused

    def _created(self, command: Command, kind: type[Command]) -> int:
        if kind not in CREATED or not self.limits("queues_per_minute"):
            return 0
        return sum([not self._quotas.exists(name) for name in CREATED[kind](command)])

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────────────────────

    def wait_refused(self) -> Refused | None:
        """Why nothing more may wait."""
        for account in self._accounts:
            if account.waiting >= account.waiting_max:
                self.has_refused = True
                return self._quotas.refuse(account, "waiting")
        return None

    def waiting(self, more: int) -> list[Account]:
        """So many more wait now; returns the accounts that they count for."""
        for account in self._accounts:
            account.waiting += more
        return self._accounts

    # ── Unread answers ──────────────────────────────────────────────────────────────────────────────────────

    def unread(self, size: int) -> Refused | None:
        """The client has not read this much. Returns why the connection must be closed."""
        more, self._unread_bytes = size - self._unread_bytes, size
        for account in self._accounts:
            account.unread_bytes += more
        for account in self._accounts if more > 0 else ():
            if 0 < account.limits.unread_bytes < account.unread_bytes:
                return self._quotas.refuse(account, "unread_bytes")
        return None


def meter_of(quotas: Quotas, access: Access, address: str) -> Meter | None:
    """What counts for a client whose connection is another worker's. None: it has no quotas."""
    of_address = quotas.of_address(network_of(address)) if address else None
    is_known = access is not EVERYTHING and access is not NOBODY
    of_identity = quotas.of_identity(access.identity, access.limits) if is_known else None
    if not of_address and not of_identity:
        return None
    meter = Meter(quotas)
    meter.charge(of_address)
    meter.charge(of_identity)
    return meter


class _Receiving:
    """Counts the messages in the answer to a command."""

    __slots__ = ("_command", "_meter", "_reply")

    def __init__(self, meter: Meter, command: Command, reply: Reply) -> None:
        self._meter = meter
        self._command = command
        self._reply = reply

    def answer(self, answer: Answer) -> None:
        self._meter.take("received_per_second", received(self._command, answer))
        self._reply(answer)


class Poll:
    """A command that waits, or something else that does: it counts until it is answered or cancelled."""

    __slots__ = ("_accounts", "_reply", "pending")

    def __init__(self, meter: Meter, reply: Callable[..., None]) -> None:
        self._accounts = list(meter.waiting(1))
        self._reply = reply
        self.pending: Any = None

    def answer(self, *answer: Any) -> None:
        self._end()
        self._reply(*answer)

    def cancel(self) -> None:
        self._end()
        if self.pending:
            self.pending.cancel()

    def give_up(self) -> None:
        if self.pending:
            self.pending.give_up()

    @property
    def is_waiting(self) -> bool:
        return bool(self.pending and self.pending.is_waiting)

    def _end(self) -> None:
        accounts, self._accounts = self._accounts, []
        for account in accounts:
            account.waiting -= 1
