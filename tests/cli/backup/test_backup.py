"""`penstock backup` and `penstock restore`, as an operator uses them: at a broker that serves, and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.command_line import penstock

JSON = {"Content-Type": "application/json"}
SETTINGS = ("log.segment_bytes=65536", "log.snapshot_bytes=131072", "log.retention_seconds=0")


def backed_up(broker: Broker, directory: Path) -> Any:
    ended = penstock("backup", str(directory), "--json", PENSTOCK_URL=broker.url)
    assert ended.returncode == 0, ended
    return json.loads(ended.stdout)


def publish(broker: Broker, queue: str, *items: tuple[str, str]) -> list[str]:
    """Messages about keys of an object. Returns the states that the broker answers with."""
    messages = [{"topics": [queue], "object": queue, "key": key, "message": text} for key, text in items]
    with broker.connect() as connection:
        answers = [connection.request("POST", "/v1/publish", JSON, json.dumps(each).encode()) for each in messages]
    return [answer.json()["state"] for answer in answers]


def restored(start_broker: StartBroker, backup: Path, data: Path) -> Broker:
    ended = penstock("restore", str(backup), str(data))
    assert ended.returncode == 0, ended
    return start_broker(data=data)


def messages(broker: Broker, queue: str) -> list[str]:
    ended = penstock("peek", queue, "--count", "1000", "--json", PENSTOCK_URL=broker.url)
    assert ended.returncode == 0, ended
    return [json.loads(line)["id"] for line in ended.stdout.splitlines()]


def test_a_restored_broker_is_green_and_has_what_was_there_and_nothing_later(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(*SETTINGS)
    assert publish(broker, "orders", *((str(key), "first") for key in range(50))) == ["Q"] * 50
    made = backed_up(broker, tmp_path / "backup")
    there = messages(broker, "orders")
    publish(broker, "orders", ("0", "later"), ("new", "later"))
    broker.kill()
    again = restored(start_broker, tmp_path / "backup", tmp_path / "restored")
    assert again.request("GET", "/health").body == b"green"
    assert messages(again, "orders") == there
    assert again.request("GET", "/v1/log").json()["end"] == made["offset"]
    document = again.request("GET", f"/v1/messages/{there[0]}")
    assert document.status == 200, "the ids are those that the first broker gave out"
    assert publish(again, "orders", ("0", "first"), ("1", "second"), ("new", "later")) == ["U", "Q", "Q"]


def test_what_the_object_history_has_written_and_what_it_has_not_is_there_after_a_restore(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(*SETTINGS)
    publish(broker, "orders", *((str(key), "first") for key in range(300)))
    broker.stop()  # Writes the history.
    broker.start()
    publish(broker, "orders", *((str(key), "second") for key in range(100)))
    backed_up(broker, tmp_path / "backup")
    assert list((tmp_path / "backup" / "history").iterdir())
    versions = [broker.request("GET", f"/v1/objects/orders/{key}").body for key in (0, 99, 100, 299)]
    again = restored(start_broker, tmp_path / "backup", tmp_path / "restored")
    assert [again.request("GET", f"/v1/objects/orders/{key}").body for key in (0, 99, 100, 299)] == versions
    unchanged = [(str(key), "second" if key < 100 else "first") for key in range(300)]
    assert publish(again, "orders", *unchanged) == ["U"] * 300


def test_a_second_backup_copies_little_and_a_backup_can_be_checked(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(*SETTINGS)
    publish(broker, "orders", *((str(key), "x" * 2000) for key in range(200)))
    first = backed_up(broker, tmp_path / "backup")
    broker.create_queue("more")
    second = backed_up(broker, tmp_path / "backup")
    assert first["copied_bytes"] > 200 * 2000
    assert second["offset"] > first["offset"]
    assert second["copied_bytes"] < 100_000, "at most a snapshot and an event"
    checked = penstock("backup", str(tmp_path / "backup"), "--verify")
    assert checked.returncode == 0
    assert checked.stdout.startswith("whole: ")
    newest = max((tmp_path / "backup" / "log").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    checked = penstock("backup", str(tmp_path / "backup"), "--verify", "--json")
    assert checked.returncode == 1
    assert newest.name in json.loads(checked.stdout)["problems"][0]


def test_a_stopped_broker_is_backed_up_from_its_files(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(*SETTINGS)
    publish(broker, "orders", ("a", "first"))
    in_use = penstock("backup", str(tmp_path / "backup"), "--data", str(broker.data))
    assert in_use.returncode == 3
    assert "is in use by process" in in_use.stderr
    broker.kill()
    ended = penstock("backup", str(tmp_path / "backup"), "--data", str(broker.data))
    assert ended.returncode == 0, ended
    again = restored(start_broker, tmp_path / "backup", tmp_path / "restored")
    assert publish(again, "orders", ("a", "first"), ("a", "second")) == ["U", "Q"]


def test_a_restore_says_what_is_there(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(*SETTINGS)
    publish(broker, "orders", ("a", "first"), ("b", "first"))
    made = backed_up(broker, tmp_path / "backup")
    ended = penstock("restore", str(tmp_path / "backup"), str(tmp_path / "restored"), "--json")
    found = json.loads(ended.stdout)
    assert found["queues"] == [{"name": "orders", "messages": 2, "last_sequence": 2}]
    assert (found["offset"], found["time"]) == (made["offset"], made["time"])
    refused = penstock("restore", str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert refused.returncode == 1
    assert "is not empty: nothing is overwritten" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["backup", "b", "--verify"], 1, "b is not a backup: backup.json is missing"),
        (["backup", "b", "--data", "nowhere"], 1, "is not a Penstock data directory"),
        (["backup", "b", "--data", "d", "--verify"], 2, "give one of them"),
        (["backup", "b", "--url", "http://127.0.0.1:9"], 6, "cannot be reached"),
        (["restore", "b", "d"], 1, "is not a backup"),
    ],
)
def test_what_goes_wrong_has_a_sentence_and_a_code(
    arguments: list[str], code: int, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    paths = [str(tmp_path / each) if each in ("b", "d", "nowhere") else each for each in arguments]
    ended = penstock(*paths)
    assert ended.returncode == code, ended
    assert sentence in ended.stderr


def test_a_backup_needs_the_token(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("auth.tokens=secret-secret-secret")
    refused = penstock("backup", str(tmp_path / "backup"), PENSTOCK_URL=broker.url)
    assert refused.returncode == 5
    assert "give it with --token" in refused.stderr
    allowed = penstock("backup", str(tmp_path / "backup"), "--token", "secret-secret-secret", PENSTOCK_URL=broker.url)
    assert allowed.returncode == 0, allowed
