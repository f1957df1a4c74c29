"""A queue name is any text that JSON can hold: the same queue in every dialect, percent-encoded in URLs."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.broker import Site
from tests.support.http_client import Response
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient

MQS = {"retention_timeout": 600, "visibility_timeout": 30, "message_deduplication": False}


def ask(broker: Site, method: str, path: str, document: Any = None, status: int = 200) -> Any:
    body = b"" if document is None else json.dumps(document).encode()
    response: Response = broker.request(method, path, body=body)
    assert response.status == status, (path, response)
    return response.json() if response.body else None


@pytest.mark.parametrize("name", ["jobs/2026/ü", "/", "a b?c=d#e", "50%2F%", '"\\', "🐎/../."])
def test_a_queue_has_the_same_name_in_every_dialect(site: Site, name: str) -> None:
    written = quote(name, safe="")
    ask(site, "PUT", f"/queues/{written}", MQS, 201)
    with LineClient(site.lines) as lines:
        published = lines.ask(cmd="PUB", qname=name, message="from etzel")
        assert (published["cmd"], published["qname"]) == ("ok", name)
        assert ask(site, "POST", "/post", {"messages": {name: ["from NQ"]}}) == {name: [2]}
        assert ask(site, "POST", f"/messages/{written}", status=201) is None
        assert ask(site, "GET", f"/status/{written}")["length"] == 3
        assert ask(site, "GET", f"/queues/{written}")["name"] == name
        assert ask(site, "GET", f"/v1/queues/{written}")["name"] == name
        found = ask(site, "GET", f"/v1/search?queue={written}")["messages"]
        assert len(found) == 3
        events = site.request("GET", f"/v1/events?queue={written}").body.splitlines()
        assert {json.loads(event)["queue"] for event in events} == {name}
        assert len(ask(site, "GET", f"/v1/schedule?queue={written}")["messages"]) == 0
        assert lines.ask(cmd="FET", qname=name)["msg"] == "from etzel"
        pulled = ask(site, "POST", "/pull", {"receiver": "r", "timeout": 0, "queues": {name: {}}})
        assert [message["message"] for message in pulled["messages"][name]] == ["from NQ"]
    ask(site, "DELETE", f"/queues/{written}")


def test_results_and_dead_letters_take_such_names_too(site: Site) -> None:
    ask(site, "POST", "/post", {"messages": {"calls/1": ["question"]}})
    ask(site, "POST", "/pull", {"receiver": "r", "results": {"calls/1": {"1": "answer"}}})
    assert ask(site, "GET", "/v1/results/calls%2F1/1")["result"] == "answer"
    ask(site, "PUT", "/queues/dead%2Fletters", MQS, 201)
    policy = {"max_receives": 1, "dead_letter_queue": "dead/letters"}
    ask(site, "PUT", "/queues/work%2F1", MQS | {"redrive_policy": policy}, 201)
    site.request("POST", "/messages/work%2F1", body=b"x")
    assert site.request("GET", "/messages/work%2F1").body == b"x"
    assert ask(site, "GET", "/queues/dead%2Fletters")["status"]["messages"] == 1
    assert ask(site, "POST", "/v1/redrive", {"from": "dead/letters"})["matched"] in (0, 1)


def test_glovebox_and_topics_take_such_names_too(site: Site) -> None:
    with WsClient(site.http) as socket:
        socket.hear()
        socket.say({"type": "create", "queue": "boxes/1", "label": 1})
        assert socket.hear() == {"type": "notice", "label": 1, "notice": "ready"}
    assert ask(site, "GET", "/status/boxes%2F1")["length"] == 0
    ask(site, "POST", "/v1/publish", {"message": "x", "topics": ["fruit/red.sweet"]}, 201)
    (message,) = ask(site, "GET", "/v1/queues/fruit%2Fred/messages?consumer=c")
    assert message["queue"] == "fruit/red"
