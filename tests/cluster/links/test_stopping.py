"""Workers stop together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop

from penstock.cluster.links.mesh import Mesh
from penstock.cluster.links.stopping import StopStage, StopStages
from penstock.cluster.links.wires import UnixWires
from tests.support.live_loop import until

WORKERS = 3


def test_a_worker_knows_how_far_the_others_have_come(tmp_path: Path) -> None:
    async def run() -> None:
        meshes = [Mesh(number, WORKERS, WORKERS, UnixWires(tmp_path), {}) for number in range(WORKERS)]
        stages = [StopStages(mesh) for mesh in meshes]
        for mesh in meshes:
            await mesh.start()
        await until(lambda: all(mesh.is_complete for mesh in meshes))
        first, second, third = stages
        second.announce(StopStage.REFUSING)
        third.announce(StopStage.FINISHED)
        await until(lambda: first.have_all(StopStage.REFUSING))
        assert not first.have_all(StopStage.FINISHED)
        assert not third.have_all(StopStage.REFUSING)  # The first has announced nothing.
        meshes[1].stop()  # It cannot be waited for.
        await until(lambda: first.have_all(StopStage.FINISHED))
        for mesh in meshes:
            mesh.stop()
        await asyncio.sleep(0)

    uvloop.run(asyncio.wait_for(run(), 60))
