"""The order in which all workers stop: none leaves while another still has requests for its shards."""

from __future__ import annotations

from enum import IntEnum

from penstock.cluster.links.codec import Stopping
from penstock.cluster.links.link import Link
from penstock.cluster.links.mesh import Mesh


class StopStage(IntEnum):
    REFUSING = 1  # It accepts no new requests.
    FINISHED = 2  # It has answered all requests.


class StopStages:
    """How far each worker has come. One without a link has ended, or cannot be waited for."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._reached: dict[Link, int] = {}
        mesh.acts[Stopping] = self._heard
        mesh.when_lost.append(self._forget)

    def _heard(self, link: Link, entry: Stopping) -> None:
        self._reached[link] = entry.stage

    def _forget(self, link: Link) -> None:
        self._reached.pop(link, None)

    def announce(self, stage: StopStage) -> None:
        for link in self._mesh.links.values():
            link.send(Stopping(stage))

    def have_all(self, stage: StopStage) -> bool:
        return all(self._reached.get(link, 0) >= stage for link in self._mesh.links.values())
