"""Commands for tokens: see `commands`."""

from __future__ import annotations

from penstock.model.commands import Command
from penstock.model.tokens import Token
from penstock.model.values import Nanos


class SetToken(Command, frozen=True):
    """Create a token, or change the one that has this name. `has_admins`: the settings name other administrators.
    `was`: only if it is like this until now. Absent: however it is."""

    name: str
    token: Token
    is_new: bool = False
    has_admins: bool = False
    was: Token | None = None


class RotateToken(Command, frozen=True):
    """Give a token a new secret. The old one stays valid for `grace_ns`."""

    name: str
    digest: str
    grace_ns: Nanos = 0


class RevokeToken(Command, frozen=True):
    name: str
    has_admins: bool = False  # As in `SetToken`.


class DescribeToken(Command, frozen=True):
    name: str


class ListTokens(Command, frozen=True):
    offset: int = 0
    limit: int = 1
