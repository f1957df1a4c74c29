"""`penstock backup` of a broker with several shards that serves, and what it leaves behind if a worker is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.backup import broker_source
from penstock.cli.backup.broker_source import BrokerSource, BrokerStore
from penstock.cli.exits import CommandError
from penstock.client.trust import Trust
from penstock.storage.backup.making import make_backup
from penstock.storage.backup.manifest import SourceState, contents_of
from penstock.storage.backup.restoring import verify_backup
from penstock.storage.shards import read_shards
from tests.support.broker import Broker
from tests.support.command_line import penstock
from tests.support.waiting import wait_until

SHARDS = 4
FLAGS = ("--workers", "2", "--shards", str(SHARDS))
QUEUES = [f"orders{number}" for number in range(8)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", flags=FLAGS).start()
    try:
        for queue in QUEUES:
            publish(broker, queue, "first")
        yield broker
    finally:
        broker.stop()


def publish(broker: Broker, queue: str, text: str) -> str:
    message = {"topics": [queue], "object": queue, "key": "1", "message": text}
    answer = broker.request("POST", "/v1/publish", None, json.dumps(message).encode())
    assert answer.status in (200, 201), answer
    return str(answer.json()["state"])


def backed_up(broker: Broker, directory: Path) -> Any:
    ended = penstock("backup", str(directory), "--json", PENSTOCK_URL=broker.url)
    assert ended.returncode == 0, ended
    return json.loads(ended.stdout)


def test_a_broker_with_several_shards_is_backed_up_while_it_serves(broker: Broker, tmp_path: Path) -> None:
    first = backed_up(broker, tmp_path / "backup")
    assert [Path(each["directory"]).name for each in first["shards"]] == ["0000", "0001", "0002", "0003"]
    assert publish(broker, QUEUES[0], "second") == "Q"
    second = backed_up(broker, tmp_path / "backup")
    assert second["copied_bytes"] < first["copied_bytes"] < second["copied_bytes"] + second["reused_bytes"]
    publish(broker, QUEUES[1], "later")
    checked = penstock("backup", str(tmp_path / "backup"), "--verify")
    assert (checked.returncode, checked.stdout.count("whole: ")) == (0, SHARDS)
    ended = penstock("restore", str(tmp_path / "backup"), str(tmp_path / "restored"), "--json")
    queues = [queue for shard in json.loads(ended.stdout)["shards"] for queue in shard["queues"]]
    assert {queue["name"]: queue["messages"] for queue in queues} == dict.fromkeys(QUEUES, 1) | {QUEUES[0]: 2}
    assert read_shards(tmp_path / "restored") == read_shards(tmp_path / "data")
    again = Broker(tmp_path / "restored", flags=FLAGS).start()
    try:
        assert [publish(again, queue, "first") for queue in QUEUES] == ["Q"] + ["U"] * 7, "it knows the objects"
    finally:
        again.stop()


def test_while_one_shard_is_copied_the_others_keep_their_files(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[BrokerSource] = set()
    state = BrokerSource.state

    def noted(source: BrokerSource) -> SourceState:
        asked.add(source)
        return state(source)

    monkeypatch.setattr(broker_source, "_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(BrokerSource, "state", noted)
    with BrokerStore(broker.url, "", Trust()) as source:
        make_backup(tmp_path / "backup", source)
        assert asked == set(source.shards)
    assert verify_backup(tmp_path / "backup") == []


class Killing(BrokerStore):
    """A worker is killed just before the moment of all shards."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.url, "", Trust())
        self._workers = Path(f"/proc/{broker.pid}/task/{broker.pid}/children")
        self._calls = 0

    def states(self) -> list[SourceState]:
        self._calls += 1
        if self._calls == 2:
            os.kill(int(self._workers.read_text().split()[0]), signal.SIGKILL)
        return super().states()


def test_a_worker_that_is_killed_in_the_middle_leaves_the_earlier_backup(broker: Broker, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backed_up(broker, backup)
    earlier = contents_of(backup)
    publish(broker, QUEUES[0], "second")
    with Killing(broker) as source, pytest.raises(CommandError, match=r"broke off|refuses /v1/backup"):
        make_backup(backup, source)
    assert contents_of(backup) == earlier
    assert verify_backup(backup) == []
    wait_until(lambda: penstock("backup", str(backup), PENSTOCK_URL=broker.url).returncode == 0, "the worker is back")
    assert contents_of(backup) != earlier
    assert verify_backup(backup) == []


def test_a_first_backup_that_is_cut_off_is_none(broker: Broker, tmp_path: Path) -> None:
    with Killing(broker) as source, pytest.raises(CommandError):
        make_backup(tmp_path / "backup", source)
    refused = penstock("restore", str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert "is not a backup: backup.json is missing" in refused.stderr
    assert not (tmp_path / "restored").exists()
