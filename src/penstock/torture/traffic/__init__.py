"""Traffic: one file a dialect, each with the clients that use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.torture.traffic import etzel, glovebox, mqs, native, nq
from penstock.torture.traffic.stage import Stage

DIALECTS: dict[str, Callable[[Stage], list[Awaitable[None]]]] = {
    "mqs": mqs.clients,
    "nq": nq.clients,
    "etzel": etzel.clients,
    "glovebox": glovebox.clients,
    "native": native.clients,
}
