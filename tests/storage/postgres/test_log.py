"""A log in PostgreSQL: who may append, what is refused, and what a new owner needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import (
    DamagedExtentError,
    DamagedLogError,
    DeposedError,
    FencedError,
    LeaseHeldError,
    LogFailedError,
    StoreError,
)
from penstock.model.values import Stage
from penstock.storage.port import BeingFetchedError
from penstock.storage.postgres import connection
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.shard import Shard, StoredBatch
from tests.support.postgres import Postgres
from tests.support.samples import logged, recover, section
from tests.support.stored_logs import StoreUser

Make = Callable[[], StoreUser]


class Place:
    """A shard of its own, and the brokers that use it, each on a directory of its own."""

    def __init__(self, postgres: Postgres, path: Path) -> None:
        self.url, self.shard = postgres.new_shard()
        self._path = path
        self.users: list[StoreUser] = []

    def user(self, name: str | None = None) -> StoreUser:
        user = StoreUser(self.url, self.shard, self._path / (name or str(len(self.users))))
        self.users.append(user)
        return user

    def run(self, statement: str) -> None:
        """`{}` is the number of the shard."""
        with closing(psycopg.connect(self.url, autocommit=True)) as session:
            session.execute(statement.replace("{}", str(self.shard)).encode())

    def end_lease(self) -> None:
        self.run("UPDATE penstock.shard SET lease_until = '-infinity' WHERE id = {}")


@pytest.fixture
def place(postgres: Postgres, tmp_path: Path) -> Iterator[Place]:
    made = Place(postgres, tmp_path)
    yield made
    for user in made.users:
        user.die()


def commit(user: StoreUser, body: bytes) -> list[Stage | BaseException]:
    """What was reported of a commit, when it is over."""
    reported: list[Stage | BaseException] = []
    user.log.append(logged(user.log.end.offset + 1, body))
    user.log.commit(5000, reported.append)
    user.log._writer.jobs.put(None)
    assert user.log._writer._thread is not None
    user.log._writer._thread.join(60)
    if reported[-1] is Stage.SYNC:
        user.log._writer.start(user.log.end.position)
    return reported


def fill(place: Place, bodies: int = 6) -> StoreUser:
    user = place.user()
    recover(user.log)
    for number in range(bodies):
        assert commit(user, b"%d" % number * 300) == [Stage.WRITE, Stage.SYNC]
    return user


def bodies_of(user: StoreUser) -> list[bytes]:
    return [event.body for event, _ in recover(user.log)]  # type: ignore[attr-defined]


# Who may append


def test_a_second_broker_waits_while_the_lease_runs(place: Place) -> None:
    fill(place, 1)
    with pytest.raises(LeaseHeldError, match=r"is served by .* at test; its lease ends in"):
        place.user()


def test_a_released_shard_is_free_at_once(place: Place) -> None:
    fill(place, 1).close()
    assert bodies_of(place.user()) == [b"0" * 300]


def test_a_directory_acquires_its_own_lease_again_without_waiting(place: Place) -> None:
    fill(place, 2).die()
    assert len(bodies_of(place.user("0"))) == 2


def test_an_owner_that_was_replaced_never_acknowledges_again(place: Place) -> None:
    zombie = fill(place, 2)
    place.end_lease()
    owner = place.user()
    assert len(bodies_of(owner)) == 2
    (error,) = commit(zombie, b"late")
    assert isinstance(error, FencedError)
    assert commit(owner, b"next")[-1] is Stage.SYNC
    owner.close()
    assert bodies_of(place.user())[2:] == [b"next"]


def test_an_append_sent_before_the_takeover_and_executed_after_it_is_refused(place: Place) -> None:
    """It waits for the row that the takeover has changed and not committed yet."""
    zombie = fill(place, 1)
    place.end_lease()
    taking = "UPDATE penstock.shard SET epoch = epoch + 1, owner = 'other' WHERE id = {}"
    with closing(psycopg.connect(place.url)) as session:
        session.execute(taking.replace("{}", str(place.shard)).encode())
        reported: list[Stage | BaseException] = []
        zombie.log.append(logged(9, b"late"))
        zombie.log.commit(5000, reported.append)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fence%'"
        with closing(psycopg.connect(place.url, autocommit=True)) as watcher:
            while watcher.execute(waits).fetchone() != (1,):
                pass
        assert not reported
        session.commit()
    zombie.log._writer.jobs.put(None)
    assert zombie.log._writer._thread is not None
    zombie.log._writer._thread.join(60)
    (error,) = reported
    assert isinstance(error, FencedError)


def test_an_owner_that_stands_still_in_a_transaction_does_not_keep_others_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = fill(place, 1).store.epoch
    place.end_lease()
    monkeypatch.setattr(connection, "IDLE_MILLISECONDS_MAX", 200)
    still = Connection(place.url)
    with pytest.raises(StoreError), still.transaction():  # noqa: PT012 - The transaction ends with the error.
        Shard(still, place.shard, epoch)._fence()
        taken = place.user()
        still.execute("SELECT 1")
    assert len(bodies_of(taken)) == 1


def test_a_broker_that_was_replaced_meanwhile_begins_anew(place: Place) -> None:
    first = fill(place, 1)
    place.end_lease()
    place.user().close()
    with pytest.raises(DeposedError):
        first.acquire()


def test_a_lost_connection_is_an_unknown_outcome_and_the_store_says_what_it_was(place: Place) -> None:
    user = fill(place, 2)
    user.log._writing.drop()
    (error,) = commit(user, b"lost")
    assert isinstance(error, StoreError)
    user.log.abandon()
    user.acquire()
    assert len(bodies_of(user)) == 2
    assert commit(user, b"next")[-1] is Stage.SYNC


def test_a_batch_that_was_committed_before_the_connection_was_lost_is_part_of_the_log(place: Place) -> None:
    user = fill(place, 2)
    user.log.append(logged(3, b"there"))
    reported: list[Stage | BaseException] = []
    append = user.log._writer._store.append

    def append_and_lose(*facts: Any) -> None:
        append(*facts)
        raise StoreError("the answer was lost")

    user.log._writer._store.append = append_and_lose  # type: ignore[method-assign,assignment]
    user.log.commit(5000, reported.append)
    user.log.close()
    assert isinstance(reported[0], StoreError)
    user.acquire()
    assert bodies_of(user)[2:] == [b"there"]


def test_whoever_was_replaced_is_told_what_it_had_committed(place: Place) -> None:
    first = fill(place, 2)
    epoch, store = first.store.epoch, first.store
    with pytest.raises(StoreError, match="not over"):
        store.had_batch(epoch, 1)
    place.end_lease()
    second = place.user()
    recover(second.log)
    commit(second, b"of another owner")
    assert [store.had_batch(epoch, offset) for offset in range(4)] == [True, True, False, False]


def test_a_warning_makes_the_outcome_unknown(place: Place) -> None:
    """A cancelled wait for standbys commits, with only a warning."""
    user = fill(place, 1)
    place.run(
        "CREATE FUNCTION penstock.warn_{}() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; RETURN NEW; END $$"
    )
    place.run("CREATE TRIGGER warn BEFORE INSERT ON penstock.batch_{}_0 EXECUTE FUNCTION penstock.warn_{}()")
    (error,) = commit(user, b"unknown")
    assert isinstance(error, StoreError)
    assert "unknown" in str(error)


# What is refused


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        ("DELETE FROM penstock.batch_{}_2 WHERE number = 3", "batches 3 to 3 are missing: events from offset 2 on"),
        ("DELETE FROM penstock.batch_{}_4 WHERE number = 6", "has lost batches 6 to 6 at its end"),
        ("UPDATE penstock.batch_{}_2 SET data = set_byte(data, 70, 1) WHERE number = 3", "batch 3 is damaged"),
        ("UPDATE penstock.batch_{}_2 SET epoch = 9 WHERE number = 3", "batch 4 is of an older epoch"),
        ("DELETE FROM penstock.part WHERE shard = {} AND base_offset = 2", "events 2 to 3 are missing"),
    ],
    ids=["gap", "truncation", "damaged batch", "older epoch", "missing part"],
)
def test_a_log_that_lost_what_was_acknowledged_is_not_owned(place: Place, harm: str, complaint: str) -> None:
    fill(place).close()
    place.run(harm)
    user = place.user()
    with pytest.raises(DamagedLogError, match=complaint):
        recover(user.log)


# What a new owner needs


def snapshot(user: StoreUser) -> None:
    at = user.log.begin_snapshot()
    user.log.write_snapshot([section("engine", b"facts", b"x" * 5_000_000)], at, 7000)
    user.log.publish_snapshot(at.offset)


def read(user: StoreUser, position: int, size: int) -> bytes:
    """As somebody who waits for what is fetched."""
    while True:
        try:
            return user.log.read(position, size)
        except BeingFetchedError as error:
            error.fetch.result(60)


def test_a_new_owner_fetches_the_snapshot_and_the_tail_and_the_rest_when_it_is_read(place: Place) -> None:
    first = fill(place)
    snapshot(first)
    commit(first, b"tail" * 300)
    first.close()
    user = place.user()
    recovered = user.log.recover()
    assert recovered.sections is not None
    assert [facts for _, facts, _ in recovered.sections] == [b"facts"]
    assert [event.body for event, _ in recovered.events] == [b"tail" * 300]  # type: ignore[attr-defined]
    absent = [segment for segment in user.log.segments if not segment.path.exists()]
    assert [segment.base_offset for segment in absent] == [0, 2, 4]
    assert read(user, absent[0].base_position + 64, 300) == b"0" * 300
    assert absent[0].path.exists()
    assert user.log.view().batch_at(absent[1].base_position)[0].base_offset == 2
    assert absent[1].path.exists()


def test_a_snapshot_begins_a_part_so_that_a_new_owner_fetches_only_what_follows_it(place: Place) -> None:
    first = fill(place, 5)
    snapshot(first)
    assert commit(first, b"tail")[-1] is Stage.SYNC
    assert commit(first, b"more")[-1] is Stage.SYNC
    first.close()
    user = place.user()
    replayed = user.log.recover().events
    assert [event.body for event, _ in replayed] == [b"tail", b"more"]  # type: ignore[attr-defined]
    assert [(each.base_offset, each.path.exists()) for each in user.log.segments] == [
        (0, False),
        (2, False),
        (4, False),
        (5, True),
    ]


@pytest.mark.parametrize(("batches", "size"), [(10_001, 10), (9, 1 << 20), (3, 5 << 20)])
def test_a_part_of_several_pages_is_read_whole_and_in_order(place: Place, batches: int, size: int) -> None:
    fill(place, 1).close()
    stored = [
        StoredBatch(number, 1, number, number * size, b"%9d" % number * (size // 9)) for number in range(batches)
    ]
    with closing(Connection(place.url)) as connection:
        shard = Shard(connection, place.shard)
        connection.execute(f"TRUNCATE penstock.batch_{place.shard}_0")
        shard.copy_batches(0, stored)
        assert list(shard.batches(0)) == stored


def test_a_damaged_copy_is_fetched_again(place: Place) -> None:
    first = fill(place)
    snapshot(first)
    first.close()
    user = place.user("0")
    list(user.log.recover().events)
    segment = user.log.segments[0]
    with segment.path.open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    assert read(user, segment.base_position + 64, 300) == b"0" * 300
    assert user.log.damaged == []


def test_a_part_that_is_damaged_in_the_store_too_is_fetched_only_once_more(place: Place) -> None:
    first = fill(place)
    snapshot(first)
    first.close()
    place.run("UPDATE penstock.batch_{}_0 SET data = set_byte(data, 100, 1) WHERE number = 1")
    user = place.user()
    list(user.log.recover().events)
    position = user.log.segments[0].base_position + 64
    for _ in range(2):
        with pytest.raises(BeingFetchedError) as raised:
            user.log.read(position, 300)
        raised.value.fetch.result(60)
    with pytest.raises(DamagedExtentError):
        user.log.read(position, 300)


def test_a_reader_of_a_log_that_was_replaced_changes_no_file_and_is_told_so(place: Place) -> None:
    fill(place).close()
    user = place.user()
    list(user.log.recover().events)
    old = user.log.view()
    user.log.abandon()
    user.acquire()
    absent = old.parts[0]
    absent.path.unlink()  # type: ignore[attr-defined]
    with pytest.raises(LogFailedError, match="was not fetched before the log was closed"):
        absent.open()
    assert bodies_of(user) == [b"%d" % number * 300 for number in range(6)]


def test_the_newest_part_is_there_for_readers_while_the_log_is_opened_again(place: Place) -> None:
    user = fill(place)
    newest = user.log.segments[-1].path
    with newest.open("rb") as before:
        user.log.abandon()
        user.acquire()
        recovered = user.log.recover()
        assert before.read() == newest.read_bytes()
    list(recovered.events)


def test_a_log_whose_copy_changes_while_it_is_replayed_does_not_go_on_elsewhere(place: Place) -> None:
    fill(place).close()
    user = place.user()
    recovered = user.log.recover()
    newest = user.log.segments[-1].path
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(DamagedLogError, match="something else has changed its files"):
        list(recovered.events)
    user.log.abandon()
    user.acquire()
    assert bodies_of(user) == [b"%d" % number * 300 for number in range(6)]


def test_a_copy_with_another_last_batch_is_not_taken(place: Place) -> None:
    first = fill(place)
    snapshot(first)
    first.close()
    segment = first.log.segments[0]
    as_stored = segment.path.read_bytes()
    data = bytearray(as_stored)
    data[data.rindex(b"PBAT") + 50] ^= 1
    segment.path.write_bytes(data)
    user = place.user("0")
    list(user.log.recover().events)
    assert read(user, segment.base_position + 64, 300) == b"0" * 300
    assert segment.path.read_bytes() == as_stored


def test_a_start_asks_the_store_nothing_about_the_copies_that_it_does_not_replay(place: Place) -> None:
    first = fill(place)
    snapshot(first)
    first.close()
    user = place.user("0")
    place.run("DROP TABLE penstock.batch_{}_0")
    list(user.log.recover().events)
    assert [each.path.exists() for each in user.log.segments[:2]] == [True, True]
    with pytest.raises(FileNotFoundError, match="was removed"):
        user.log.segments[0].open()


def test_after_a_reboot_nothing_local_is_believed(place: Place) -> None:
    first = fill(place)
    snapshot(first)
    first.close()
    (first.directory.path / "boot").write_text("an earlier one")
    user = place.user("0")
    list(user.log.recover().events)
    assert not user.log.segments[0].path.exists()


def test_removed_parts_and_old_snapshots_leave_no_tables(place: Place) -> None:
    user = fill(place)
    for _ in range(3):
        snapshot(user)
        commit(user, b"more")
    user.log.remove(user.log.view().parts[0])
    commit(user, b"then")
    with closing(psycopg.connect(place.url)) as session:
        found = session.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ %s ORDER BY 1",
            (f"^(batch|snapshot)_{place.shard}_",),
        ).fetchall()
    names = [name.split("_")[2] for (name,) in found if name.startswith("batch")]
    assert sorted(map(int, names)) == [part.base_offset for part in user.log.view().parts]
    assert sum(name.startswith("snapshot") for (name,) in found) == 2


def test_every_owner_leaves_at_most_two_snapshots(place: Place) -> None:
    user = fill(place, 1)
    for _ in range(4):
        snapshot(user)
        user.close()
        user = place.user()
        list(user.log.recover().events)
        commit(user, b"more")
    with user.log._connected() as shard:
        assert len(shard.snapshots()) <= 2


def test_a_damaged_snapshot_is_replaced_by_the_spare(place: Place) -> None:
    user = fill(place, 2)
    snapshot(user)
    commit(user, b"between")
    snapshot(user)
    user.close()
    newest = f"penstock.snapshot_{{}}_3_{user.store._owned.epoch}"  # type: ignore[union-attr]
    place.run(f"UPDATE {newest} SET data = set_byte(data, 50, 7) WHERE piece = 0")
    second = place.user()
    recovered = second.log.recover()
    assert second.log.snapshots[0].offset == 2
    assert [event.body for event, _ in recovered.events] == [b"between"]  # type: ignore[attr-defined]
