"""What happened to one message, from an event about it alone or about many."""

from __future__ import annotations

from msgspec import Struct

from penstock.model.events import DeadLettered, MessageEvent, MessageRun
from penstock.model.kinds import Kind
from penstock.model.values import Nanos


class Happening(Struct, frozen=True, gc=False, array_like=True):
    kind: Kind
    time: Nanos
    created: Nanos = 0  # When the message was logged.
    consumer: int = 0
    result: bytes = b""
    is_held: bool = False  # A dead letter that its last consumer still has.


def happening(event: MessageEvent) -> Happening:
    result = getattr(event, "result", b"")
    is_held = isinstance(event, DeadLettered) and event.fetched
    return Happening(event.kind, event.time, event.created, event.consumer, result, is_held)


def happening_in(run: MessageRun, at: int) -> Happening:
    return Happening(run.kind, run.time, run.created[at], run.consumer[at])
