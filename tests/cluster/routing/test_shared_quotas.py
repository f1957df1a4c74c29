"""Quotas over several workers: what one of them does beside its accounts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.quotas.lending import Loan
from penstock.broker.quotas.quotas import Quotas
from penstock.cluster.links.mesh import Mesh
from penstock.cluster.links.wires import UnixWires
from penstock.cluster.routing import shared_quotas
from penstock.cluster.routing.shared_quotas import SharedQuotas
from penstock.config.quotas import QuotaConfig
from tests.support.live_loop import until


def test_what_is_borrowed_and_not_used_for_a_while_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_quotas, "QUOTA_TIDY_SECONDS", 0.01)
    now, asked = [0.0], list[tuple[float, ...]]()

    async def run() -> None:
        quotas = Quotas(QuotaConfig(), lambda _: True, lambda: now[0])
        shared = SharedQuotas(quotas, Mesh(1, 2, 2, UnixWires(tmp_path), {}), 1, 2)
        used, fresh = (Loan(10, now[0], lambda *each: asked.append(each)) for _ in range(2))
        for loan in (used, fresh):
            loan.take(1, now[0])
            loan.get(50, 0, now[0])
            shared.keep(loan)
        now[0] = 1.0
        fresh.take(2, now[0])
        await until(lambda: len(asked) == 3)
        now[0] = 2.0
        await until(lambda: len(asked) == 4)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert asked == [(1, 0, 10), (1, 0, 10), (0, 49, 0), (2, 47, 0)]
