"""A store that was moved to several shards answers as the one before, whatever happened on the way."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.recovery import recover
from penstock.broker.services.snapshots import Snapshots
from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.cli.exits import CommandError
from penstock.cli.log.state import examine
from penstock.cli.reshard.making import Resharded, reshard
from penstock.cluster.routing.router import Router
from penstock.config.config import Config, LogConfig
from penstock.engine.engine import Engine
from penstock.engine.history import content_digest
from penstock.errors import DamagedLogError, DataDirectoryError
from penstock.limits import SECOND_NS
from penstock.model.answers import Published, Repeated
from penstock.model.commands import (
    Command,
    CreateQueue,
    DescribeObject,
    Fetch,
    NewMessage,
    Publish,
    PublishOnce,
    PublishTopics,
    StageRows,
)
from penstock.model.schedules import Schedule, SetSchedule
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.storage.backup.making import Progress
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import Severity
from penstock.storage.log.files import LogFiles
from penstock.storage.resharding import Attempt
from penstock.storage.shards import open_shards, read_shards, shard_directory
from tests.storage.golden.make import GOLDEN, HERE, describe_state
from tests.support.backups import Worked, worked
from tests.support.effort import LONG as TRY_LONG
from tests.support.effort import effort
from tests.support.live_loop import ask
from tests.support.spoilt_logs import work
from tests.support.store_stories import DEFAULTS, LONG, NAMES, commands, plain

SHARDS = 3
SILENT = Progress()


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """In memory, where syncing costs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


def moved(source: Path, shards: int = SHARDS, to: Path | None = None) -> Resharded:
    return reshard(source, shards, to, SILENT)


def engines(store: Path) -> list[Engine]:
    """The states that starts of all shards would find. Each shard must be whole."""
    found = read_shards(store)
    assert found
    examined = [examine(shard_directory(store, shard)) for shard in range(found.shards)]
    assert [report.severity for report, _ in examined] == [Severity.WHOLE] * found.shards
    return [engine for _, engine in examined if engine]


def state(engine: Engine) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(json.dumps(describe_state(engine)))
    return described


def joined(parts: list[Engine]) -> dict[str, Any]:
    """The state of all shards as one: what is in several of them comes once."""
    whole: dict[str, Any] = {"queues": {}, "moved": []}
    for each in map(state, parts):
        whole["moved"] += each.pop("moved")
        for name in ("queues", "schedules", "answered"):
            if name in each:
                whole[name] = whole.get(name, {}) | each.pop(name)
        whole |= {name: value for name, value in each.items() if name not in ("time", "last queue", "couriers")}
    return whole | {"moved": sorted(whole["moved"])}


# Times, and what is between the shards of a store: no process of before asks any more.
_NOT_MOVED = ("time", "last queue", "couriers", "outcomes")


def expected(engine: Engine) -> dict[str, Any]:
    return {name: value for name, value in state(engine).items() if name not in _NOT_MOVED}


def bodies(store: Path) -> dict[str, dict[int, bytes]]:
    """The bodies of all messages by queue and sequence, read from whatever the directory is now."""
    if (store / "penstock.json").exists():
        return _bodies(DataDirectory(store))
    found = read_shards(store)
    assert found
    return {name: each for s in range(found.shards) for name, each in _bodies(shard_directory(store, s)).items()}


def _bodies(directory: DataDirectory) -> dict[str, dict[int, bytes]]:
    _, engine = examine(directory)
    assert engine
    view, found = LogFiles(directory).view(), dict[str, dict[int, bytes]]()
    for queue in engine.queues.values():
        found[queue.name] = {}
        for sequences, rows in queue.rows.tables():
            for sequence, position, size in zip(sequences, rows["position"], rows["body_bytes"], strict=True):
                header, payload = view.batch_at(int(position))
                start = int(position) - header.base_position - len(header.to_bytes())
                found[queue.name][int(sequence)] = payload[start : start + int(size)]
    return found


def fill(directory: Worked) -> None:
    """Something of everything that a store can hold."""

    def do(command: Command) -> None:
        work(directory.engine, directory.log, command)

    directory.create("orders", "dead", "copies")
    do(CreateQueue("all", QueueSettings(keep="all", deduplication=True)))
    do(CreateQueue("poison", QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))))
    for number in range(12):
        directory.publish("orders", f"order {number}" * 9)
        directory.publish("all", f"kept {number}")
    directory.publish("poison", "bad")
    do(Fetch("poison", 1))
    directory.finish("orders", 3)
    do(Fetch("orders", 2, consumer="worker"))
    do(PublishTopics([NewMessage(b"twice", topics=("orders.new", "copies.new"))], DEFAULTS))
    do(keyed(PublishTopics([NewMessage(b"a", topics=(name,)) for name in ("orders", "copies")], DEFAULTS)))
    do(SetSchedule("nightly", Schedule(queue="copies", body=b"tick", every_ns=3600 * SECOND_NS)))
    do(StageRows("query", 0, "part", 0, 1, b"rows", frozenset(["orders"]), 1 << 60, 1 << 30))
    directory.snapshot()
    directory.publish("orders", "after the snapshot")


