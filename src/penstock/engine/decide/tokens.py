"""Tokens: set, rotated, revoked and described. Somebody must always be able to manage them."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.engine.decide.draft import Draft, RefusedError
from penstock.errors import Reason
from penstock.limits import TOKENS_MAX
from penstock.model.answers import CHANGED_MEANWHILE, Done, Refused, TokenDescription, TokenList
from penstock.model.tokens import (
    DescribeToken,
    ListTokens,
    RevokeToken,
    RotateToken,
    SetToken,
    Token,
    TokenRevoked,
    TokenSet,
)

_DONE = Done()


def set_token(draft: Draft, command: SetToken) -> TokenDescription | Refused:
    tokens, token = draft.state.tokens, command.token
    before = tokens.by_name.get(command.name)
    if before and command.is_new:
        return Refused(Reason.TOKEN_EXISTS, command.name)
    if before is None and not command.is_new:
        return Refused(Reason.NO_TOKEN, command.name)
    if command.was not in (None, before):
        return CHANGED_MEANWHILE
    if before is None and len(tokens) >= TOKENS_MAX:
        return Refused(Reason.TOO_MANY_TOKENS, str(TOKENS_MAX))
    if token.expires <= draft.wall and (before is None or token.expires != before.expires):
        return Refused(Reason.EXPIRES_IN_THE_PAST, command.name)
    admins = tokens.admins + token.is_admin - (before.is_admin if before else False)
    if not admins and not command.has_admins:
        return Refused(Reason.NO_ADMIN, command.name)
    return _set(draft, command.name, replace(token, created=before.created if before else draft.wall))


def rotate_token(draft: Draft, command: RotateToken) -> TokenDescription | Refused:
    token = _find(draft, command.name)
    if not token.digest:
        return Refused(Reason.NO_SECRET, command.name)
    until = draft.wall + command.grace_ns if command.grace_ns else 0
    old = {"old_digest": token.digest, "old_until": until} if until else {"old_digest": "", "old_until": 0}
    return _set(draft, command.name, replace(token, digest=command.digest, **old))


def _set(draft: Draft, name: str, token: Token) -> TokenDescription:
    draft.events.append(TokenSet(draft.now, name, token))
    return TokenDescription(name, token)


def revoke_token(draft: Draft, command: RevokeToken) -> Done | Refused:
    token, tokens = _find(draft, command.name), draft.state.tokens
    others = len(tokens) - 1
    if others and not tokens.admins - token.is_admin and not command.has_admins:
        return Refused(Reason.NO_ADMIN, f"{command.name} is the last one, and there are {others} other tokens")
    draft.events.append(TokenRevoked(draft.now, command.name))
    return _DONE


def describe_token(draft: Draft, command: DescribeToken) -> TokenDescription:
    return TokenDescription(command.name, _find(draft, command.name))


def list_tokens(draft: Draft, command: ListTokens) -> TokenList:
    tokens = draft.state.tokens
    page = tokens.page(command.offset, command.limit)
    return TokenList(len(tokens), [TokenDescription(name, token) for name, token in page])


def _find(draft: Draft, name: str) -> Token:
    token = draft.state.tokens.by_name.get(name)
    if token is None:
        raise RefusedError(Refused(Reason.NO_TOKEN, name))
    return token
