"""A broker inside the process: the same API, on the same data."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from pathlib import Path

import pytest

import penstock
from penstock import AsyncClient
from penstock.errors import DataDirectoryError, InUseError
from tests.support.broker import refused_start


def test_what_is_published_is_there_when_the_directory_is_opened_again(tmp_path: Path) -> None:
    with penstock.local(tmp_path / "data") as client:
        client.queues.create("orders")
        client.publish("orders", {"id": 17})
    with penstock.local(tmp_path / "data") as client:
        assert client.receive("orders")[0].json() == {"id": 17}


def test_without_a_directory_nothing_is_left() -> None:
    with penstock.local() as client:
        directory = client.broker.directory
        assert directory.exists()
    assert not directory.exists()


def test_a_directory_serves_one_broker_at_a_time(tmp_path: Path) -> None:
    with penstock.local(tmp_path):
        with pytest.raises(InUseError, match="is in use by this process"):
            penstock.local(tmp_path)
        code, said = refused_start(tmp_path)
        assert code != 0
        assert "is in use by process" in said
    penstock.local(tmp_path).close()


def test_a_broker_that_cannot_start_says_why_and_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match="is not a directory"):
            penstock.local(tmp_path / "file")


def test_signals_and_the_garbage_collector_stay_as_they_are(tmp_path: Path) -> None:
    before = (
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGTERM),
        gc.get_threshold(),
        gc.get_freeze_count(),
    )
    with penstock.local():
        during = (
            signal.getsignal(signal.SIGINT),
            signal.getsignal(signal.SIGTERM),
            gc.get_threshold(),
            gc.get_freeze_count(),
        )
    assert during == before


def test_closing_ends_the_threads() -> None:
    before = threading.active_count()
    with penstock.local():
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_an_asynchronous_client_uses_the_same_broker() -> None:
    async def count(url: str) -> int:
        async with AsyncClient(url) as client:
            return (await client.queues.get("shared")).status.messages

    with penstock.local() as client:
        client.queues.create("shared")
        client.publish_many("shared", ["a", "b"])
        assert asyncio.run(count(client.url)) == 2
