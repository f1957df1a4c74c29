"""Why a message is published: because of another one. A header of the new message has the id of the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

HEADER = "caused-by"

_cause: ContextVar[str] = ContextVar("penstock_cause", default="")


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


@contextmanager
def caused_by(message: _HasId | str) -> Iterator[None]:
    """What is published inside names this message, or the one with this id, as its cause.

    `with caused_by(order): client.publish("parcels", …)`

    A worker does so for each job that it runs.
    """
    before = _cause.set(message if isinstance(message, str) else message.id)
    try:
        yield
    finally:
        _cause.reset(before)


def set_cause(id: str) -> None:
    """For the rest of the current context."""
    _cause.set(id)


def with_cause(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The headers of a message that is published now. A cause among them stays."""
    cause = _cause.get()
    return {HEADER: cause, **(headers or {})} if cause else headers
