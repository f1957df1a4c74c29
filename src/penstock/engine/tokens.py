"""The tokens that exist, also those that have expired."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from penstock.decoding import decode_json
from penstock.engine.rows import Columns
from penstock.limits import TOKENS_PER_SECTION
from penstock.model.tokens import Token


class Tokens:
    def __init__(self) -> None:
        self.by_name: dict[str, Token] = {}  # The oldest first.
        self.admins = 0  # How many may do everything.

    def __len__(self) -> int:
        return len(self.by_name)

    def put(self, name: str, token: Token) -> None:
        before = self.by_name.get(name)
        self.admins += token.is_admin - (before.is_admin if before else False)
        self.by_name[name] = token

    def remove(self, name: str) -> None:
        self.admins -= self.by_name.pop(name).is_admin

    def page(self, offset: int, limit: int) -> list[tuple[str, Token]]:
        return list(islice(self.by_name.items(), offset, offset + limit))

    # ── Snapshots ───────────────────────────────────────────────────────────────────────────────────────────

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        for offset in range(0, len(self), TOKENS_PER_SECTION):
            yield "tokens", msgspec.json.encode(self.page(offset, TOKENS_PER_SECTION)), ()

    def restore(self, facts: bytes) -> None:
        """Take one piece of `sections` back."""
        for name, token in decode_json(facts, list[tuple[str, Token]]):
            self.put(name, token)