def keyed(publish: PublishTopics) -> PublishOnce:
    return PublishOnce(publish, b"key", b"d" * 32, 1 << 62, 1000)


# ── What is there afterwards ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shards", [2, 5])
@pytest.mark.parametrize("name", GOLDEN)
def test_directories_of_every_version_are_moved_whole(name: str, shards: int, fast_path: Path) -> None:
    old = Path(shutil.copytree(HERE / name, fast_path / "data"))
    _, before = examine(DataDirectory(old))
    assert before
    moved(old, shards)
    assert joined(engines(old)) == expected(before)


def test_everything_is_in_one_of_the_shards(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        fill(directory)
        before = expected(directory.engine)
    texts = bodies(fast_path / "data")
    answer = moved(fast_path / "data")
    parts = engines(fast_path / "data")
    assert joined(parts) == before | {"answered": joined(parts)["answered"]}
    assert bodies(fast_path / "data") == texts
    assert [each.queues for each in answer.shards] == [2, 2, 1]
    assert sum(each.messages for each in answer.shards) == sum(map(len, texts.values()))
    assert [len(part.staging.batches) for part in parts] == [1, 0, 0]


def test_a_queue_is_found_by_its_name_and_by_its_number_and_a_new_one_gets_a_number_of_its_own(
    fast_path: Path,
) -> None:
    with worked(fast_path / "data") as directory:
        directory.create(*(f"queue-{number}" for number in range(10)))
    moved(fast_path / "data")
    stored = open_shards(fast_path / "data", SHARDS)
    where, seen = ShardMap(SHARDS, stored.elsewhere), set(range(1, 11))
    for shard, engine in enumerate(engines(fast_path / "data")):
        assert {where.of_name(name) for name in engine.numbers} == {shard}
        assert {where.of_number(number) for number in engine.queues} == {shard}
        engine.evolve(engine.decide(CreateQueue("new", DEFAULTS), now=engine.time + 1).events[0], 0)
        assert where.of_number(engine.numbers["new"]) == shard
        assert engine.numbers["new"] not in seen
        seen.add(engine.numbers["new"])


def test_readers_see_each_event_once(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        fill(directory)
        end = directory.log.end.offset
        log = DataDirectory(fast_path / "data").read_identity().message_ids().log_id
    moved(fast_path / "data")
    directories = [shard_directory(fast_path / "data", shard) for shard in range(SHARDS)]
    assert [LogFiles(each).view().earliest().offset for each in directories] == [0, end, end]
    identities = [each.read_identity() for each in directories]
    assert [each.lineage for each in identities] == [[(log, end)]] * SHARDS
    assert len({log, *(each.message_ids().log_id for each in identities)}) == 1 + SHARDS


def test_the_history_of_a_key_goes_to_the_shard_that_answers_for_it(fast_path: Path) -> None:
    async def published(path: Path) -> None:
        data = DataDirectory(path)
        data.open()
        loop, close = _recovered(data)
        for queue, key, body in (("a", b"1", b"x"), ("a", b"1", b"y"), ("b", b"2", b"x"), ("a", b"3", b"x")):
            message = NewMessage(body, object="customer", key=key)
            await ask(loop, Publish(queue, [message], QueueSettings(detect_unchanged=True)))
        close()

    async def check(path: Path) -> None:
        loops, closers = zip(*[_recovered(_opened(path, shard)) for shard in range(2)], strict=True)
        shards = ShardMap(2, open_shards(path, 2).elsewhere)
        for key, body, versions in ((b"1", b"y", 2), (b"2", b"x", 1), (b"3", b"x", 1)):
            describe = DescribeObject("customer", key, 10)
            found = await _ask(Router(shards, loops), describe)
            assert (found.newest.digest, len(found.versions)) == (content_digest(body), versions)
            assert (await ask(loops[shards.of_object("customer", key)], describe)).newest == found.newest
        for close in closers:
            close()

    uvloop.run(published(fast_path / "data"))
    moved(fast_path / "data", 2)
    uvloop.run(check(fast_path / "data"))


def test_a_request_that_is_repeated_after_the_move_is_recognised_in_each_shard(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        fill(directory)
    request = keyed(PublishTopics([NewMessage(b"a", topics=(name,)) for name in ("orders", "copies")], DEFAULTS))
    moved(fast_path / "data", 2)

    async def check() -> None:
        loops, closers = zip(*[_recovered(_opened(fast_path / "data", shard)) for shard in range(2)], strict=True)
        router = Router(ShardMap(2, open_shards(fast_path / "data", 2).elsewhere), loops)
        answer = await _ask(router, request)
        assert isinstance(answer, Repeated)
        assert [(each.queue, each.sequence) for each in answer.published] == [(1, 14), (3, 2)]
        assert all(isinstance(each, Published) for each in answer.published)
        for close in closers:
            close()

    uvloop.run(check())


# ── The same answers ──────────────────────────────────────────────────────────────────────────────────────────


def _opened(store: Path, shard: int) -> DataDirectory:
    directory = shard_directory(store, shard)
    directory.open()
    return directory


def _recovered(directory: DataDirectory) -> tuple[Loop, Callable[[], None]]:
    """A loop on a data directory, and what closes it."""
    engine, log, history = recover(directory, Config(data=directory.path, log=LogConfig(segment_bytes=1 << 20)))
    loop = Loop(engine, log, time.time_ns, AsyncioScheduler(asyncio.get_running_loop()))

    def close() -> None:
        if history.noted > history.reached:
            history.settle(log.start.position)
        history.close()
        log.close()
        directory.close()

    return loop, close


async def _ask(router: Router, command: Command) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    router.submit(command, answered.set_result)
    return await answered


async def _tell(path: Path, story: list[Command]) -> list[Any]:
    directory = DataDirectory(path)
    directory.open()
    loop, close = _recovered(directory)
    answers = [plain(await ask(loop, command)) for command in story]
    close()
    return answers


async def _tell_shards(path: Path, story: list[Command]) -> list[Any]:
    loops, closers = zip(*[_recovered(_opened(path, shard)) for shard in range(SHARDS)], strict=True)
    router = Router(ShardMap(SHARDS, open_shards(path, SHARDS).elsewhere), loops)
    answers = [plain(await _ask(router, command)) for command in story]
    for close in closers:
        close()
    return answers


@effort(15)
@given(st.lists(commands, min_size=5, max_size=25), st.lists(commands, min_size=5, max_size=25))
def test_a_store_that_was_moved_answers_as_the_one_before(before: list[Command], after: list[Command]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        uvloop.run(_tell(old, [*(CreateQueue(name, LONG) for name in NAMES), *before]))
        moved(old, to=new)
        assert uvloop.run(_tell_shards(new, after)) == uvloop.run(_tell(old, after))


# ── Crashes ───────────────────────────────────────────────────────────────────────────────────────────────────

STEPS = ("link", "fsync", "rename", "mkdir", "unlink", "rmdir", "truncate")


class Crash(BaseException):
    """The process is gone."""


class Crashing:
    """Ends a run at one of its calls of the operating system that change a disk."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        for name in STEPS:
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Crash
            return call(*arguments, **options)

        return counted


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_crash_at_any_step_loses_nothing_and_the_next_run_ends_the_move(elsewhere: bool, fast_path: Path) -> None:
    with worked(fast_path / "old") as directory:
        fill(directory)
    texts, seen, at = bodies(fast_path / "old"), set[Attempt](), 1
    while True:
        old = Path(shutil.copytree(fast_path / "old", fast_path / f"{at}"))
        new = fast_path / f"{at}-new" if elsewhere else None
        with pytest.MonkeyPatch.context() as patch:
            Crashing(patch, at)
            try:
                moved(old, to=new)
                break
            except Crash:
                pass
        if elsewhere or not (old / "shards.json").exists():
            assert bodies(old) == texts
        answer = moved(old, to=new)
        seen.add(answer.earlier)
        assert bodies(new or old) == texts
        assert {path.name for path in (new or old).iterdir()} - {"lock"} == {"shards", "shards.json"}
        for path in (old, new or old):
            shutil.rmtree(path, ignore_errors=True)
        at += 1 if TRY_LONG else 13
    assert Attempt.UNFINISHED in seen


def test_a_run_that_had_only_to_tidy_up_does_so(fast_path: Path) -> None:
    with worked(fast_path / "old") as directory:
        fill(directory)
    texts = bodies(fast_path / "old")
    moved(fast_path / "old")
    for left in ("resharding", "log"):
        (fast_path / "old" / left).mkdir()
    with pytest.raises(CommandError, match="has 3 shards, and only a store with one shard"):
        moved(fast_path / "old", 4)
    assert moved(fast_path / "old").earlier is Attempt.MADE
    assert bodies(fast_path / "old") == texts
    assert not (fast_path / "old" / "log").exists()


# ── What is refused ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_store_with_several_shards_is_refused(tmp_path: Path) -> None:
    open_shards(tmp_path / "data", 2)
    with pytest.raises(CommandError, match="has 2 shards, and only a store with one shard"):
        moved(tmp_path / "data")
    with worked(tmp_path / "single"):
        pass
    with pytest.raises(CommandError, match="is another store: nothing is overwritten"):
        moved(tmp_path / "single", 2, to=tmp_path / "data")
    with pytest.raises(CommandError, match="is one of 2 shards"):
        moved(tmp_path / "data" / "shards" / "0001")
    with pytest.raises(DataDirectoryError, match="is a store with several shards"):
        DataDirectory(tmp_path / "data").open()


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    with worked(tmp_path / "data"):
        pass
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes").touch()
    with pytest.raises(CommandError, match="is not empty: nothing is overwritten"):
        moved(tmp_path / "data", to=tmp_path / "new")


def test_a_damaged_log_is_refused_and_left_alone(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        directory.create("orders")
        directory.publish("orders", *("x" * 700 for _ in range(5)))
    first = min((fast_path / "data" / "log").iterdir())
    damaged = bytearray(first.read_bytes())
    damaged[200] ^= 1
    first.write_bytes(damaged)
    before = {path: path.read_bytes() for path in (fast_path / "data" / "log").iterdir()}
    with pytest.raises(DamagedLogError, match="is unchanged; make a directory that can be read with `penstock log"):
        moved(fast_path / "data")
    assert {path: path.read_bytes() for path in (fast_path / "data" / "log").iterdir()} == before
    assert not (fast_path / "data" / "resharding").exists()


def test_too_little_room_is_refused_before_anything_is_written(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worked(fast_path / "data") as directory:
        fill(directory)
    usage = shutil.disk_usage(fast_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CommandError, match=r"3 shards in .* need about 3 MiB, and 1 MiB are free; free some space"):
        moved(fast_path / "data")
    assert not (fast_path / "data" / "resharding").exists()


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_finished_segments_take_no_more_room(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        fill(directory)
    before = {path.name: path.stat().st_ino for path in sorted((fast_path / "data" / "log").iterdir())[:-1]}
    moved(fast_path / "data")
    assert len(before) > 2
    for shard in range(SHARDS):
        log = shard_directory(fast_path / "data", shard).log
        assert {name: (log / name).stat().st_ino for name in before} == before


def test_where_there_are_no_hard_links_segments_are_copied(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with worked(fast_path / "data") as directory:
        fill(directory)
    texts = bodies(fast_path / "data")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    moved(fast_path / "data")
    assert bodies(fast_path / "data") == texts


def test_a_segment_that_a_crash_left_without_a_header_is_left_out(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        fill(directory)
        end = directory.log.end.offset
    texts = bodies(fast_path / "data")
    newest = max((fast_path / "data" / "log").iterdir())
    before = newest.read_bytes()
    (newest.parent / f"{end:020}.log").write_bytes(bytes(100))
    moved(fast_path / "data", to=fast_path / "new")
    assert newest.read_bytes() == before
    assert bodies(fast_path / "new") == texts


def test_a_torn_tail_is_cut_in_the_shards_and_not_in_the_old_directory(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        fill(directory)
        newest, end = directory.log.segments[-1], directory.log.end.position
    texts = bodies(fast_path / "data")
    with newest.path.open("r+b") as file:
        file.seek(newest.file_offset(end))
        file.write(b"PB" * 50)
    before = newest.path.read_bytes()
    moved(fast_path / "data", to=fast_path / "new")
    assert newest.path.read_bytes() == before
    assert bodies(fast_path / "new") == texts


def test_a_shard_removes_old_segments_that_it_does_not_need_and_keeps_its_messages(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        directory.create("mine", "theirs")
        for _ in range(5):
            directory.publish("theirs", *(["x" * 300] * 4))
            directory.publish("mine", "kept")
        old = {path.name for path in directory.log.directory.log.iterdir()}
    moved(fast_path / "data", 2)

    async def serve_for_a_while() -> None:
        directory = _opened(fast_path / "data", 0)
        loop, close = _recovered(directory)
        keeper = Snapshots(loop, LogConfig(snapshot_bytes=64 << 10, retention_seconds=0))
        keeper.start()
        while old & {path.name for path in directory.log.iterdir()}:
            await ask(loop, Publish("mine", [NewMessage(b"x" * 10_000)]))
            await asyncio.sleep(0)
        await keeper.close()
        close()

    uvloop.run(serve_for_a_while())
    assert list(bodies(fast_path / "data")["mine"].values())[:5] == [b"kept"] * 5
    assert {path.name for path in shard_directory(fast_path / "data", 1).log.iterdir()} >= old
