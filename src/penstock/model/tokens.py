"""Tokens: names for clients, with what they may do. Their secrets are stored only as digests."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from penstock.limits import NEVER_NS
from penstock.model.access import EVERY_NAME, Access, Verb, scope_of
from penstock.model.access import Kind as AccessKind
from penstock.model.commands import Command
from penstock.model.kinds import Event, Kind
from penstock.model.values import Nanos


class Token(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`old_digest`: that of the secret before the last rotation, which is valid until `old_until`."""

    scopes: tuple[str, ...]
    digest: str = ""  # SHA-256 in hex. Empty: it has no secret, but a certificate.
    old_digest: str = ""
    old_until: Nanos = 0
    created: Nanos = 0
    expires: Nanos = NEVER_NS
    certificate: str = ""  # The subject name of a client certificate.
    limits: dict[str, float] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """What identifies its clients: digests of secrets, or its certificate."""
        return tuple(
            filter(None, (self.digest, self.old_digest, self.certificate and certificate_key(self.certificate)))
        )

    def keys_at(self, now: Nanos) -> tuple[str, ...]:
        """Those of its keys that are valid at this time."""
        if self.expires <= now:
            return ()
        return tuple(key for key in self.keys if key != self.old_digest or self.old_until > now)

    def next_end(self, now: Nanos) -> Nanos:
        """When one of its keys ends next."""
        return min((time for time in (self.expires, self.old_until) if time > now), default=NEVER_NS)

    def access(self, name: str) -> Access:
        kind: AccessKind = "certificate" if self.certificate else "token"
        return Access(name, map(scope_of, self.scopes), self.limits, kind)

    @property
    def is_admin(self) -> bool:
        return any(scope_of(text).allows(Verb.ADMIN, EVERY_NAME) for text in self.scopes)


def certificate_key(subject: str) -> str:
    return f"certificate {subject}"


# ── Events: readers of the Event Log do not see them ──────────────────────────────────────────────────────────


class TokenSet(Event, frozen=True):
    """A token was created, changed or rotated."""

    kind: ClassVar[Kind] = Kind.TOKEN_SET
    token: str  # Its name.
    definition: Token


class TokenRevoked(Event, frozen=True):
    kind: ClassVar[Kind] = Kind.TOKEN_REVOKED
    token: str


TOKEN_EVENTS: tuple[type[Event], ...] = (TokenSet, TokenRevoked)


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────


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
