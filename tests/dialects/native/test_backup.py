"""Whoever reads a backup reads everything, and the key of all message ids: that takes an admin."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dialects.native.backup import Backup
from penstock.dialects.wire.http import Request
from penstock.errors import Reason, RequestError
from penstock.model.access import Access, scope_of

TARGETS = (b"/v1/backup", b"/v1/backup/log?from=0&to=1", b"/v1/backup/snapshot?offset=1", b"/v1/backup/history")


@pytest.mark.parametrize("target", TARGETS)
def test_only_an_admin_may_read_a_backup(target: bytes) -> None:
    reader: Any = None
    asked: list[Any] = []

    def later(answer: Any) -> Any:
        answer.close()
        asked.append(answer)

    routes = Backup(reader, later).routes
    path = target.partition(b"?")[0].strip(b"/").split(b"/")
    handle = routes[b"v1/backup", len(path)][b"GET"]
    for scopes in ("read:*", "publish,consume,read,manage:*", "admin:orders"):
        access = Access("somebody", [scope_of(scopes)])
        with pytest.raises(RequestError) as refused:
            handle(Request(b"GET", target, {}, access=access), path[-1])
        assert refused.value.error is Reason.FORBIDDEN
    handle(Request(b"GET", target, {}, access=Access("operator", [scope_of("admin:*")])), path[-1])
    assert len(asked) == 1
