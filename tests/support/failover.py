"""A PostgreSQL with a synchronous standby that takes over again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.support.postgres import Postgres, prepared


class Pair:
    def __init__(self, primary: Postgres, standby: Postgres) -> None:
        self._primary, self._standby = primary, standby

    def new_store(self, shards: int = 1) -> str:
        """At both addresses: clients use the one that takes writes."""
        database = self._primary.new_store(shards).rpartition("/")[2]
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in (self._primary, self._standby))
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def attach(self) -> None:
        """From now on a commit waits for the standby: what is acknowledged is there when the primary dies."""
        self._standby.follow(self._primary)
        self._standby.start()
        with psycopg.connect(self._primary.url(), autocommit=True) as session:
            session.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            session.execute("SELECT pg_reload_conf()")
            synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            while session.execute(synchronous).fetchone() != (1,):
                pass

    def fail_over(self) -> None:
        self._primary.kill()
        self._standby.promote()
        self._primary, self._standby = self._standby, self._primary


@contextmanager
def a_pair() -> Iterator[Pair]:
    with prepared() as primary, prepared() as standby:
        primary.make()
        primary.start()
        yield Pair(primary, standby)
