"""The audit: every administrative act, and every refusal, is a message of the broker's own queue `_audit`.

    command ─► decide (READY) ─► Publish(_audit) ─┐ both are in one batch of the log
    client  ◄─ answer ◄── the batch is durable ◄──┘

The act is decided first, because only then is it known whether it was carried out. Its record is submitted in the
same turn, so it joins the batch that holds the act: after a crash there are both, or neither. The client is answered
when that batch is durable (ADR 35).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.broker.services.audit_changes import Settings, act_of, changes, place_of, settings_of, target_of
from penstock.broker.services.audit_refusals import Refusal, Refusals
from penstock.broker.services.contract import Service, resolve, unrefused
from penstock.broker.writer.port import ClientPort, Reply, ServicePort, through
from penstock.config.config import AuditConfig
from penstock.errors import ErrorCode, Fault, Reason, RequestError
from penstock.ids import MessageIds
from penstock.limits import SECOND_NS
from penstock.model.access import NOBODY, Access
from penstock.model.answers import Answer, Refused
from penstock.model.audit import ACTS, AUDIT_QUEUE, ENDS, Actor, actor_of
from penstock.model.client import Client
from penstock.model.commands import Command, NewMessage, Publish, Purge, Redrive, UpdateQueue
from penstock.model.settings import QueueSettings
from penstock.model.times import rfc3339
from penstock.model.values import Nanos, Stage

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0
_encode = msgspec.json.Encoder().encode

RecordEnd = Callable[[Settings], None]
"""Records what an act of many steps has done. Nobody waits for that."""


class Record(Struct):
    """The body of a message in `_audit`. `docs/audit.md` explains the fields."""

    time: str
    who: str
    identity: str
    address: str
    dialect: str
    act: str
    target: str
    outcome: Literal["done", "refused"] = "done"
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    before: Settings | UnsetType = UNSET
    after: Settings | UnsetType = UNSET
    count: int | UnsetType = UNSET
    since: str | UnsetType = UNSET


class _Act(Struct, frozen=True):
    """An act that is not decided yet."""

    client: Client
    command: Command
    name: str
    target: str
    before: Settings | None
    reply: Reply
    stage: Stage


class Audit(Service):
    def __init__(self, writer: ServicePort, ids: MessageIds, config: AuditConfig) -> None:
        super().__init__(writer)
        self._ids = ids
        self._enabled, self._records_max = config.enabled, config.records_max
        self._settings = QueueSettings(keep="all", retention_ns=config.retention_seconds * SECOND_NS)
        self._refusals = Refusals()
        self.records: ClientPort = writer  # Where they are kept.

    # ── Acts ────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, client: Client, command: Command, reply: Reply, stage: Stage) -> None:
        """Carry out an administrative command, and record it."""
        writer = self.writer
        if not self._enabled:
            writer.submit(command, reply, stage)
            return
        writer.decide_collected()
        engine = writer.engine
        name, target, before = act_of(command, engine), target_of(command, engine), settings_of(command, engine)
        act = _Act(client, command, name, target, before, reply, stage)
        writer.submit(command, partial(self._decided, act), Stage.READY)  # Answered within this call.

    def _decided(self, act: _Act, answer: Answer) -> None:
        chosen = partial(_chosen, answer)
        answered = through(act.reply, lambda reached: act.reply(chosen(reached)), chosen)
        if isinstance(answer, Refused):
            self.refuse(act.client, act.name, act.target, answer.reason)
            self.writer.reach(act.stage, answered)
            return
        record = self._record(actor_of(act.client), act.name, act.target)
        if place := place_of(act.command):
            record.message = self._ids.make(*place).decode()
        before, after = changes(act.command, act.before, settings_of(act.command, self.writer.engine))
        record.before, record.after = before or UNSET, after or UNSET
        self._publish(record, answered, act.stage)

    async def begin(self, client: Client, command: Purge | Redrive, after: Settings) -> RecordEnd:
        """Record an act of many steps before the first of them. Returns how to record what it has done. Raises
        `RequestError` if it must not begin."""
        engine = self.writer.engine
        act = act_of(command, engine)
        for name in (command.queue, getattr(command, "to", "")):
            if name and engine.queue(name) is None and not engine.is_elsewhere(name):
                self.refuse(client, act, command.queue, Reason.NO_QUEUE)
                raise RequestError(Reason.NO_QUEUE, name)
        await self.note(client, act, command.queue, after)
        ended = f"{act.partition('.')[0]}.{ENDS[type(command)]}"
        return partial(self._ended, actor_of(client), ended, command.queue)

    def _ended(self, actor: Actor, act: str, target: str, after: Settings) -> None:
        if self._enabled:
            record = self._record(actor, act, target)
            record.after = after
            self._publish(record)

    async def note(self, client: Client, act: str, target: str = "", after: Settings | None = None) -> None:
        """Returns when the record of an act is durable. Raises `RequestError` if it cannot be written."""
        if self._enabled:
            record = self._record(actor_of(client), act, target)
            record.after = after or UNSET
            recorded = asyncio.get_running_loop().create_future()
            self._publish(record, partial(resolve, recorded))
            unrefused(await recorded)

    # ── Refusals ────────────────────────────────────────────────────────────────────────────────────────────

    def refuse(self, client: Client, act: str, target: str, error: ErrorCode) -> None:
        """Record that something was refused. Nobody waits for that."""
        if not self._enabled or error is Reason.UNAVAILABLE:
            return
        refusal = Refusal(actor_of(client), act, target, error.code)
        if self._refusals.is_first(refusal, self.writer.now()):
            self._publish(self._refused(refusal))

    def forbid(self, client: Client, command: Command, refused: Refused) -> None:
        """Record that a client may not send a command: by the name of the act, or by the verb that it needs."""
        verbs, _, name = refused.detail.partition(" on ")
        if type(command) in ACTS:
            engine = self.writer.engine
            self.refuse(client, act_of(command, engine), target_of(command, engine), refused.reason)
        else:
            self.refuse(client, verbs.partition(" or ")[0], name, refused.reason)

    def login(self, client: Client, identify: Callable[[str], Access], token: str) -> Access:
        """The access that a token grants. Records if it grants none."""
        access = identify(token)
        if access is NOBODY:
            self.refuse(client, "login", "", Fault.UNAUTHORIZED)
        return access

    def _write_counted(self, now: Nanos | None) -> None:
        for refusal, times, since in self._refusals.ended(now):
            record = self._refused(refusal)
            record.count, record.since = times, rfc3339(since).decode()
            self._publish(record)

    def _refused(self, refusal: Refusal) -> Record:
        record = self._record(refusal.actor, refusal.act, refusal.target)
        record.outcome, record.code = "refused", refusal.code
        return record

    # ── The queue ───────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Write what was counted, and keep the queue as it is meant to be."""
        while self._enabled:
            self._write_counted(self.writer.now())
            await self._keep()
            await self.rest(_CHECK_SECONDS)

    async def close(self) -> None:
        self._write_counted(None)
        await super().close()

    async def _keep(self) -> None:
        """Give the queue its settings, and remove the oldest records if there are too many."""
        queue = self.writer.engine.queue(AUDIT_QUEUE)
        if queue is None:
            return
        if queue.settings != self._settings:
            await self.ask(UpdateQueue(AUDIT_QUEUE, self._settings))
        after: int | None = 0 if queue.rows.count > self._records_max else None
        last = queue.last_sequence - self._records_max
        while after is not None:
            purged = await self.ask(Purge(AUDIT_QUEUE, queue.number, after, last))
            after = None if isinstance(purged, Refused) else purged.after

    def _record(self, actor: Actor, act: str, target: str) -> Record:
        who, identity, address, dialect = actor
        return Record(rfc3339(self.writer.now()).decode(), who, identity, address, dialect, act, target)

    def _publish(self, record: Record, reply: Reply = lambda _: None, stage: Stage = Stage.SYNC) -> None:
        message = NewMessage(_encode(record), "application/json")
        published = through(reply, partial(_published, reply))
        self.records.submit(Publish(AUDIT_QUEUE, (message,), self._settings), published, stage)


def _published(reply: Reply, receipts: Any) -> None:
    if isinstance(receipts, Refused):
        logger.error("audit_not_written", extra={"reason": receipts.sentence})
    reply(receipts)


def _chosen(answer: Answer, reached: Any) -> Any:
    """The answer to an act, unless the log has failed, or its record was refused."""
    return reached if isinstance(reached, Refused) else answer
