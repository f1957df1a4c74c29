"""A data directory is opened: the state is what the log in it says, or the reason why not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.recovery import Recovered, recover
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.config.config import Config
from penstock.errors import DataDirectoryError, HistoryError
from penstock.model.commands import CreateQueue, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.storage.directory import DataDirectory
from penstock.storage.log.segment import segment_path
from penstock.storage.shards import open_shards, shard_directory
from tests.support.live_loop import ask, settled


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    yield directory
    directory.close()


def recovered(directory: DataDirectory) -> Recovered:
    return recover(directory, Config(data=directory.path))


def close(opened: Recovered) -> None:
    opened.log.close()
    opened.history.close()


def test_what_was_published_is_there_again(directory: DataDirectory) -> None:
    async def publish() -> None:
        opened = recovered(directory)
        loop = Loop(opened.engine, opened.log, time.time_ns, AsyncioScheduler(asyncio.get_running_loop()))
        await ask(loop, Publish("work", [NewMessage(b"x")] * 3, QueueSettings()))
        close(opened)

    asyncio.run(publish())
    again = recovered(directory)
    queue = again.engine.queue("work")
    assert queue
    assert queue.ready == 3
    assert again.log.end.offset == 4
    close(again)


def test_a_directory_that_cannot_be_read_is_refused_by_name(directory: DataDirectory) -> None:
    segment_path(directory.log, 0).mkdir()  # Not a file.
    with pytest.raises(DataDirectoryError, match=rf"^cannot use {directory.path}: "):
        recovered(directory)


def test_a_history_that_cannot_be_read_is_refused_with_the_way_to_rebuild_it(directory: DataDirectory) -> None:
    directory.history.mkdir()
    (directory.history / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(HistoryError, match=rf"penstock log rebuild-history {directory.path}$"):
        recovered(directory)


def test_a_shard_goes_on_with_its_own_numbers_for_queues(tmp_path: Path) -> None:
    open_shards(tmp_path, 4)
    found = []
    for name in ("one", "two"):
        directory = shard_directory(tmp_path, 2)
        directory.open()
        opened = recovered(directory)
        found.append(asyncio.run(_created(opened, name)))
        close(opened)
        directory.close()
    assert found == [3, 7]


async def _created(opened: Recovered, name: str) -> int:
    loop = Loop(opened.engine, opened.log, time.time_ns, AsyncioScheduler(asyncio.get_running_loop()))
    described = await ask(loop, CreateQueue(name, QueueSettings()))
    await settled(loop)
    return int(described.number)
