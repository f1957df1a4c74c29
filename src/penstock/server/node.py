"""A node: one of several brokers on a store in PostgreSQL. It serves every client, and owns some of the shards.

Shards come and go while it serves: it acquires what is placed here, hands over what is placed at another node, and
gives up what it has lost. Commands for the shards of other nodes go to them over links.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import uvloop

from penstock.broker.own_addresses import found_at
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.recovery import Recovered
from penstock.broker.shard_map import ShardMap
from penstock.broker.turns import Turns
from penstock.broker.writer.port import ClientPort, OwnedPort
from penstock.cluster.links.codec import WantTokens
from penstock.cluster.links.guarded import RELAY
from penstock.cluster.links.link import Link
from penstock.cluster.links.mesh import Mesh
from penstock.cluster.links.relay import Relay
from penstock.cluster.links.wires import Security, TcpWires
from penstock.cluster.nodes.cluster_state import state_of_nodes
from penstock.cluster.nodes.member import Member, share_of
from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.cluster.routing.ports import CountedPort
from penstock.cluster.routing.questions import Questions
from penstock.cluster.routing.router import Router
from penstock.cluster.routing.tokens import TokenFollower, TokenSource
from penstock.cluster.workers.lookout import Lookout
from penstock.config.config import Address, Config, parse_address
from penstock.errors import StoreError
from penstock.limits import NODE_IMPATIENT_SECONDS, NODE_LOOK_SECONDS, NODE_WAIT_SECONDS
from penstock.model.cluster import ClusterState
from penstock.model.tokens import Token
from penstock.server.broker import Broker, log_durability, tune
from penstock.server.exposure import check_links
from penstock.server.holdings import Holdings
from penstock.server.lobby import Lobby
from penstock.server.reloading import Reloading
from penstock.server.shard import Shard
from penstock.shells.handler import Handler
from penstock.shells.handshake import GLOVEBOX
from penstock.shells.listening import cannot_listen
from penstock.shells.tls import Tls
from penstock.storage.directory import DataDirectory, Identity
from penstock.storage.postgres.nodes import Nodes, NodeTables
from penstock.storage.postgres.store import PostgresStore
from penstock.storage.shards import shard_directory

logger = logging.getLogger(__name__)


class Node(Broker):
    _member: Member

    def __init__(self, config: Config, *, insecure: bool = False, lookout: Lookout | None = None) -> None:
        """`lookout`: for the other nodes of the machine, if there are some."""
        self._store = PostgresStore(config.store, str(found_at(config)), lease_seconds=config.store_lease_seconds)
        self._links_at = parse_address(config.cluster.listen or config.cluster.advertise)
        check_links(config, self._links_at, insecure=insecure)
        self._woken = asyncio.Event()
        self._holdings = Holdings(self._shard_of, self._serve, self._forget, self._settled)
        self._held = self._holdings.held
        self._awaits: list[int] = []  # The shards that other nodes will hand over.
        self._ports: dict[int, OwnedPort] = {}
        self._served: dict[int, OwnedPort] = {}  # The same, for other nodes.
        self._addresses: dict[int, Address] = {}  # Of the links of nodes, by their numbers.
        self._token_source: TokenSource | None = None
        super().__init__(config, insecure=insecure, lookout=lookout)

    def _make_shards(self) -> list[Shard]:
        self._lobby = Lobby(self.config, self._clock, self._store)
        return [self._lobby]

    @property
    def served(self) -> list[Shard]:
        return [*self.shards, *self._held.values()]

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _own_stored(self) -> bool:
        """Be one of the nodes. Shards are acquired when everything is there that serves them."""
        log_durability(self._store)
        self._member = Member(self._store, self._lobby.directory, self.config.cluster.advertise)
        found = await asyncio.to_thread(self._member.read)
        self._map = ShardMap(len(found.shards), await asyncio.to_thread(self._elsewhere))
        self._know(found)
        return True

    def _elsewhere(self) -> dict[str, int]:
        with contextlib.closing(self._store.connect()) as connection:
            return NodeTables(connection).elsewhere()

    def _offer(self, turns: Turns, quotas: Quotas) -> tuple[Handler, ClientPort]:
        self._turns, self._quotas = turns, quotas
        wires = TcpWires(self._addresses, _security(self.config, self._lobby.identity, self._tls))
        number, shards = self._member.number, self._map
        self._mesh = Mesh(
            *(number, 0, shards.shards, wires, self._ports, self._holdings.epoch_of),
            self.config.ask_again_seconds,
            self._room,
        )
        self._mesh.served = self._served
        self._follower = TokenFollower(self._mesh, self._load_tokens)
        self._mesh.acts[WantTokens] = self._tokens_wanted
        self._mesh.when_lost.append(self._link_lost)
        self._mesh.when_moved.append(self._woken.set)
        questions = Questions(
            shards, self._mesh.ports, lambda: sorted(self._held), self._lobby.services.questions.take
        )
        self._router = Router(shards, self._mesh.ports, questions, self.config.ask_again_seconds)
        self._relay = Relay(number, partial(wires.connect, purpose=RELAY))
        wires.accept[RELAY] = self._relay.arrival
        application = self._lobby.open_to(self._router, self._relay, self.cluster)
        self._websockets = application.websockets
        return application, self._router

    def cluster(self) -> ClusterState:
        return state_of_nodes(self._member.known, self._member.name, self._held, self._mesh)

    def _has_queue(self, name: str) -> bool:
        """A queue of another node is taken to exist: only its owner knows."""
        own = self._held.get(self._map.of_name(name))
        return own is None or own.loop.engine.queue(name) is not None

    async def _prepare(self) -> None:
        """Have what is placed here, links to the others, and the tokens: nobody may be served without them."""
        self._heed_signals()
        self._relay.receive = partial(self._websockets.begin, GLOVEBOX, self.servers.http, None)
        try:
            await self._mesh.start()
        except OSError as error:
            raise cannot_listen(self._links_at, error, "--advertise HOST:PORT") from None
        running = asyncio.get_running_loop()
        complain_at = running.time() + NODE_WAIT_SECONDS
        await self._settle_in()
        while not (self._is_ready or self._stop.is_set()):
            if running.time() > complain_at:
                complain_at += NODE_WAIT_SECONDS
                logger.warning("node_waits", extra={"reason": self._missing})
            await self._look_soon(NODE_IMPATIENT_SECONDS)
            await self._settle_in()
        await super()._prepare()

    @property
    def _is_ready(self) -> bool:
        return self._follower.known.is_set() and self._mesh.is_complete and not self._holdings.changing

    @property
    def _missing(self) -> str:
        unlinked = ", ".join(map(self._unlinked, sorted(self._mesh.others - self._mesh.links.keys())))
        return f"no link to {unlinked}" if unlinked else f"no node has shard {ADMINISTRATION}, which has the tokens"

    def _unlinked(self, other: int) -> str:
        reason = self._mesh.errors.get(other, "it has not connected")  # The node with the higher number does.
        return f"{self._addresses[other]} ({reason})"

    def _more_rounds(self) -> list[Coroutine[Any, Any, None]]:
        return [self._keep()]

    # ── Which shards it has ─────────────────────────────────────────────────────────────────────────────────

    async def _keep(self) -> None:
        while True:
            await self._look_soon(NODE_IMPATIENT_SECONDS if self._awaits else NODE_LOOK_SECONDS)
            await self._settle_in()

    async def _look_soon(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # `wait_for` would forget that it was cancelled if it is woken too.
                await self._woken.wait()
        self._woken.clear()

    async def _settle_in(self) -> None:
        """Begin to acquire and hand over what the tables say."""
        try:
            found = await asyncio.to_thread(self._member.read)
        except StoreError as error:
            logger.warning("store_unreachable", extra={"reason": str(error)})
            return  # The leases decide how long to serve.
        self._know(found)
        self._mesh.know(self._addresses.keys() - {self._member.number})
        share = share_of(self._member.name, self._holdings.known, found)
        self._awaits = share.await_
        self._holdings.begin(share)

    def _know(self, found: Nodes) -> None:
        there = {node.number: parse_address(node.links) for node in found.nodes if node.is_there and node.links}
        self._addresses.clear()
        self._addresses.update(there)
        self._addresses[self._member.number] = self._links_at

    def _settled(self) -> None:
        self._woken.set()
        if self._holdings.lost:
            self._stop.set()

    def _shard_of(self, number: int) -> Shard:
        store = self._store.of_shard(number, self._member.name)
        directory: DataDirectory = shard_directory(self.config.data, number)
        return Shard(self.config, directory, self._clock, store, home=self._map.of_name)

    def _serve(self, number: int, shard: Shard, recovered: Recovered) -> None:
        shard.assemble(recovered, self._turns, self._identities, self._commits, self._room)
        self._ports[number] = port = shard.port()
        self._served[number] = CountedPort(port, self._quotas, self._has_queue)
        shard.connect(self._map, self._mesh.ports, self._router)
        if shard.has_tokens:
            self._share_tokens(shard)
        self._show_node()
        self._mesh.changed()
        shard.start()

    def _forget(self, number: int) -> None:
        del self._ports[number], self._served[number]
        if number == ADMINISTRATION:
            self._token_source = None
        self._show_node()
        self._mesh.changed()

    def _show_node(self) -> None:
        """Connections and what belongs to the process are shown with the first shard."""
        first = min(self._held, default=None)
        servers, parts = self._lobby.services.connections.servers, self._process_parts
        for number, shard in self._held.items():
            is_first = number == first
            shard.services.connections.servers[:] = servers if is_first else []
            shard.metrics.shows_process = is_first
            shard.metrics.parts = [each for each in shard.metrics.parts if each not in parts]
            shard.metrics.parts += parts if is_first else []

    # ── Tokens ──────────────────────────────────────────────────────────────────────────────────────────────

    def _share_tokens(self, shard: Shard) -> None:
        source = TokenSource(self._mesh, lambda: shard.loop.engine.tokens.by_name, shard.services.audit)
        shard.loop.gate.auditor, shard.services.token_changes.on_change = source, source.changed
        self._token_source = source
        self._follower.known.set()

    def _tokens_wanted(self, link: Link, entry: WantTokens) -> None:
        if self._token_source:  # Else it has moved, and whoever asks will ask there.
            self._token_source.wanted(link, entry)

    def _link_lost(self, link: Link) -> None:
        self._woken.set()
        if self._token_source:
            self._token_source.lost(link)

    def _load_tokens(self, tokens: Mapping[str, Token]) -> None:
        self._identities.load(tokens)
        self._lobby.services.token_changes.wake()

    # ── Stop ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _when_refusing(self) -> None:
        """Others take over at once: this node says that it leaves, and hands over everything."""
        await asyncio.to_thread(self._member.leave)
        await self._holdings.hand_over_all()

    async def _when_finished(self) -> None:
        self._mesh.stop()

    async def _shut_down(self) -> bool:
        is_written = await super()._shut_down()
        for shard in self._holdings.lost:
            shard.check_loss()
        return is_written


def _security(config: Config, identity: Identity, tls: Tls | None) -> Security:
    """Nodes prove to each other that they know the store: its key makes their token. With a certificate, links use
    TLS, and a node checks that it has reached the right one."""
    token = hmac.digest(bytes.fromhex(identity.id_key), b"links between nodes", "sha256")
    if tls is None:
        return Security(token)

    def use_newest(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = tls.context  # Its files may have changed since.

    accepting = tls.context
    accepting.sni_callback = use_newest
    calling = ssl.create_default_context(cafile=config.cluster.ca or None)
    calling.load_cert_chain(config.tls.certificate, config.tls.key)
    return Security(token, accepting, calling)


def serve(reloading: Reloading, *, insecure: bool = False) -> int:
    tune()

    async def run() -> int:
        node = Node(reloading.config, insecure=insecure)
        node.reloading = reloading
        return await node.run()

    return uvloop.run(run())
