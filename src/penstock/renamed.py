"""Names that were replaced. An old name works until 1.0, warns, and says what it is called now.

The table is all there is to a rename: settings, arguments, methods, options of tasks, verbs of the command line and
fixtures look here, and nothing else knows an old name. `docs/naming.md` has the rules, and shows the table.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple, ParamSpec, TypeVar

from penstock.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_FOLDER = __file__.removesuffix("renamed.py")


class BothNamesError(ConfigError, TypeError):
    """Something is given under its old name and under its new one."""


class DeprecatedName(DeprecationWarning):
    """A name that works until 1.0 was used. The sentence has the new one."""


def _same(value: Any) -> Any:
    return value


class Renamed(NamedTuple):
    """One row of the table."""

    old: str
    new: str
    since: str = "0.3"
    to_new: Callable[[Any], Any] = _same  # A value that is given under the old name, as the new name has it,
    to_old: Callable[[Any], Any] = _same  # and the other way round, for answers that show both.
    find: Callable[[Any], Any] | None = None  # How an attribute is found on its object, if not by the new name.


PACKAGE = "penstock."
SETTINGS = "queue setting "
BROKER_SETTINGS = "broker setting "
TASK_OPTIONS = "task option "
FIXTURES = "pytest fixture "
SEND_OPTIONS = "option of with_options "

_VERBS = (Renamed("ls", "list"), Renamed("add", "create"), Renamed("set", "change"), Renamed("rm", "delete"))

_OF_BROKER = (
    *("publish", "publish_many", "handle", "client", "run", "blocking", "declare", "policies"),
    *("create_progress_queue", "progress_queue", "after_fork"),
)


def _event(old: str, event: str) -> Renamed:
    return Renamed(old, f'on("{event}")', find=methodcaller("on", event))


# By where the names are used, as a sentence about one of them begins.
RENAMED: dict[str, tuple[Renamed, ...]] = {
    PACKAGE: (Renamed("JobFailed", "MessageFailed"),),
    "client.": (
        Renamed("publish(None, …)", "publish_to"),
        Renamed("publish_many(None, …)", "publish_many_to"),
    ),
    "client.channels.": (Renamed("subscribe", "create"),),
    "client.schedules.": (Renamed("put", "create"), Renamed("patch", "change")),
    "client.tokens.": (Renamed("revoke", "delete"),),
    "client.workers.": (Renamed("remove", "delete"),),
    "penstock ": (Renamed("token", "tokens"),),
    "penstock queues ": _VERBS,
    "penstock channels ": _VERBS,
    "penstock schedules ": _VERBS,
    "penstock tokens ": (Renamed("set", "change"), Renamed("revoke", "delete")),
    SETTINGS: (
        Renamed("visibility_timeout", "lease"),
        Renamed("retries", "max_attempts", to_new=lambda most: most or None, to_old=lambda most: most or 0),
    ),
    "app.": (
        _event("on_start", "start"),
        _event("on_stop", "stop"),
        _event("before_task", "before"),
        _event("after_task", "after"),
        _event("on_failure", "failure"),
        *(Renamed(old, f"broker.{old}") for old in _OF_BROKER),
        Renamed("starting", "hooks.start"),
        Renamed("stopping", "hooks.stop"),
        Renamed("before", "hooks.before"),
        Renamed("after", "hooks.after"),
        Renamed("failed", "hooks.failure"),
    ),
    TASK_OPTIONS: (
        Renamed("retries", "max_attempts", to_new=lambda more: None if more is None else more + 1),
        Renamed("backoff", "retry_backoff"),
        Renamed("delay", "retry_delay"),
        Renamed("delay_max", "retry_delay_max"),
        Renamed("jitter", "retry_jitter"),
    ),
    FIXTURES: (Renamed("penstock", "penstock_broker"),),
    SEND_OPTIONS: (Renamed("key", "idempotency_key"),),
    BROKER_SETTINGS: (
        Renamed("topics.visibility_seconds", "topics.lease_seconds"),
        Renamed("topics.retries", "topics.max_attempts"),
    ),
}


def successors(place: str) -> dict[str, Renamed]:
    """The rows of a place by their old names."""
    return {row.old: row for row in RENAMED.get(place, ())}


def deprecated(place: str, old: str) -> Renamed:
    """Warn that an old name was used; its row. The warning is about the line outside of this package."""
    row = successors(place)[old]
    sentence = f"{place}{old} is deprecated since {row.since} and works until 1.0: use {row.new}"
    warnings.warn(sentence, DeprecatedName, stacklevel=_level_of_caller())
    return row


def with_new_names(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, under its new names. Raises `BothNamesError` if something is given under both of its names."""
    found = dict(given)
    for row in RENAMED[place]:
        if row.old in given:
            if row.new in given:
                raise BothNamesError(f"{place}{row.old} is the old name of {row.new}: give only {row.new}")
            found[row.new] = deprecated(place, row.old).to_new(found.pop(row.old))
    return found


def with_old_names(place: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown, under its old names too: so programs of the version before find what they expect."""
    return {**shown, **{row.old: row.to_old(shown[row.new]) for row in RENAMED[place] if row.new in shown}}


def takes_old_names(place: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function: keyword arguments may have their old names too."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **with_new_names(place, kwargs))

        return call

    return decorate


def has_old_names(place: str) -> Callable[[C], C]:
    """For a class: its attributes and methods are found by their old names too."""

    def decorate(kind: C) -> C:
        for row in RENAMED[place]:
            setattr(kind, row.old, _old_attribute(place, row))
        return kind

    return decorate


def by_old_name(module: str, name: str, find: Callable[[str], Any]) -> Any:
    """What a module of the package has under an old name, for its `__getattr__`. `find`: by a new name."""
    if name not in successors(PACKAGE):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return find(deprecated(PACKAGE, name).new)


def _old_attribute(place: str, row: Renamed) -> property:
    find = row.find or attrgetter(row.new)

    def found(self: Any) -> Any:
        return deprecated(place, row.old).to_old(find(self))

    found.__doc__ = f"Deprecated: use `{row.new}`."
    return property(found)


def _level_of_caller() -> int:
    """How many frames above `warnings.warn` the first one is that is not of this package."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith((_FOLDER, "<frozen importlib")):
        level += frame.f_code.co_filename.startswith(_FOLDER)  # `warnings` does not count the others.
        frame = frame.f_back
    return level
