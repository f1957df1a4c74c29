"""One client of each dialect that uses what quotas limit. Each answer is a text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from tests.support.broker import Broker
from tests.support.http_client import Connection, Response
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient

QUEUE = "limited"  # It exists, and has messages.
EMPTY = "empty"
BODY = "x" * 1000  # So long that few of them are many bytes a second.
_names = (f"new-{number}" for number in itertools.count())


def shown(response: Response) -> str:
    facts = {name: response.header(name) for name in ("Retry-After", "X-Penstock-Code")}
    return json.dumps({"status": response.status, **facts, "body": response.body.decode()})


class HttpClient:
    """Shared by the dialects over HTTP: `targets` by what is used."""

    def __init__(self, broker: Broker) -> None:
        self.connection = Connection(broker.http)

    def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return shown(self.connection.request(method, target, named, body))

    def close(self) -> None:
        self.connection.close()

    def send_wait(self, method: str, target: str, body: bytes | None = None, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.send_request(method, target, named, body)

    def hear(self) -> str:
        return shown(self.connection.read_response())


class Mqs(HttpClient):
    def publish(self) -> str:
        return self.ask("POST", f"/messages/{QUEUE}", BODY.encode())

    def receive(self) -> str:
        return self.ask("GET", f"/messages/{QUEUE}")

    def create(self) -> str:
        settings = b'{"retention_timeout":60,"visibility_timeout":30,"message_deduplication":false}'
        return self.ask("PUT", f"/queues/{next(_names)}", settings)

    def wait(self) -> None:
        self.send_wait("GET", f"/messages/{EMPTY}", X_MQS_MAX_WAIT_TIME="20")


class Native(HttpClient):
    def publish(self) -> str:
        return self.ask(
            "POST",
            f"/v1/queues/{QUEUE}/messages",
            json.dumps({"message": BODY}).encode(),
            Content_Type="application/json",
        )

    def receive(self) -> str:
        return self.ask("GET", f"/v1/queues/{QUEUE}/messages")

    def create(self) -> str:
        return self.ask("POST", "/v1/publish", json.dumps({"topics": [next(_names)], "message": "x"}).encode())

    def wait(self) -> None:
        self.send_wait("GET", f"/v1/queues/{EMPTY}/messages?wait=20")


class NativeDocuments(Native):
    """Creates queues by their documents, not by topics."""

    def create(self) -> str:
        return self.ask("PUT", f"/v1/queues/{next(_names)}", b"{}")


class Nq(HttpClient):
    def publish(self) -> str:
        return self.ask("POST", "/post", json.dumps({"messages": {QUEUE: [BODY]}}).encode())

    def receive(self) -> str:
        pull = {"receiver": next(_names), "timeout": 0, "queues": {"kept": {}}}
        return self.ask("POST", "/pull", json.dumps(pull).encode())

    def create(self) -> str:
        return self.ask("POST", "/post", json.dumps({"messages": {next(_names): ["x"]}}).encode())

    def wait(self) -> None:
        pull = {"receiver": "r", "timeout": 20, "queues": {EMPTY: {}}}
        self.send_wait("POST", "/pull", json.dumps(pull).encode())


class Etzel:
    """Over lines."""

    def __init__(self, broker: Broker) -> None:
        self.link: Any = LineClient(broker.lines)

    def close(self) -> None:
        self.link.close()

    def hear(self) -> str:
        return json.dumps(self.link.hear())

    def publish(self) -> str:
        return json.dumps(self.link.ask(cmd="PUB", qname=QUEUE, message=BODY))

    def receive(self) -> str:
        return json.dumps(self.link.ask(cmd="FET", qname=QUEUE))

    def create(self) -> str:
        return json.dumps(self.link.ask(cmd="PUB", qname=next(_names), message=BODY))

    def wait(self) -> None:
        self.link.say({"cmd": "ISLP", "qname": EMPTY})


class EtzelWs(Etzel):
    def __init__(self, broker: Broker) -> None:
        self.link = WsClient(broker.http, "/connect")


class Glovebox(Etzel):
    def __init__(self, broker: Broker) -> None:
        self.link = WsClient(broker.http)
        assert self.link.hear()["type"] == "hello"

    def publish(self) -> str:
        return json.dumps(self.link.ask(type="post", queue=QUEUE, message=BODY, notify=["sync"], label=1))

    def receive(self) -> str:
        return json.dumps(self.link.ask(type="fetch", queue=QUEUE, label=1))

    def create(self) -> str:
        return json.dumps(self.link.ask(type="create", queue=next(_names), label=1))

    def wait(self) -> None:
        self.link.say({"type": "fetch", "queue": EMPTY, "block_timeout": 20, "label": 1})


CLIENTS: dict[str, Callable[[Broker], Any]] = {
    "mqs": Mqs,
    "native": Native,
    "native, documents": NativeDocuments,
    "nq": Nq,
    "etzel over lines": Etzel,
    "etzel over WebSocket": EtzelWs,
    "glovebox": Glovebox,
}

_HTTP = ('"status": 429', "quota_exceeded", '"Retry-After": "')
_ETZEL = ('"cmd": "nok"', '"err": "QUOTA_EXCEEDED"')
AT_THE_DOOR = ("bytes_per_second", "requests_per_second")
REFUSALS = {
    "mqs": _HTTP,
    "native": _HTTP,
    "native, documents": _HTTP,
    "nq": (*_HTTP, "_error"),
    "etzel over lines": _ETZEL,
    "etzel over WebSocket": _ETZEL,
    "glovebox": ('"type": "error"', '"code": "Unavailable"'),
}


def is_refused(dialect: str, answer: str, quota: str) -> bool:
    """Whether it is a refusal in the form of the dialect, and names the quota. What is refused before it is known
    to be a request of NQ is answered as all HTTP is."""
    parts = _HTTP if dialect == "nq" and quota in AT_THE_DOOR else REFUSALS[dialect]
    return all(part in answer for part in (*parts, f"quota.address.{quota} = "))
