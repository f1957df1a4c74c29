"""The shards of a store are backed up at one moment, though messages cross them and several workers have them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.services import backups
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.port import Pause
from penstock.cli.backup.broker_source import BrokerStore
from penstock.client.trust import Trust
from penstock.storage.backup.making import make_backup
from penstock.storage.backup.restoring import restore_backup
from tests.support.fitting import misfits
from tests.support.http_client import Response
from tests.support.sharded import Store, a_store
from tests.support.waiting import wait_until

HOMES = {"source": 0, "target": 1}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two shards in two workers. Messages of the queue are copied to a channel of the other shard."""
    with a_store(tmp_path / "store", 2, 2, HOMES) as store:
        assert store.request("PUT", "/v1/queues/source", b"{}").status == 201
        body = json.dumps({"topics": ["source.*"]}).encode()
        assert store.request("PUT", "/v1/channels/target", body).status == 201
        yield store


def loop_of(store: Store, shard: int) -> Loop:
    return store.all[shard].shards[shard].loop


def publish(store: Store, message: str) -> Response:
    body = json.dumps({"topics": ["source.x"], "message": message}).encode()
    return store.request("POST", "/v1/publish", body, worker=0)


def copies(store: Store) -> int:
    return int(store.request("GET", "/v1/channels/target").json()["status"]["messages"])


class LateShard:
    """Shard 1 begins its pause only when it is let, so that shard 0 has noted its end long before."""

    def __init__(self, store: Store) -> None:
        self.loops = [loop_of(store, shard) for shard in range(2)]
        self.first_has_begun = threading.Event()
        self.may_begin = threading.Event()
        self._running = store._running
        self._pauses = [loop.pause for loop in self.loops]
        self.loops[0].pause = self._first
        self.loops[1].pause = self._second

    def _first(self, begun: Callable[[], None]) -> Pause:
        pause = self._pauses[0](begun)
        self.first_has_begun.set()
        return pause

    def _second(self, begun: Callable[[], None]) -> Pause:
        def wait() -> None:
            self.may_begin.wait(60)
            self._running.call_soon_threadsafe(begun)

        return self._pauses[1](threading.Thread(target=wait).start)


def forget_pauses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed the bug: a shard notes its end and goes on."""

    def pause(begun: Callable[[], None]) -> Pause:
        begun()
        return Pause(begun)

    for shard in range(2):
        monkeypatch.setattr(loop_of(store, shard), "pause", pause)
        monkeypatch.setattr(loop_of(store, shard), "resume", lambda _: True)


class Copied(BrokerStore):
    """A backup in which shard 1 is late at the moment of all shards."""

    def __init__(self, store: Store, until_late: Callable[[], object]) -> None:
        super().__init__(f"http://127.0.0.1:{store.ports[0]}", "", Trust())
        self._store = store
        self._until_late = until_late
        self._calls = 0

    def states(self) -> list[Any]:
        self._calls += 1
        if self._calls == 1:
            return super().states()
        late = LateShard(self._store)
        with ThreadPoolExecutor(2) as threads:
            states = threads.submit(super().states)
            assert late.first_has_begun.wait(60)
            published = threads.submit(publish, self._store, "during the backup")
            self._until_late()
            late.may_begin.set()
            found = states.result(60)
            assert published.result(60).status == 201
        return found


def back_up_and_restore(store: Store, folder: Path, until_late: Callable[[], object]) -> Path:
    with Copied(store, until_late) as source:
        make_backup(folder / "backup", source)
    restore_backup(folder / "backup", folder / "restored")
    return folder / "restored"


def test_what_crosses_shards_while_their_ends_are_noted_is_in_neither(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "BACKUP_PAUSE_SECONDS_MAX", 60.0)
    assert publish(store, "before the backup").status == 201
    wait_until(lambda: copies(store) == 1, "it is in the channel")
    collected = loop_of(store, 0)._collected
    restored = back_up_and_restore(
        store, tmp_path, lambda: wait_until(lambda: bool(collected), "the next message waits in shard 0")
    )
    assert misfits(restored) == []
    wait_until(lambda: copies(store) == 2, "both are in the channel")


def test_without_the_pause_a_shard_has_what_the_other_does_not_know(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_pauses(store, monkeypatch)
    restored = back_up_and_restore(
        store, tmp_path, lambda: wait_until(lambda: copies(store) == 1, "it is in the channel")
    )
    assert "shard 1 has read shard 0 up to" in " ".join(misfits(restored))


def test_a_shard_that_waits_too_long_for_another_goes_on_and_the_backup_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "BACKUP_PAUSE_SECONDS_MAX", 0.05)
    late = LateShard(store)
    with ThreadPoolExecutor(1) as threads:
        refused = threads.submit(store.request, "GET", "/v1/backup")
        assert late.first_has_begun.wait(60)
        assert publish(store, "it does not wait for shard 1").status == 201
        late.may_begin.set()
        answer = refused.result(60)
    assert (answer.status, answer.json()["code"]) == (503, "no_moment")


def test_backups_at_the_same_time_do_not_wait_for_each_other_without_end(store: Store) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: store.request("GET", "/v1/backup"), range(8)))
    assert [answer.status for answer in answers] == [200] * 8
    assert publish(store, "after them").status == 201


def test_the_states_of_all_shards_have_where_queues_are(store: Store) -> None:
    found = store.request("GET", "/v1/backup").json()
    assert (found["shards"], found["elsewhere"]) == (2, HOMES)
    assert [each["identity"].get("shard") for each in found["backups"]] == [0, 1]
