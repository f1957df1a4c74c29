"""Requests with an idempotency key that were answered."""

from __future__ import annotations

from penstock.engine.answered import AnsweredRequest
from penstock.engine.state import EngineState
from penstock.model.events import Answered
from penstock.model.values import Position


def answered(state: EngineState, event: Answered, _: Position) -> None:
    state.answered.forget(event.forgotten, event.key)
    state.answered.add(event.key, AnsweredRequest(event.time, event.digest, event.answer))
