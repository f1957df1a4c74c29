"""Object History over HTTP, against a real broker: what has not changed is told, whatever happens to the broker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.broker import Broker, StartBroker, refused_start
from tests.support.http_client import Response

JSON = {"Content-Type": "application/json"}


def publish(broker: Broker, key: str, message: str, about: str = "customer") -> Response:
    document = {"topics": [f"{about}.said"], "object": about, "key": key, "message": message}
    return broker.request("POST", "/v1/publish", JSON, json.dumps(document).encode())


def said(broker: Broker, key: str, message: str, about: str = "customer") -> str:
    """Publish; was it queued (Q) or unchanged (U)?"""
    answer = publish(broker, key, message, about)
    assert answer.status == 201, answer
    state = answer.json()["state"]
    assert isinstance(state, str)
    return state


def known(broker: Broker, key: str, about: str = "customer", query: str = "") -> dict[str, Any]:
    answer = broker.request("GET", f"/v1/objects/{quote(about, safe='')}/{quote(key, safe='')}{query}")
    assert answer.status == 200, answer
    told: dict[str, Any] = answer.json()
    return told


def rebuild(data: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", "log", "rebuild-history", str(data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_known_of_a_key_is_told(broker: Broker) -> None:
    first = publish(broker, "told/1 ☃", "a", "told object").json()
    second = publish(broker, "told/1 ☃", "b", "told object").json()
    again = publish(broker, "told/1 ☃", "b", "told object").json()
    assert (first["state"], second["state"], again["state"]) == ("Q", "Q", "U")
    told = known(broker, "told/1 ☃", "told object")
    assert (told["object"], told["key"], told["versions"]) == ("told object", "told/1 ☃", 2)
    assert (told["id"], told["queue"]) == (second["id"], "told object")
    assert told["digest"] == blake2b(b"b", digest_size=16).hexdigest()
    assert [version["id"] for version in told["history"]] == [second["id"], first["id"]]
    assert [version["version"] for version in told["history"]] == [2, 1]
    assert known(broker, "told/1 ☃", "told object", "?limit=1")["history"] == told["history"][:1]
    events = broker.request("GET", "/v1/events?queue=told%20object&state=LUQ").body.splitlines()
    shown = [json.loads(line) for line in events]
    assert "".join(event["state"] for event in shown) == "LQLQLU"
    assert shown[-1]["to_id"] == second["id"], "which version it equals"


def test_the_history_of_a_key_outlives_its_queue(broker: Broker) -> None:
    assert said(broker, "1", "a", "outlived") == "Q"
    assert broker.request("DELETE", "/v1/queues/outlived").status == 204
    assert known(broker, "1", "outlived")["queue"] is None
    assert said(broker, "1", "a", "outlived") == "U"


def test_what_has_not_changed_is_known_after_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker()
    for number in range(50):
        assert said(broker, str(number), "a") == "Q"
    assert said(broker, "7", "b") == "Q"
    for end in (broker.stop, broker.kill):
        end()
        broker.start()
        assert [said(broker, str(number), "a") for number in (1, 7)] == ["U", "Q"]
        assert [said(broker, str(number), "b") for number in (7, 7)] == ["Q", "U"]
    assert known(broker, "7")["versions"] == 6
    assert known(broker, "8")["versions"] == 1


@pytest.mark.parametrize("lost", ["removed", "garbage", "cut off"])
def test_a_broker_without_its_history_does_not_start_until_it_is_rebuilt(
    start_broker: StartBroker, tmp_path: Path, lost: str
) -> None:
    data = tmp_path / "data"
    broker = start_broker(data=data)
    for round_ in range(3):
        documents = [
            {"topics": ["customer.said"], "key": str(number), "message": str(round_)} for number in range(1000)
        ]
        answer = broker.request("POST", "/v1/publish", JSON, json.dumps(documents).encode())
        assert {receipt["state"] for receipt in answer.json()} == {"Q"}
    before = [known(broker, str(number)) for number in range(0, 1000, 100)]
    in_use = rebuild(data)
    assert in_use.returncode == 3
    assert f"in use by process {broker.pid}" in in_use.stderr
    broker.stop()
    if lost == "removed":
        shutil.rmtree(data / "history")
    elif lost == "garbage":
        (data / "history" / "data.mdb").write_bytes(b"garbage" * 9999)
    else:
        with (data / "history" / "data.mdb").open("r+b") as file:
            file.truncate(20_000)
    code, complaint = refused_start(data)
    assert code == 1
    assert f"penstock log rebuild-history {data}" in complaint
    rebuilt = rebuild(data)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert "has 1,000 keys" in rebuilt.stdout
    broker.start()
    assert [known(broker, str(number)) for number in range(0, 1000, 100)] == before
    assert said(broker, "999", "2") == "U"


def test_a_history_of_another_time_is_refused(start_broker: StartBroker, tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = start_broker(data=data)
    assert said(broker, "1", "a") == "Q"
    broker.stop()
    shutil.copytree(data / "history", tmp_path / "older")
    shutil.copytree(data, tmp_path / "backup")
    broker.start()
    assert said(broker, "1", "b") == "Q"
    broker.stop()
    shutil.copytree(data / "history", tmp_path / "newer")
    shutil.rmtree(data / "history")
    shutil.move(tmp_path / "older", data / "history")
    code, complaint = refused_start(data)
    assert code == 1
    assert "but the snapshot says that it reached" in complaint
    shutil.rmtree(tmp_path / "backup" / "history")
    shutil.move(tmp_path / "newer", tmp_path / "backup" / "history")
    code, complaint = refused_start(tmp_path / "backup")
    assert code == 1
    assert "is ahead of the log" in complaint


def test_a_new_key_too_many_is_refused_and_a_known_one_is_not(start_broker: StartBroker) -> None:
    broker = start_broker("history.keys_max=2")
    assert [said(broker, key, "a") for key in ("1", "2")] == ["Q", "Q"]
    answer = publish(broker, "3", "a")
    assert answer.status == 503
    assert answer.json()["code"] == "key_limit"
    assert [said(broker, "1", message) for message in ("a", "b", "b")] == ["U", "Q", "U"]
    assert broker.request("GET", "/v1/objects/customer/3").status == 404


def test_a_publish_with_more_new_keys_than_there_is_room_for_is_refused_as_a_whole(
    start_broker: StartBroker,
) -> None:
    broker = start_broker("history.keys_max=2")
    documents = [{"topics": ["thing.said"], "key": str(number), "message": "a"} for number in range(3)]
    answer = broker.request("POST", "/v1/publish", JSON, json.dumps(documents).encode())
    assert answer.status == 503, answer
    assert broker.request("GET", "/v1/objects/thing/0").status == 404
    answer = broker.request("POST", "/v1/publish", JSON, json.dumps(documents[:2] * 3).encode())
    assert [receipt["state"] for receipt in answer.json()] == ["Q", "Q", "U", "U", "U", "U"]
