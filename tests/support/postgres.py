"""A real PostgreSQL for tests: one server for a session, on loopback, in a temporary directory, with fsync on."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.schema import initialise
from tests.support.ports import free_port

_START_SECONDS_MAX = 60.0
_SHARDS = 200
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "min_wal_size": "32MB",
    "autovacuum": "off",
}


def program(name: str) -> str:
    """The path of a program of PostgreSQL, which Debian does not put into PATH; empty if there is none."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or (str(versions[0]) if versions else "")


class Postgres:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._shards = itertools.count()
        self._databases = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def make(self) -> None:
        options = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        command = [*_unprivileged(), program("initdb"), "-D", str(self.folder / "data"), *options]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)

    def start(self, **settings: str) -> None:
        """Returns when it answers."""
        given = {**_SETTINGS, "port": str(self.port), **settings}
        options = [f"-c{name}={value}" for name, value in given.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_unprivileged(), program("postgres"), "-D", str(self.folder / "data"), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=1).close()
        except psycopg.OperationalError:
            return False
        return True

    def follow(self, primary: Postgres) -> None:
        """Be a standby of a server that runs, whatever this one was before."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        copy = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres", "-D", str(self.folder / "data")]
        command = [*_unprivileged(), program("pg_basebackup"), *copy, "--write-recovery-conf", "--checkpoint=fast"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)

    def promote(self) -> None:
        """A commit waits only for its own disk then."""
        with psycopg.connect(self.url(), autocommit=True) as session:
            session.execute("SELECT pg_promote()")
            session.execute("ALTER SYSTEM RESET synchronous_standby_names")
            session.execute("SELECT pg_reload_conf()")

    def stop(self) -> None:
        self._end(signal.SIGQUIT)  # At once: nothing of it is needed.

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def new_shard(self) -> tuple[str, int]:
        """A shard of a store that tests share, and its store."""
        number = next(self._shards)
        assert number < _SHARDS
        if number == 0:
            self._initialise(self.url(), _SHARDS)
        return self.url(), number

    def new_store(self, shards: int = 1) -> str:
        """A store of a test's own."""
        url = self.new_database()
        self._initialise(url, shards)
        return url

    def new_database(self) -> str:
        """A database without a store."""
        name = f"store_{next(self._databases)}"
        with psycopg.connect(self.url(), autocommit=True) as session:
            session.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def _initialise(self, url: str, shards: int) -> None:
        connection = Connection(url)
        initialise(connection, shards)
        connection.close()


@contextmanager
def started() -> Iterator[Postgres]:
    with prepared() as server:
        server.make()
        server.start()
        yield server


@contextmanager
def prepared() -> Iterator[Postgres]:
    """A server that is not made yet. It is stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    if not os.geteuid():
        shutil.chown(folder, "postgres")
    server = Postgres(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> list[str]:
    """PostgreSQL refuses to run as root. It ends with the tests, however they end."""
    if os.geteuid():
        return ["setpriv", "--pdeathsig=INT"]
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=INT"]
