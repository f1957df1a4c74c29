"""One connection to PostgreSQL. A statement ends with a result, or with `StoreError`: then its outcome is unknown."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg import conninfo

from penstock.errors import StoreError

_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,  # Milliseconds.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "gssencmode": "disable",
    "application_name": "penstock",
}
# A process that stands still in the middle of a transaction would keep others from the rows that it has locked.
IDLE_MILLISECONDS_MAX = 5000
_SESSION = "-c default_transaction_isolation=read\\ committed -c client_min_messages=warning"


class Connection:
    """For one thread at a time. `drop` may be called by any thread."""

    def __init__(self, url: str) -> None:
        try:
            self._session = psycopg.connect(parameters(url), autocommit=True, prepare_threshold=None)
        except (psycopg.Error, OSError) as error:
            raise StoreError(f"cannot connect to {display(url)}: {one_line(error)}") from error
        self._warning = ""
        self._session.add_notice_handler(self._note)
        self._at_least_on()

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        self._warning = notice.message_primary or "a warning without text"

    def _at_least_on(self) -> None:
        """A commit must wait for the disk, and for the standbys if there are any, whatever the default is."""
        (setting,) = self.row("SHOW synchronous_commit") or ("",)
        if setting in ("off", "local"):
            self.execute("SET synchronous_commit = on")

    @property
    def address(self) -> str:
        """The address of the server, as a number: another process connects to the same one without a name service."""
        return self._session.info.hostaddr

    @property
    def is_over(self) -> bool:
        """Whether it has ended or is known to have failed."""
        return self._session.closed or self._session.broken

    def execute(self, statement: str, facts: Mapping[str, Any] | Sequence[Any] = (), *, prepare: bool = False) -> int:
        """Run a statement. Returns how many rows it changed."""
        with self._errors():
            found = self._session.execute(_query(statement), facts or None, prepare=prepare or None).rowcount
        if self._warning:
            # A wait for standbys that was cancelled commits here and reports only a warning: not known to be safe.
            warning, self._warning = self._warning, ""
            self.drop()
            raise StoreError(f"PostgreSQL warns, so the outcome is unknown: {warning}")
        return found

    def row(self, statement: str, facts: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        return next(iter(self.rows(statement, facts)), None)

    def rows(self, statement: str, facts: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._session.execute(_query(statement), facts or None, binary=True).fetchall()

    def stream(self, statement: str, facts: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a large result, one at a time."""
        with self._errors(), self._session.cursor(binary=True) as cursor:
            yield from cursor.stream(_query(statement), facts or None)

    def copy(self, table: str, types: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> int:
        """Insert many rows. Returns how many."""
        count = 0
        statement = _query(f"COPY {table} FROM STDIN (FORMAT BINARY)")
        with self._errors(), self._session.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)
                count += 1
        return count

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._errors(), self._session.transaction():
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.UndefinedTable as error:
            raise MissingTableError(one_line(error)) from error
        except psycopg.Error as error:
            raise StoreError(f"PostgreSQL: {one_line(error)}") from error

    def drop(self) -> None:
        """End the connection now, even while another thread waits for it: that wait then fails."""
        try:
            descriptor = os.dup(self._session.fileno())
        except (psycopg.Error, OSError):
            return  # It has ended.
        with socket.socket(fileno=descriptor) as copy:
            try:
                copy.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # The other side was faster.

    def close(self) -> None:
        self._session.close()


class MissingTableError(StoreError):
    """A table does not exist: the store is not initialised, or a part of the log was removed."""


class Dropped:
    """Connections that are ended together."""

    def __init__(self) -> None:
        self._open: WeakSet[Connection] = WeakSet()

    def add(self, connection: Connection) -> Connection:
        self._open.add(connection)
        return connection

    def all(self) -> None:
        while self._open:
            self._open.pop().drop()


def parameters(url: str) -> str:
    """What libpq connects with: the URL, our defaults where it says nothing, and settings of the session."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise StoreError(f"{display(url)} is not an address of a database: {one_line(error)}") from error
    idle = f"-c idle_in_transaction_session_timeout={IDLE_MILLISECONDS_MAX}"
    options = f"{given.pop('options', '') or ''} {_SESSION} {idle}".strip()
    return conninfo.make_conninfo("", **{**_DEFAULTS, **given, "options": options})


def display(url: str) -> str:
    """The URL without a password."""
    try:
        facts = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return "the store"
    return f"postgresql://{facts.get('host', '')}:{facts.get('port', 5432)}/{facts.get('dbname', '')}"


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or repr(error)


def _query(statement: str) -> bytes:
    return statement.encode()
