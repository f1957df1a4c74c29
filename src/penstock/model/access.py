"""Who may do what: verbs, scopes, and the access that an identity has.

A scope is verbs and names, such as `publish,consume:orders*,jobs`. A name may contain `*`, which stands for any text;
there are no other wildcards. Names are those of queues, channels, topics, schedules and objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from penstock.errors import ProtocolError
from penstock.limits import ACCESS_KNOWN_MAX, NAME_BYTES_MAX
from penstock.remembering import remembered

EVERY_NAME = "*"
SOME_NAME = ""  # In a need: the verb is needed somewhere, wherever that is.
OWN_QUEUES = frozenset(("_audit",))  # Queues of the broker itself.


def is_own(name: str) -> bool:
    """Whether a name, or the topic that it is, leads to a queue of the broker itself."""
    return name.startswith("_") and name.partition(".")[0] in OWN_QUEUES


class Verb(StrEnum):
    PUBLISH = "publish"
    CONSUME = "consume"
    READ = "read"
    MANAGE = "manage"
    ADMIN = "admin"  # Includes all others.


Kind = Literal["anonymous", "settings", "token", "jwt", "certificate"]  # Where an identity comes from.
Need = tuple[tuple[Verb, ...], str]  # One of these verbs on this name.

_LOOKS = (Verb.READ, Verb.CONSUME, Verb.MANAGE)


class Scope(Struct, frozen=True):
    """Verbs that are allowed on names."""

    verbs: frozenset[Verb]
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{','.join(verb for verb in Verb if verb in self.verbs)}:{','.join(self.names)}"

    def allows(self, verb: Verb, name: str) -> bool:
        is_admin = Verb.ADMIN in self.verbs
        if not is_admin and verb not in self.verbs:
            return False
        if name == SOME_NAME:
            return True
        must_be_explicit = is_own(name) and not is_admin
        return any(
            matches(pattern, name) and (pattern.startswith("_") or not must_be_explicit) for pattern in self.names
        )


@remembered(4096)
def scope_of(text: str) -> Scope:
    """A scope from its text; without names, it is for every name. Raises `ProtocolError`."""
    verbs, colon, names = text.partition(":")
    words = [word.strip() for word in verbs.split(",")]
    unknown = [word for word in words if word not in frozenset(Verb)]
    if unknown:
        raise ProtocolError(f"a scope is verbs:names; {unknown[0]!r} is not one of {', '.join(Verb)}")
    patterns = names.split(",") if colon else [EVERY_NAME]
    if not all(1 <= _bytes_of(pattern) <= NAME_BYTES_MAX for pattern in patterns):
        raise ProtocolError(f"each name of a scope has 1 to {NAME_BYTES_MAX} bytes of UTF-8: {text!r}")
    return Scope(frozenset(map(Verb, words)), tuple(dict.fromkeys(patterns)))


def _bytes_of(pattern: str) -> int:
    """The size of a name; 0 if it is no text, since JSON may have halves of characters."""
    try:
        return len(pattern.encode())
    except UnicodeEncodeError:
        return 0


def matches(pattern: str, name: str) -> bool:
    """Whether a name is covered by a pattern. A star in the name is a character like any other."""
    first, *pieces = pattern.split("*")
    if not pieces:
        return pattern == name
    last = pieces.pop()
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in pieces:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


class Access:
    """What one identity may do. Compared by identity: each secret has an access of its own.

    Nobody publishes to, consumes or manages the broker's own queues. To read one, a scope must be for `admin`, or
    name it with a pattern that begins with `_` too.
    """

    __slots__ = ("_known", "kind", "limits", "name", "scopes")

    def __init__(
        self, name: str, scopes: Iterable[Scope], limits: Mapping[str, float] | None = None, kind: Kind = "token"
    ) -> None:
        self.name = name
        self.kind = kind
        self.scopes = tuple(scopes)
        self.limits: Mapping[str, float] = limits or {}
        self._known: dict[Need, bool] = {}  # What was decided before.

    def __repr__(self) -> str:
        return f"Access({self.name!r}, {[scope.text for scope in self.scopes]})"

    @property
    def identity(self) -> str:
        """Whose this is. An identity provider may sign any name: its names are not those of tokens."""
        return f"jwt:{self.name}" if self.kind == "jwt" else self.name

    @property
    def sees_all(self) -> bool:
        """Nothing has to be left out of what it reads."""
        return self.may(Verb.ADMIN, EVERY_NAME)

    def allows(self, need: Need) -> bool:
        known = self._known.get(need)
        if known is None:
            if len(self._known) >= ACCESS_KNOWN_MAX:
                self._known.clear()
            known = self._known[need] = self._decide(*need)
        return known

    def may(self, verb: Verb, name: str) -> bool:
        return self.allows(((verb,), name))

    def sees(self, name: str) -> bool:
        """Whether lists show it. What is in it, only those see who may read it."""
        return self.allows((_LOOKS, name))

    def reads(self, name: str | None) -> bool:
        """Whether it sees messages of a queue. None: of a queue whose name is not known any more."""
        return self.may(Verb.READ, EVERY_NAME if name is None else name)

    def _decide(self, verbs: tuple[Verb, ...], name: str) -> bool:
        if is_own(name):
            verbs = tuple(verb for verb in verbs if verb in (Verb.READ, Verb.ADMIN))
        return any(scope.allows(verb, name) for verb in verbs for scope in self.scopes)


class _Everything(Access):
    """May do all, also with the broker's own names."""

    __slots__ = ()

    def allows(self, need: Need) -> bool:  # noqa: ARG002 - Whatever is needed.
        return True


ADMIN = Scope(frozenset((Verb.ADMIN,)), (EVERY_NAME,))
EVERYTHING = _Everything("", (ADMIN,), kind="anonymous")  # Everybody on a broker without tokens.
NOBODY = Access("", (), kind="anonymous")  # Who has not shown a token yet.


@lru_cache(maxsize=ACCESS_KNOWN_MAX)
def allowed(access: Access) -> Access:
    """The same client, for a question to another shard that is part of what it was allowed already."""
    return access if access.sees_all else Access(access.name, (ADMIN,), access.limits, access.kind)
