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
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.broker.services.contract import Service, resolve, unrefused
from penstock.broker.writer.port import ClientPort, Reply, ServicePort, through
from penstock.config.config import AuditConfig
from penstock.engine.engine import Engine
from penstock.errors import ErrorCode, Fault, Reason, RequestError
from penstock.ids import MessageIds
from penstock.limits import AUDIT_REFUSALS_MAX, AUDIT_WINDOW_SECONDS, NEVER_NS, SECOND_NS
from penstock.model import commands
from penstock.model.access import NOBODY, Access
from penstock.model.answers import Answer, Refused
from penstock.model.audit import ACTS, AUDIT_QUEUE, ENDS, Actor, actor_of
from penstock.model.client import Client
from penstock.model.commands import Command, NewMessage, Publish, Purge, Redrive, UpdateQueue
from penstock.model.schedules import DeleteSchedule, Schedule, SetSchedule
from penstock.model.settings import QueueSettings, as_written, seconds
from penstock.model.times import rfc3339
from penstock.model.tokens import RevokeToken, RotateToken, SetToken, Token
from penstock.model.values import Nanos, Place, Stage

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0
_encode = msgspec.json.Encoder().encode

Settings = dict[str, Any]

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


# What administrative commands change: the name of the act, what it is about, and the settings before and after.
# Nothing secret is shown: of an address for pushes only what leads to it, of a message only its size, of a token
# only what it may do.


_PUSH_SHOWN = frozenset(("url", "max_in_flight", "timeout"))
HIDDEN = "(hidden)"
_OF_QUEUES = (commands.CreateQueue, commands.UpdateQueue, commands.DeleteQueue)
_OF_SCHEDULES = (SetSchedule, DeleteSchedule)
_OF_TOKENS = (SetToken, RotateToken, RevokeToken)


def act_of(command: Command, engine: Engine) -> str:
    """The name of an act. Channels are queues with topics."""
    act = ACTS[type(command)]
    kind, _, done = act.partition(".")
    if kind != "queue":
        return act
    queue = engine.queue(target_of(command, engine))
    settings = getattr(command, "settings", None) or (queue.settings if queue else None)
    return f"channel.{done}" if settings and settings.topics else act


def target_of(command: Command, engine: Engine) -> str:
    """The queue, channel or schedule that a command names; empty if it names a queue that is gone."""
    name: Any = getattr(command, "name", None) or getattr(command, "queue", "")
    if isinstance(name, str):
        return name
    queue = engine.queues.get(name)
    return queue.name if queue else ""


def place_of(command: Command) -> Place | None:
    """The message that a command names."""
    if isinstance(command, commands.Delete | commands.Cancel | commands.Reschedule):
        return command.queue, command.sequence
    return None


def settings_of(command: Command, engine: Engine) -> Settings | None:
    """The settings that an act may change, as they are now. None: there is nothing yet, or nothing any more."""
    if isinstance(command, _OF_QUEUES):
        queue = engine.queue(command.name)
        return as_written(queue.settings) if queue else None
    if isinstance(command, _OF_SCHEDULES):
        planned = engine.schedules.by_name.get(command.name)
        return _schedule(planned.definition) if planned else None
    if isinstance(command, _OF_TOKENS):
        token = engine.tokens.by_name.get(command.name)
        return _token(token) if token else None
    return None


def changes(command: Command, before: Settings | None, after: Settings | None) -> tuple[Settings, Settings]:
    """The settings that an act has changed, as they were and as they are. Of something new, or gone, those that were
    not left at their defaults."""
    kind = next((kind for kind in _DEFAULTS if isinstance(command, kind)), ())
    defaults = _DEFAULTS.get(kind, {})
    old, new = before or defaults, after or defaults
    names = [name for name in old | new if old.get(name) != new.get(name)]
    return _shown(before or {}, names), _shown(after or {}, names)


def _schedule(definition: Schedule) -> Settings:
    timing = {"cron": definition.cron, "time_zone": definition.time_zone, "every": seconds(definition.every_ns)}
    return {
        "queue": definition.queue,
        "topics": definition.topics,
        **timing,
        "start": None if definition.start is None else rfc3339(definition.start).decode(),
        "catch_up": definition.catch_up,
        "paused": definition.paused,
        "message_bytes": len(definition.body),
    }


def _token(token: Token) -> Settings:
    """Without its secrets, nor the digests of them."""
    return {
        "scopes": token.scopes,
        "expires": None if token.expires == NEVER_NS else rfc3339(token.expires).decode(),
        "old_secret_until": rfc3339(token.old_until).decode() if token.old_until else None,
        "certificate": token.certificate,
        "limits": token.limits,
    }


def _shown(settings: Settings, names: list[str]) -> Settings:
    shown = {name: settings[name] for name in names if name in settings}
    if isinstance(shown.get("push"), dict):
        shown["push"] = _push(shown["push"])
    return shown


def _push(push: Settings) -> Settings:
    shown = {name: value if name in _PUSH_SHOWN else HIDDEN for name, value in push.items()}
    return shown | {"url": _without_secrets(str(push["url"]))}


def _without_secrets(url: str) -> str:
    """Where a URL leads, without a password in it, and without parameters, which may be secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = f"?{HIDDEN}" if parts.query else ""
    return f"{parts.scheme}://{host}{parts.path}{query}"


_DEFAULTS = {
    _OF_QUEUES: as_written(QueueSettings()),
    _OF_SCHEDULES: _schedule(Schedule()),
    _OF_TOKENS: _token(Token(scopes=())),
}


# Refusals that repeat: the first is recorded at once, the others of the same minute are counted in one record. So a
# client that tries again and again, or somebody who tries many tokens, cannot fill the log.


_WINDOW_NS = AUDIT_WINDOW_SECONDS * SECOND_NS
_SEVERAL = Actor("(several)", "", "", "")


class Refusal(NamedTuple):
    """What was refused. Equal ones are counted together."""

    actor: Actor
    act: str
    target: str
    code: str


class Counted(NamedTuple):
    """Refusals that came after the first one."""

    refusal: Refusal
    times: int
    since: Nanos


class Refusals:
    """The refusals of the last minute. If they are too many to be kept apart, only their act and code are."""

    def __init__(self) -> None:
        self._windows: dict[Refusal, tuple[Nanos, int]] = {}  # When each began, and how many came since.

    def is_first(self, refusal: Refusal, now: Nanos) -> bool:
        """Whether to record it now. If not, it is counted."""
        if refusal not in self._windows and len(self._windows) >= AUDIT_REFUSALS_MAX:
            refusal = Refusal(_SEVERAL, refusal.act, "", refusal.code)
            self._windows.setdefault(refusal, (now, 0))
        began, count = self._windows.get(refusal, (now, -1))
        self._windows[refusal] = began, count + 1
        return count < 0

    def ended(self, now: Nanos | None) -> list[Counted]:
        """Those whose minute is over, and that have come again in it. None: all."""
        over = [
            (refusal, began, count)
            for refusal, (began, count) in self._windows.items()
            if now is None or now - began >= _WINDOW_NS
        ]
        for refusal, _, _ in over:
            del self._windows[refusal]
        return [Counted(refusal, count, began) for refusal, began, count in over if count]
