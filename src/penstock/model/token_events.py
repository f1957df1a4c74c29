"""Events of tokens. Readers of the Event Log do not see them."""

from __future__ import annotations

from typing import ClassVar

from penstock.model.event import Event
from penstock.model.kinds import Kind
from penstock.model.tokens import Token


class TokenSet(Event, frozen=True):
    """A token was created, changed or rotated."""

    kind: ClassVar[Kind] = Kind.TOKEN_SET
    token: str  # Its name.
    definition: Token


class TokenRevoked(Event, frozen=True):
    kind: ClassVar[Kind] = Kind.TOKEN_REVOKED
    token: str


TOKEN_EVENTS: tuple[type[Event], ...] = (TokenSet, TokenRevoked)
