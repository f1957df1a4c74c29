"""Tokens that are set and revoked."""

from __future__ import annotations

from penstock.engine.state import EngineState
from penstock.model.token_events import TokenRevoked, TokenSet
from penstock.model.values import Position


def token_set(state: EngineState, event: TokenSet, _: Position) -> None:
    state.tokens.put(event.token, event.definition)


def token_revoked(state: EngineState, event: TokenRevoked, _: Position) -> None:
    state.tokens.remove(event.token)
