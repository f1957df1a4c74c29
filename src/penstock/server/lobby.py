"""What a node has without any shard: clients, their sessions, pages, and answers that need no shard.

It is an empty shard of its own, in memory, that no queue belongs to. It stays while the shards of the store come and
go, so clients notice nothing of that.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.recovery import Recovered
from penstock.broker.writer.port import ClientPort
from penstock.cluster.links.relay import Relay
from penstock.config.config import Config
from penstock.engine.engine import Engine
from penstock.model.cluster import ClusterState
from penstock.server.app import Application
from penstock.server.clock import Clock
from penstock.server.shard import Shard
from penstock.storage.directory import DataDirectory
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.memory import MemoryLog
from penstock.storage.postgres.store import PostgresStore


class Lobby(Shard):
    def __init__(self, config: Config, clock: Clock, store: PostgresStore) -> None:
        """`store`: whose identity it has. It owns nothing there."""
        super().__init__(config, DataDirectory(config.data), clock)
        self._of_store = store

    @property
    def has_tokens(self) -> bool:
        return False

    def take(self) -> None:
        self.identity = self.directory.open(self._of_store.identity())

    def recover(self) -> Recovered:
        history = ObjectHistory(self.directory.history, keys_max=self._config.history.keys_max)
        return Recovered(Engine(shards=self.identity.shards), MemoryLog(), history)

    def open_to(self, clients: ClientPort, relay: Relay, cluster: Callable[[], ClusterState]) -> Application:
        """The application of the node. Records of what it refuses are kept in the shards."""
        self.services.audit.records = clients
        return self.offer(clients, relay, cluster)
