"""A broker without pyarrow, which is larger than all other libraries together: everything works but Arrow itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.broker import Broker, StartBroker

ARROW = "application/vnd.apache.arrow.stream"


def filled(broker: Broker) -> str:
    """Publishes a message, takes and confirms it. Returns its id."""
    sent = broker.request("POST", "/v1/publish?topic=light.x", body=b"hello").json()
    (taken,) = broker.request("GET", "/v1/queues/light/messages").json()
    outcome = json.dumps({"id": taken["id"], "outcome": "success"}).encode()
    assert broker.request("POST", "/v1/confirm", body=outcome).status == 200
    return str(sent["id"])


def test_arrow_is_loaded_by_the_first_who_asks_for_it(start_broker: StartBroker) -> None:
    broker = start_broker()
    filled(broker)
    assert broker.request("GET", "/v1/events?topic=light.*").status == 200
    maps = Path(f"/proc/{broker.pid}/maps")
    assert "libarrow" not in maps.read_text()
    assert broker.request("GET", "/v1/events", {"Accept": ARROW}).status == 200
    assert "libarrow" in maps.read_text()


@pytest.fixture
def light(start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('it is not installed', name='pyarrow')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return start_broker()


def test_a_broker_without_arrow_shows_events_and_the_life_of_a_message(light: Broker) -> None:
    message = filled(light)
    lines = light.request("GET", "/v1/events?topic=light.*").body.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["L", "Q", "F", "S", "X"]
    streamed = light.request("GET", "/v1/events?bodies=false", {"Accept": "text/event-stream"})
    assert streamed.body.count(b"data: ") == 5
    document = light.request("GET", f"/v1/messages/{message}").json()
    assert [event["state"] for event in document["events"]] == ["L", "Q", "F", "S", "X"]
    light.stop()
    light.start()
    assert light.request("GET", f"/v1/messages/{message}").json()["message"] == "hello"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/events", b""),
        ("POST", "/v1/stage/query/0/part", b"rows"),
        ("POST", "/v1/claims/light/read", b'{"consumer": "c", "claimed": [], "lease": 5}'),
    ],
)
def test_a_broker_without_arrow_names_the_extra(light: Broker, method: str, path: str, body: bytes) -> None:
    filled(light)
    refused = light.request(method, path, {"Accept": ARROW}, body)
    assert (refused.status, refused.json()["code"]) == (406, "no_arrow")
    assert "penstock[arrow]" in refused.json()["error"]
