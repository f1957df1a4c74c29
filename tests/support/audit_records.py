"""Reading the audit of a broker, as an administrator does."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from tests.support.broker import Broker

Record = dict[str, Any]
WAIT_SECONDS_MAX = 60.0
AUDIT = "audit.enabled=true"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def audited(broker: Broker, target: str = "", token: str = "", **wanted: Any) -> list[Record]:
    """The records about a target, or about all; `wanted` are fields that they have."""
    headers = bearer(token) if token else {}
    found: list[Record] = []
    cursor = ""
    while True:
        page = broker.request("GET", f"/v1/search?queue=_audit&limit=1000{cursor}", headers)
        if page.status == 404:
            return []
        assert page.status == 200, page
        found += [message["message"] for message in page.json()["messages"]]
        if page.json()["next"] is None:
            break
        cursor = f"&cursor={quote(page.json()['next'])}"
    wanted |= {"target": target} if target else {}
    return [record for record in found if all(record.get(name) == value for name, value in wanted.items())]


def audited_soon(broker: Broker, count: int = 1, **wanted: Any) -> list[Record]:
    """Waits for records that nobody waits for: those of refusals."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(found := audited(broker, **wanted)) < count:
        assert time.monotonic() < deadline, f"{wanted} is not recorded; recorded: {audited(broker, **wanted)}"
    return found
