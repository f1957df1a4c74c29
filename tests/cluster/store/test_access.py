"""What a client may do, and how much, holds in every shard, whichever worker it is connected to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.config.config import AuthConfig
from penstock.config.quotas import QuotaConfig, QuotaLimits
from tests.support.http_client import Response
from tests.support.sharded import Store, a_store

QUEUES = {f"open-{shard}": shard for shard in range(4)} | {f"secret-{shard}": shard for shard in range(4)}
COPIES = {"open-early": 0, "secret-late": 3}
ADMIN = {"Authorization": "Bearer admin"}
LISTS = [
    *("/v1/queues", "/queues", "/v1/channels", "/v1/stats", "/metrics", "/v1/search", "/v1/schedule", "/v1/events"),
    *("/v1/purges", "/v1/redrive", "/v1/connections", "/v1/consumers", "/v1/workers", "/v1/schedules"),
]
FORBIDDEN = [
    "/v1/log",
    "/v1/log/batches?shard=1&from=0",
    "/v1/backup",
    "/v1/backup?shard=3",
    "/v1/tokens",
    "/v1/cluster",
]


class Reader:
    """A client of worker 0 that sees half of the queues."""

    def __init__(self, store: Store) -> None:
        self.store = store
        scopes = ["read,consume,manage:open*"]
        limits = {"received_per_second": 1}
        made = store.request(
            "PUT", "/v1/tokens/reader", json.dumps({"scopes": scopes, "limits": limits}).encode(), 0, ADMIN
        )
        assert made.status == 201, made
        self._headers = {"Authorization": f"Bearer {made.json()['token']}"}

    def ask(self, method: str, target: str, body: Any = None) -> Response:
        data = None if body is None else json.dumps(body).encode()
        return self.store.request(method, target, data, 0, self._headers)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    settings: dict[str, Any] = {
        "auth": AuthConfig(tokens=("admin",)),
        "quota": QuotaConfig(identity=QuotaLimits(received_per_second=1000)),
    }
    with a_store(tmp_path_factory.mktemp("store") / "four", 4, 2, QUEUES | COPIES, **settings) as store:
        for name in QUEUES:
            assert store.request("PUT", f"/v1/queues/{name}", b"{}", headers=ADMIN).status == 201
            target, body = f"/v1/queues/{name}/messages", b'{"message": "a text"}'
            for _ in range(3):
                assert store.request("POST", target, body, headers=ADMIN).status == 201
            purge = store.request("DELETE", f"/v1/queues/{name}/messages", headers=ADMIN)
            assert purge.status == 200
            for delay in (0, 1000):
                body = json.dumps({"message": name, "delay": delay}).encode()
                assert store.request("POST", target, body, headers=ADMIN).status == 201
        for name in COPIES:
            assert store.request("PUT", f"/v1/queues/{name}", b"{}", headers=ADMIN).status == 201
        yield Reader(store)


@pytest.mark.parametrize("target", LISTS)
def test_a_list_shows_what_its_reader_may_see_of_all_shards(reader: Reader, target: str) -> None:
    answer = reader.ask("GET", target)
    assert answer.status == 200, answer
    assert b"secret" not in answer.body
    if target not in (
        "/v1/channels",
        "/v1/connections",
        "/v1/consumers",
        "/v1/workers",
        "/v1/schedules",
        "/v1/redrive",
    ):
        for shard in range(4):
            assert b"open-%d" % shard in answer.body


@pytest.mark.parametrize("target", FORBIDDEN)
def test_what_only_an_administrator_may_read_is_refused(reader: Reader, target: str) -> None:
    assert reader.ask("GET", target).json()["code"] == "forbidden"


@pytest.mark.parametrize("shard", range(4))
def test_requests_about_one_queue_are_refused_by_its_shard(reader: Reader, shard: int) -> None:
    for method, target in (
        ("GET", f"/v1/queues/secret-{shard}"),
        ("GET", f"/v1/queues/secret-{shard}/messages"),
        ("DELETE", f"/v1/queues/secret-{shard}/messages"),
        ("GET", f"/v1/search?queue=secret-{shard}"),
        ("GET", f"/v1/events?queue=secret-{shard}"),
        ("POST", f"/v1/claims/secret-{shard}"),
    ):
        body = {"consumer": "c", "lease": 10} if method == "POST" else None
        answer = reader.ask(method, target, body)
        assert (answer.status, answer.json()["code"]) == (403, "forbidden"), target
    assert reader.ask("GET", f"/v1/queues/open-{shard}").status == 200


def test_a_client_without_a_token_is_refused_by_every_worker(reader: Reader) -> None:
    for worker in range(2):
        for target in ("/v1/search", "/v1/queues/open-1", "/metrics"):
            assert reader.store.request("GET", target, worker=worker).status == 401
        assert reader.store.request("GET", "/health", worker=worker).body == b"green"


def test_what_is_forwarded_counts_for_the_quotas_of_the_client(reader: Reader) -> None:
    """Both in the shard of another worker, and in one of its own."""
    for name in ("open-1", "open-2"):
        documents = [{"message": str(number)} for number in range(100)]
        body = json.dumps(documents).encode()
        assert reader.store.request("POST", f"/v1/queues/{name}/messages", body, headers=ADMIN).status == 201
        taken = reader.ask("GET", f"/v1/queues/{name}/messages?max=100")
        answers = [taken, reader.ask("GET", f"/v1/queues/{name}/messages?max=100")]
        assert [answer.status for answer in answers] in ([200, 429], [429, 429]), name


def published(reader: Reader) -> str:
    """A message for two queues of different shards, of which the reader sees the first."""
    body = json.dumps({"topics": ["open-early.a", "secret-late.b"], "message": "a text"}).encode()
    found: str = reader.store.request("POST", "/v1/publish", body, headers=ADMIN).json()["id"]
    return found


def take(reader: Reader, queue: str) -> str:
    target = f"/v1/queues/{queue}/messages?wait=20&consumer=all"
    (message,) = reader.store.request("GET", target, headers=ADMIN).json()
    found: str = message["id"]
    return found


def finish(reader: Reader, identifier: str) -> None:
    body = json.dumps({"id": identifier, "consumer": "all"}).encode()
    assert reader.store.request("POST", "/v1/confirm", body, headers=ADMIN).status == 200


def test_a_document_shows_only_the_copies_that_its_reader_may_see(reader: Reader) -> None:
    message = published(reader)
    taken = [take(reader, queue) for queue in ("open-early", "secret-late")]
    whole = reader.store.request("GET", f"/v1/messages/{message}", headers=ADMIN).json()
    shown = reader.ask("GET", f"/v1/messages/{message}").json()
    for each in taken:
        finish(reader, each)
    assert {place["queue"] for place in whole["places"]} == {"open-early", "secret-late"}
    assert {each["queue"] for name in ("places", "consumed", "events") for each in shown[name]} == {"open-early"}


def test_a_reader_waits_also_for_copies_that_it_may_not_see(reader: Reader) -> None:
    message = published(reader)
    for queue, outcomes in (("open-early", []), ("secret-late", ["success"])):
        finish(reader, take(reader, queue))
        answer = reader.ask("POST", "/v1/wait", {"ids": [message], "wait": 20 * len(outcomes)}).json()
        assert [each["outcome"] for each in answer["messages"]] == outcomes
