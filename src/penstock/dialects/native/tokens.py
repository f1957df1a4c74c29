"""Tokens in the native API. `docs/access.md` has it in prose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from penstock.dialects.native.looking import Looking, Submit
from penstock.dialects.native.parameters import number, parameters, time_of
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.limits import (
    INT32_MAX,
    NEVER_NS,
    SEARCH_PAGE_DEFAULT,
    SEARCH_PAGE_MAX,
    TOKEN_SCOPES_MAX,
)
from penstock.model.access import scope_of
from penstock.model.answers import Answer, Refused, TokenDescription, TokenList
from penstock.model.times import nanos_of, rfc3339
from penstock.model.tokens import DescribeToken, ListTokens, RevokeToken, RotateToken, SetToken, Token
from penstock.model.values import Nanos

_Scopes = Annotated[list[str], Meta(min_length=1, max_length=TOKEN_SCOPES_MAX)]
_Limit = Annotated[float, Meta(ge=0)]
_Limits = dict[str, _Limit]


class _New(Struct, forbid_unknown_fields=True):
    scopes: _Scopes
    expires: str | float | None = None
    certificate: str = ""
    limits: _Limits = {}


class _Changes(Struct, forbid_unknown_fields=True):
    scopes: _Scopes | UnsetType = UNSET
    expires: str | float | UnsetType | None = UNSET
    limits: _Limits | UnsetType = UNSET


class _Rotation(Struct, forbid_unknown_fields=True):
    grace: Annotated[float, Meta(ge=0, le=INT32_MAX)] = 0


_decode_new = msgspec.json.Decoder(_New).decode
_decode_changes = msgspec.json.Decoder(_Changes).decode
_decode_rotation = msgspec.json.Decoder(_Rotation).decode

Secrets = Callable[[], tuple[str, str]]  # A new secret that cannot be guessed, and its digest.
CheckedLimits = Callable[[dict[str, float]], dict[str, float]]  # Raises `ProtocolError` for limits that are none.


class Known(Protocol):
    """What the broker knows of those who use it."""

    @property
    def has_admins(self) -> bool: ...

    def used(self, name: str) -> Nanos:
        """When a token was last used; 0 if it was not."""


class Tokens:
    """Requests in, commands out; answers in, responses out."""

    def __init__(self, submit: Submit, known: Known, secrets: Secrets, checked_limits: CheckedLimits) -> None:
        self._submit = submit
        self._known = known
        self._secrets = secrets
        self._checked_limits = checked_limits
        self.routes: http.Routes = {
            (b"v1/tokens", 2): {b"GET": self._list, b"HEAD": self._list},
            (b"v1/tokens", 3): {
                b"GET": self._get,
                b"HEAD": self._get,
                b"PUT": self._put,
                b"PATCH": self._patch,
                b"DELETE": self._revoke,
            },
            (b"v1/tokens", 4): {b"POST": self._rotate},
        }

    def _get(self, _: http.Request, segment: bytes) -> http.Call:
        return http.Call(DescribeToken(_name(segment)), self._render)

    def _put(self, request: http.Request, segment: bytes) -> http.Call:
        new = http.decoded(_decode_new, request.body)
        secret, digest = ("", "") if new.certificate else self._secrets()
        token = Token(
            scopes=_scopes(new.scopes),
            digest=digest,
            expires=_time(new.expires),
            certificate=new.certificate and http.checked_text(new.certificate, "certificate"),
            limits=self._checked_limits(new.limits),
        )
        command = SetToken(_name(segment), token, is_new=True, has_admins=self._known.has_admins)
        return http.Call(command, lambda answer: self._render(answer, 201, secret))

    def _patch(self, request: http.Request, segment: bytes) -> http.Awaited:
        """Change some fields; no other change is undone."""
        name, changes = _name(segment), self._changes(http.decoded(_decode_changes, request.body))

        def act(found: Answer, looking: Looking) -> None:
            if not isinstance(found, TokenDescription):
                looking.respond(self._render(found))
                return
            token = replace(found.token, **changes)
            looking.change(SetToken(name, token, has_admins=self._known.has_admins, was=found.token))

        return http.Awaited(Looking(self._submit, request, DescribeToken(name), act, self._render).when_ready)

    def _changes(self, given: _Changes) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if given.scopes is not UNSET:
            changes["scopes"] = _scopes(given.scopes)
        if given.expires is not UNSET:
            changes["expires"] = _time(given.expires)
        if given.limits is not UNSET:
            changes["limits"] = self._checked_limits(given.limits)
        return changes

    def _revoke(self, _: http.Request, segment: bytes) -> http.Call:
        return http.Call(
            RevokeToken(_name(segment), self._known.has_admins),
            lambda answer: http.refusal(answer) if isinstance(answer, Refused) else http.Response(204),
        )

    def _rotate(self, request: http.Request, segment: bytes) -> http.Response | http.Call:
        if segment != b"rotate":
            return http.not_found(request)
        rotation = http.decoded(_decode_rotation, request.body or b"{}")
        secret, digest = self._secrets()
        name = _name(http.segments_of(request.target)[2])
        command = RotateToken(name, digest, nanos_of(rotation.grace))
        return http.Call(command, lambda answer: self._render(answer, 200, secret))

    def _list(self, request: http.Request, _: bytes) -> http.Call:
        given = parameters(request, "offset", "limit")
        offset = number(given, "offset", 0, INT32_MAX, 0)
        limit = number(given, "limit", 1, SEARCH_PAGE_MAX, SEARCH_PAGE_DEFAULT)
        return http.Call(ListTokens(offset, limit), lambda answer: self._page(answer, offset))

    # ── Documents out ───────────────────────────────────────────────────────────────────────────────────────

    def _page(self, answer: Answer, offset: int) -> http.Response:
        if isinstance(answer, Refused):
            return http.refusal(answer)
        assert isinstance(answer, TokenList)
        following = offset + len(answer.tokens)
        shown = [self._document(each) for each in answer.tokens]
        more = following if shown and following < answer.total else None
        return http.json_response(200, {"total": answer.total, "next": more, "tokens": shown})

    def _render(self, answer: Answer, status: int = 200, secret: str = "") -> http.Response:
        if isinstance(answer, Refused):
            return http.refusal(answer)
        assert isinstance(answer, TokenDescription)
        shown = self._document(answer) | ({"token": secret} if secret else {})
        return http.json_response(status, shown, b"Cache-Control: no-store\r\n" if secret else b"")

    def _document(self, found: TokenDescription) -> dict[str, Any]:
        token = found.token
        return {
            "name": found.name,
            "scopes": token.scopes,
            "created": _shown(token.created),
            "expires": _shown(token.expires),
            "last_used": _shown(self._known.used(found.name)),
            "old_secret_until": _shown(token.old_until),
            "certificate": token.certificate or None,
            "limits": token.limits,
        }


def _name(segment: bytes) -> str:
    return http.queue_name(segment, "a token name")


def _scopes(texts: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(scope_of(text).text for text in texts))


def _time(given: str | float | None) -> Nanos:
    """To the microsecond, as documents show it."""
    if given is None:
        return NEVER_NS
    time = time_of(str(given), "expires")
    if not 0 < time < NEVER_NS:
        raise ProtocolError("expires must be a time before the year 2262, or null")
    return time // 1000 * 1000


def _shown(time: Nanos) -> str | None:
    return rfc3339(time).decode() if 0 < time < NEVER_NS else None
