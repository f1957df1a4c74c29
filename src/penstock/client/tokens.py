"""Tokens: who may use the broker, and for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.client.encoding import path, query
from penstock.client.results import Token
from penstock.client.session import Session
from penstock.client.transport import Request
from penstock.limits import SEARCH_PAGE_MAX
from penstock.renamed import has_old_names

_decode = msgspec.json.Decoder(Token).decode


class _Page(Struct):
    tokens: list[Token]
    next: int | None = None


@has_old_names("client.tokens.")
class AsyncTokens:
    """`client.tokens`. Only administrators may use it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        expires: datetime | None = None,
        certificate: str = "",
        limits: Mapping[str, float] | None = None,
    ) -> Token:
        """Create a token. Its secret is in the answer, and nowhere else: `client.tokens.create("shop",
        ["publish:orders*"]).token`

        If the answer is lost, this is not tried again: the secret would be lost with it.
        """
        document = {"scopes": scopes, "expires": expires, "certificate": certificate, "limits": limits or {}}
        return await self._secret("PUT", path("tokens", name), document)

    async def change(
        self,
        name: str,
        *,
        scopes: Sequence[str] | UnsetType = UNSET,
        expires: datetime | UnsetType | None = UNSET,
        limits: Mapping[str, float] | UnsetType = UNSET,
    ) -> Token:
        """Change some fields of a token. Its connections are closed, and continue with what it may do then."""
        given = {"scopes": scopes, "expires": expires, "limits": limits}
        document = {key: value for key, value in given.items() if value is not UNSET}
        return await self._session.change("PATCH", path("tokens", name), Token, document)

    async def rotate(self, name: str, *, grace: float = 0) -> Token:
        """Give a token a new secret, which is in the answer. The old one stays valid for `grace` seconds."""
        return await self._secret("POST", path("tokens", name, "rotate"), {"grace": grace})

    async def get(self, name: str) -> Token:
        """A token, without its secret."""
        return await self._session.get(path("tokens", name), Token)

    async def delete(self, name: str) -> None:
        """End a token and close its connections."""
        await self._session.delete(path("tokens", name))

    async def list(self) -> list[Token]:
        """All tokens, the oldest first."""
        found: list[Token] = []
        offset: int | None = 0
        while offset is not None:
            page = await self._session.get(path("tokens") + query(offset=offset, limit=SEARCH_PAGE_MAX), _Page)
            found += page.tokens
            offset = page.next
        return found

    async def _secret(self, method: str, target: str, document: dict[str, Any]) -> Token:
        request = Request(method, target, msgspec.json.encode(document), repeatable=False)
        return self._session.decoded(request, await self._session.ask(request), _decode)
