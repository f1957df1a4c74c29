"""What administrative commands change: the name of the act, what it is about, and the settings before and after.

Nothing secret is shown: of an address for pushes only what leads to it, of a message only its size, of a token only
what it may do.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS
from penstock.model import commands
from penstock.model.audit import ACTS
from penstock.model.commands import Command
from penstock.model.schedules import DeleteSchedule, Schedule, SetSchedule
from penstock.model.settings import QueueSettings, as_written, seconds
from penstock.model.times import rfc3339
from penstock.model.tokens import RevokeToken, RotateToken, SetToken, Token
from penstock.model.values import Place

Settings = dict[str, Any]

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
