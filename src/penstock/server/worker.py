"""A worker: one of several processes that serve one store. Each serves every client, and owns some of the shards."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.broker.quotas.quotas import Quotas
from penstock.broker.shard_map import ShardMap
from penstock.broker.turns import Turns
from penstock.broker.writer.port import ClientPort
from penstock.cluster.links.codec import WantTokens
from penstock.cluster.links.fellow import Fellow
from penstock.cluster.links.link_state import state_of_workers
from penstock.cluster.links.mesh import Mesh, owner_of
from penstock.cluster.links.relay import Relay
from penstock.cluster.links.stopping import StopStage, StopStages
from penstock.cluster.links.wires import UnixWires
from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.cluster.routing.ports import CountedPort
from penstock.cluster.routing.questions import Questions
from penstock.cluster.routing.router import Router
from penstock.cluster.routing.shared_quotas import SharedQuotas
from penstock.cluster.routing.tokens import TokenFollower, TokenSource
from penstock.cluster.workers.lookout import Lookout
from penstock.config.config import Config
from penstock.limits import LINK_SILENCE_SECONDS_MAX, LINKS_SECONDS_MAX
from penstock.model.cluster import ClusterState
from penstock.model.tokens import Token
from penstock.server.broker import Broker
from penstock.server.shard import Shard, until
from penstock.shells.handler import Handler
from penstock.shells.handshake import GLOVEBOX
from penstock.storage.shards import Shards, shard_directory

logger = logging.getLogger(__name__)


class Post(NamedTuple):
    """The place of a worker among the others."""

    lookout: Lookout
    workers: int
    store: Shards
    folder: Path  # Where the sockets of their links are.

    @property
    def worker(self) -> int:
        return self.lookout.worker


class Worker(Broker):
    def __init__(self, config: Config, post: Post, *, insecure: bool = False) -> None:
        self._post = post
        self._map = ShardMap(post.store.shards, post.store.elsewhere)
        super().__init__(config, insecure=insecure, lookout=post.lookout)

    def _make_shards(self) -> list[Shard]:
        post = self._post
        owned = [each for each in range(post.store.shards) if owner_of(each, post.workers) == post.worker]
        directories = [shard_directory(self.config.data, each) for each in owned]
        return [Shard(self.config, each, self._clock, home=self._map.of_name) for each in directories]

    def _offer(self, _: Turns, quotas: Quotas) -> tuple[Handler, ClientPort]:
        post, shards = self._post, self._map
        own = {shard.identity.shard: shard for shard in self.shards}
        ports = {number: shard.port() for number, shard in own.items()}
        self._mesh = Mesh(
            *(post.worker, post.workers, shards.shards, UnixWires(post.folder), ports),
            ask_again_seconds=self.config.ask_again_seconds,
            room=self._room,
        )
        self._stages = StopStages(self._mesh)
        if post.workers > 1:
            SharedQuotas(quotas, self._mesh, post.worker, post.workers)
            self._mesh.served = {each: CountedPort(port, quotas, self._has_queue) for each, port in ports.items()}
        questions = Questions(
            shards, self._mesh.ports, fellow=lambda shard: self._fellow(owner_of(shard, post.workers))
        )
        router = Router(shards, self._mesh.ports, questions, self.config.ask_again_seconds)
        for shard in self.shards:
            shard.connect(shards, self._mesh.ports, router)
        self._relay_wires = UnixWires(post.folder, "relay")
        self._relay = Relay(post.worker, self._relay_wires.connect)
        application = self.shards[0].offer(router, self._relay, self.cluster)
        self._websockets = application.websockets
        for shard in self.shards[1:]:
            shard.metrics.shows_process = False  # It is shown once.
        post.lookout.when_silent.append(self._leave_alone)
        return application, router

    def cluster(self) -> ClusterState:
        fellows = [self._fellow(each) for each in range(self._post.workers)]
        return state_of_workers(fellows, self._map.shards, str(self._address))

    def _fellow(self, worker: int) -> Fellow:
        silence = self._post.lookout.silence(worker)
        is_linked, is_this = worker in self._mesh.links, worker == self._post.worker
        return Fellow(f"worker {worker}", worker, silence, is_linked, is_this)

    def _leave_alone(self, worker: int, silence: float) -> None:
        """Whoever waits for a worker that hangs is answered as if it had ended."""
        if silence > LINK_SILENCE_SECONDS_MAX and (link := self._mesh.links.get(worker)):
            logger.debug("link_silent", extra={"worker": worker, "reason": f"it was silent for {silence:.0f} s"})
            link.close()

    def _has_queue(self, name: str) -> bool:
        """A queue of another worker is taken to exist: only its owner knows."""
        shard = self._map.of_name(name)
        own = next((each for each in self.shards if each.identity.shard == shard), None)
        return own is None or own.loop.engine.queue(name) is not None

    async def _prepare(self) -> None:
        """The worker with the tokens checks whether they are needed where all listen. The others get them from it."""
        self._relay.receive = partial(self._websockets.begin, GLOVEBOX, self.servers.http, None)
        self._relay_server = await self._relay_wires.listen(self._post.worker, self._relay.arrival)
        source = owner_of(ADMINISTRATION, self._post.workers)
        if self._post.worker == source:
            await super()._prepare()
            self._share_tokens(self.shards[0])
            await self._mesh.start()
        else:
            follower = TokenFollower(self._mesh, self._load_tokens)
            await self._mesh.start()
            await follower.known.wait()
        # Else its first clients would be refused what others have. It does not wait for one that does not come back.
        await until(lambda: self._mesh.is_complete, LINKS_SECONDS_MAX)

    def _share_tokens(self, shard: Shard) -> None:
        gate, changes = shard.loop.gate, shard.services.token_changes
        source = TokenSource(self._mesh, lambda: shard.loop.engine.tokens.by_name, shard.services.audit)
        self._mesh.acts[WantTokens] = source.wanted
        self._mesh.when_lost.append(source.lost)
        gate.auditor, changes.on_change = source, source.changed

    def _load_tokens(self, tokens: Mapping[str, Token]) -> None:
        self._identities.load(tokens)
        self.shards[0].services.token_changes.wake()

    # ── Stop ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _when_refusing(self) -> None:
        """What others have forwarded has arrived when all refuse new requests."""
        self._relay_server.close()
        await self._reach(StopStage.REFUSING)

    async def _when_finished(self) -> None:
        """Others may still need the shards of this worker."""
        await self._reach(StopStage.FINISHED)
        self._mesh.stop()

    async def _reach(self, stage: StopStage) -> None:
        if self._is_asked_to_stop:  # Otherwise it stops alone.
            self._stages.announce(stage)
            await until(lambda: self._have_all(stage), self.config.stop_seconds)

    def _have_all(self, stage: StopStage) -> bool:
        for worker in list(self._mesh.links):
            self._leave_alone(worker, self._post.lookout.silence(worker))
        return self._stages.have_all(stage)
