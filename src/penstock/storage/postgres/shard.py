"""One shard of a store: who owns it, its batches, its parts and its snapshots, as statements.

Every statement that changes something names the epoch of the owner and has no effect in another epoch: that is the
fence. The lease only says when another broker may try. A deposed owner that does not know it yet changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.errors import FencedError, LeaseHeldError, StoreError
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import HEADER_BYTES, Point
from penstock.storage.postgres.connection import Connection

_ACQUIRE = """
UPDATE penstock.shard SET epoch = epoch + 1, owner = %s, address = %s, lag_seconds = NULL,
    lease_until = clock_timestamp() + make_interval(secs => %s)
WHERE id = %s AND (lease_until < clock_timestamp() OR owner = %s)
RETURNING epoch, last_batch
"""
_RELEASE = "UPDATE penstock.shard SET owner = NULL, lease_until = '-infinity' WHERE id = %s AND epoch = %s"
_HOLDER = """
SELECT owner, address, extract(epoch FROM greatest(lease_until, clock_timestamp()) - clock_timestamp())::float
FROM penstock.shard WHERE id = %s
"""
# The row of the shard is changed only if nobody else has changed it since: `FOR KEY SHARE` would not be enough.
_APPEND = """
WITH fence AS (
    UPDATE penstock.shard SET last_batch = %(number)s::bigint
    WHERE id = %(shard)s::int AND epoch = %(epoch)s::bigint AND last_batch = %(number)s::bigint - 1 RETURNING 1
)
INSERT INTO {table}
SELECT %(number)s::bigint, %(epoch)s::bigint, %(offset)s::bigint, %(position)s::bigint, %(data)b FROM fence
"""
# The next batches of a part, `PIECE_BYTES` at a time. Row by row, a thread that takes a shard over would wait for its
# turn after each one, and a node has other threads that are busy.
_PAGE = """
SELECT number, epoch, base_offset, base_position, data FROM (
    SELECT *, sum(octet_length(data)) OVER (ORDER BY number) - octet_length(data) AS bytes_before
    FROM (SELECT * FROM {table} WHERE number > %s ORDER BY number LIMIT 10000) AS following
) AS page WHERE bytes_before < %s ORDER BY number
"""
PIECE_BYTES = 4 << 20  # Of a log or a snapshot, sent at once; approximate.
_BATCHES = "(number bigint PRIMARY KEY, epoch bigint, base_offset bigint, base_position bigint, data bytea NOT NULL)"
_PIECES = "(piece int PRIMARY KEY, data bytea NOT NULL)"


class Ownership(NamedTuple):
    """What an acquisition found."""

    epoch: int
    last_batch: int  # The number of the newest batch; 0 if there is none.


class StoredPart(NamedTuple):
    """A part of the log as the store knows it."""

    base_offset: int
    base_position: Position
    created: Nanos
    first_batch: int
    end_position: Position | None  # None: it is the newest one, and grows.

    @property
    def start(self) -> Point:
        return Point(self.base_offset, self.base_position)


class StoredBatch(NamedTuple):
    number: int
    epoch: int
    base_offset: int
    base_position: Position
    data: bytes


class StoredSnapshot(NamedTuple):
    offset: int
    epoch: int
    bytes: int


class Shard:
    """The statements of one owner, on one connection. For one thread at a time."""

    def __init__(self, connection: Connection, number: int, epoch: int = 0, lease_seconds: float = 6.0) -> None:
        self._connection = connection
        self.lease_seconds = lease_seconds
        self.number = number
        self.epoch = epoch

    def on(self, connection: Connection) -> Shard:
        """The same owner, on another connection."""
        return Shard(connection, self.number, self.epoch, self.lease_seconds)

    # ── Who owns it ─────────────────────────────────────────────────────────────────────────────────────────

    def acquire(self, owner: str, address: str) -> Ownership:
        """Own the shard from now on. Raises `LeaseHeldError` while another owner's lease runs."""
        found = self._connection.row(_ACQUIRE, (owner, address, self.lease_seconds, self.number, owner))
        if found is None:
            raise LeaseHeldError(self._held())
        self.epoch = found[0]
        return Ownership(*found)

    def _held(self) -> str:
        holder = self._connection.row(_HOLDER, (self.number,))
        if holder is None:
            return f"the store has no shard {self.number}"
        owner, address, seconds = holder
        return f"shard {self.number} is served by {owner} at {address}; its lease ends in {seconds:.1f} s"

    def release(self) -> None:
        """Let another broker own the shard at once."""
        self._connection.execute(_RELEASE, self._in_epoch)

    @property
    def _in_epoch(self) -> tuple[int, int]:
        return self.number, self.epoch

    def _fence(self) -> None:
        """Within a transaction: refuse unless this epoch is the newest, and keep it so until the end."""
        own = "SELECT 1 FROM penstock.shard WHERE id = %s AND epoch = %s FOR SHARE"
        if not self._connection.rows(own, self._in_epoch):
            raise self.fenced()

    def fenced(self) -> FencedError:
        return FencedError(f"another broker owns shard {self.number} now (this one had epoch {self.epoch})")

    # ── Batches ─────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, part: int, number: int, start: Point, data: bytes) -> None:
        """Make a batch durable in the part with this first offset. `FencedError`: it is not and never will be there;
        `StoreError`: unknown."""
        facts = {"shard": self.number, "epoch": self.epoch, "number": number, "data": data}
        facts |= {"offset": start.offset, "position": start.position}
        statement = _APPEND.format(table=self._batches(part))
        if self._connection.execute(statement, facts, prepare=True) != 1:
            raise self.fenced()

    def batches(self, part: int) -> Iterator[StoredBatch]:
        """The batches of a part in order. Raises `MissingTableError` if it was removed."""
        statement, last = _PAGE.format(table=self._batches(part)), -1
        while page := [StoredBatch(*row) for row in self._connection.rows(statement, (last, PIECE_BYTES))]:
            yield from page
            last = page[-1].number

    def had_batch(self, offset: int) -> bool:
        """Whether a batch of this epoch begins at this offset. Raises `StoreError` unless the epoch is over: before,
        one may still come."""
        if not self._connection.rows("SELECT 1 FROM penstock.shard WHERE id = %s AND epoch > %s", self._in_epoch):
            raise StoreError(f"epoch {self.epoch} of shard {self.number} is not over")
        part = max(each.base_offset for each in self.parts() if each.base_offset <= offset)
        statement = f"SELECT 1 FROM {self._batches(part)} WHERE base_offset = %s AND epoch = %s"
        return bool(self._connection.rows(statement, (offset, self.epoch)))

    def copy_batches(self, part: int, batches: Iterable[StoredBatch]) -> int:
        """Insert the batches of a log that was made elsewhere, within a transaction. Returns how many there were."""
        types = ("int8", "int8", "int8", "int8", "bytea")
        return self._connection.copy(self._batches(part), types, batches)

    def last_header(self, part: int) -> tuple[Position, bytes]:
        """The position and the header of the last batch of a part. Without one: the position 0, and nothing."""
        statement = f"""
            SELECT base_position, substring(data FROM 1 FOR {HEADER_BYTES}) FROM {self._batches(part)}
            ORDER BY number DESC LIMIT 1
        """
        position, header = self._connection.row(statement) or (0, b"")
        return position, header

    def _batches(self, part: int) -> str:
        return f"penstock.batch_{self.number}_{part}"

    # ── Parts ───────────────────────────────────────────────────────────────────────────────────────────────

    def parts(self) -> list[StoredPart]:
        """All parts, oldest first."""
        return [
            StoredPart(*row)
            for row in self._connection.rows(
                "SELECT base_offset, base_position, created, first_batch, end_position FROM penstock.part"
                " WHERE shard = %s ORDER BY base_offset",
                (self.number,),
            )
        ]

    def begin_part(self, start: Point, created: Nanos, first_batch: int) -> None:
        """Begin the next part. The one before it ends here."""
        with self._connection.transaction():
            self._fence()
            self._connection.execute(
                "UPDATE penstock.part SET end_position = %s WHERE shard = %s AND end_position IS NULL",
                (start.position, self.number),
            )
            self._connection.execute(
                "INSERT INTO penstock.part VALUES (%s, %s, %s, %s, %s, NULL)",
                (self.number, *start, created, first_batch),
            )
            self._create(self._batches(start.offset), _BATCHES)

    def end_part(self, part: int, position: Position) -> None:
        """Note where a part ends that was copied: the next one may begin later."""
        self._connection.execute(
            "UPDATE penstock.part SET end_position = %s WHERE shard = %s AND base_offset = %s",
            (position, self.number, part),
        )

    def drop_part(self, part: int) -> None:
        with self._connection.transaction():
            self._fence()
            self._connection.execute(
                "DELETE FROM penstock.part WHERE shard = %s AND base_offset = %s", (self.number, part)
            )
            self._connection.execute(f"DROP TABLE IF EXISTS {self._batches(part)}")

    def _create(self, table: str, columns: str) -> None:
        self._connection.execute(f"CREATE TABLE {table} {columns}")
        # Not compressed: bodies mostly cannot be, and pieces of a value are then read without the rest.
        self._connection.execute(f"ALTER TABLE {table} ALTER data SET STORAGE EXTERNAL")

    # ── Snapshots ───────────────────────────────────────────────────────────────────────────────────────────

    def snapshots(self) -> list[StoredSnapshot]:
        """Those that count, newest first."""
        return self._snapshots("counts ORDER BY base_offset DESC, epoch DESC")

    def unfinished_snapshots(self) -> list[StoredSnapshot]:
        """Those that earlier owners did not finish."""
        return self._snapshots(f"NOT counts AND epoch < {self.epoch}")

    def _snapshots(self, which: str) -> list[StoredSnapshot]:
        statement = f"SELECT base_offset, epoch, bytes FROM penstock.snapshot WHERE shard = %s AND {which}"
        return [StoredSnapshot(*row) for row in self._connection.rows(statement, (self.number,))]

    def write_snapshot(self, offset: int, pieces: Iterator[bytes]) -> None:
        """Store a snapshot that does not count yet."""
        snapshot, size = StoredSnapshot(offset, self.epoch, 0), 0
        table = self._pieces(snapshot)
        with self._connection.transaction():
            self._create(table, _PIECES)
            for piece, data in enumerate(pieces):
                self._connection.execute(f"INSERT INTO {table} VALUES (%s, %b)", (piece, data))
                size += len(data)
            self._fence()
            row = (self.number, offset, self.epoch, size)
            self._connection.execute("INSERT INTO penstock.snapshot VALUES (%s, %s, %s, %s)", row)

    def publish_snapshot(self, offset: int) -> None:
        with self._connection.transaction():
            self._fence()
            statement = (
                "UPDATE penstock.snapshot SET counts = true WHERE shard = %s AND base_offset = %s AND epoch = %s"
            )
            if self._connection.execute(statement, (self.number, offset, self.epoch)) != 1:
                raise StoreError(f"the store has no snapshot of offset {offset}")

    def pieces(self, snapshot: StoredSnapshot) -> Iterator[bytes]:
        statement = f"SELECT data FROM {self._pieces(snapshot)} ORDER BY piece"
        return (data for (data,) in self._connection.stream(statement))

    def drop_snapshot(self, snapshot: StoredSnapshot) -> None:
        with self._connection.transaction():
            self._fence()
            self._connection.execute(
                "DELETE FROM penstock.snapshot WHERE shard = %s AND base_offset = %s AND epoch = %s",
                (self.number, snapshot.offset, snapshot.epoch),
            )
            self._connection.execute(f"DROP TABLE IF EXISTS {self._pieces(snapshot)}")

    def _pieces(self, snapshot: StoredSnapshot) -> str:
        return f"penstock.snapshot_{self.number}_{snapshot.offset}_{snapshot.epoch}"
