"""What the settings of PostgreSQL promise: what a commit survives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.storage.postgres.connection import Connection

_ASKED = """
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), pg_is_in_recovery(),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))::int
"""


class Durability(NamedTuple):
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    synchronous_standby_names: str
    is_standby: bool
    synchronous_standbys: int  # Connected now. A user without pg_monitor sees none.

    @property
    def is_replicated(self) -> bool:
        return bool(self.synchronous_standby_names)

    def __str__(self) -> str:
        names = self.synchronous_standby_names
        return f"a commit waits for standbys: {names}" if names else "a commit waits for this server's disk only"

    def warnings(self) -> Iterator[str]:
        """What can lose acknowledged messages."""
        if self.fsync != "on":
            yield "fsync is off: a crash of PostgreSQL's machine loses acknowledged messages; set fsync = on"
        if self.full_page_writes != "on":
            yield "full_page_writes is off: a crash can damage the log; set full_page_writes = on"
        if not self.is_replicated:
            yield (
                "synchronous_standby_names is empty: if the disk of this PostgreSQL is lost, so are the messages;"
                " name standbys, for example 'ANY 1 (a, b)'"
            )
        if self.is_standby:
            yield "this server is a standby; use the address of the primary"


def read_durability(connection: Connection) -> Durability:
    found = connection.row(_ASKED)
    assert found is not None
    return Durability(*found)
