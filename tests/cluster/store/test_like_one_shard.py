"""A store with four shards over two workers answers HTTP requests as one with a single shard does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from penstock.config.config import PushConfig
from tests.support.http_client import Response
from tests.support.sharded import Store, a_store

# Created in this order, their numbers are the same with one shard and with four.
NAMES = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 0, "f": 1}

_TIME = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+Z")


class Both(NamedTuple):
    one: Store
    four: Store

    def ask(self, method: str, target: str, body: Any = None) -> tuple[Response, Response]:
        data = None if body is None else json.dumps(body).encode()
        return self.one.request(method, target, data), self.four.request(method, target, data)

    def same(self, method: str, target: str, body: Any = None) -> Any:
        """The answer, which is the same but for times."""
        one, four = self.ask(method, target, body)
        assert (four.status, plain(four)) == (one.status, plain(one)), target
        return one.json() if one.body.startswith((b"{", b"[")) else None

    def pages(self, target: str, word: str) -> list[list[Any]]:
        """All pages that both have, one after the other."""
        return [all_pages(store, target, word) for store in self]


def plain(response: Response) -> Any:
    """Without times, and without places in a log."""
    body = _TIME.sub(b"<time>", response.body)
    is_json = (response.header("Content-Type") or "").startswith("application/json")
    return json.loads(body, object_hook=_without_places) if is_json else body


def _without_places(document: dict[str, Any]) -> dict[str, Any]:
    dropped = ("offset", "next", "durationMS") if {"offset", "durationMS"} & document.keys() else ()
    return {name: value for name, value in document.items() if name not in dropped}


def all_pages(store: Store, target: str, word: str) -> list[Any]:
    found: list[Any] = []
    page = store.request("GET", target)
    while True:
        assert page.status == 200, page
        document = json.loads(_TIME.sub(b"<time>", page.body))
        found += document[word]
        following = page.json()["next"]
        if following is None:
            return found
        name = "offset" if isinstance(following, int) else "cursor"
        page = store.request("GET", f"{target}&{name}={following}")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("stores")
    push = PushConfig(private_addresses="allow")
    with (
        a_store(folder / "one", 1, 1, push=push) as one,
        a_store(folder / "four", 4, 2, NAMES, push=push) as four,
    ):
        both = Both(one, four)
        for name in NAMES:
            assert both.same("PUT", f"/v1/queues/{name}", {"max_attempts": 3})["name"] == name
        for number in range(20):
            for name in NAMES:
                delay = {"delay": 1000 + number} if number % 4 == 0 else {}
                message = {"message": f"{name} {number}", "key": str(number), "object": "thing"} | delay
                assert both.same("POST", f"/v1/queues/{name}/messages", message)["id"]
        yield both


@pytest.mark.parametrize("bodies", ["true", "false"])
@pytest.mark.parametrize("asked", ["", "text=7", "state=delayed", "queue=c", "object=thing&key=12", "queue=none"])
def test_searches_find_the_same_in_the_same_order(both: Both, asked: str, bodies: str) -> None:
    target = f"/v1/search?bodies={bodies}&{asked}"
    if asked != "queue=none":
        one, four = both.pages(f"{target}&limit=7", "messages")
        assert four == one
        assert one
    both.same("GET", f"{target}&limit=1000")


def test_delayed_messages_are_listed_by_time(both: Both) -> None:
    one, four = both.pages("/v1/schedule?limit=7", "messages")
    assert len(one) == 5 * len(NAMES)
    keys = [(message["key"], message["queue"]) for message in four]
    assert sorted(keys, key=lambda each: int(each[0])) == keys
    assert sorted(keys) == sorted((message["key"], message["queue"]) for message in one)


@pytest.mark.parametrize("target", ["/v1/search?cursor=x", "/v1/search?limit=0", "/v1/search?nothing=1", "/v1/wait"])
def test_a_wrong_request_is_refused_in_the_same_words(both: Both, target: str) -> None:
    both.same("GET", target)


def test_a_wait_for_messages_of_several_shards_ends_with_the_first(both: Both) -> None:
    ids = []
    for name in ("a", "b", "c"):
        ids.append(both.same("POST", f"/v1/queues/{name}/messages", {"message": "wait", "priority": 9})["id"])
    both.same("POST", "/v1/wait", {"ids": ids, "until": "done", "wait": 0})
    both.same("GET", "/v1/queues/b/messages")
    both.same("POST", "/v1/wait", {"ids": ids, "until": "taken", "wait": 100})
    both.same("POST", "/v1/confirm", [{"id": ids[1]}])
    both.same("POST", "/v1/wait", {"ids": [*ids, "x"], "until": "done", "wait": 100})
    both.same("POST", "/v1/wait", {"ids": ids, "until": "done", "wait": 100})
    both.same("POST", "/v1/wait", {"ids": [ids[1], "x", *ids], "until": "done", "wait": 100})
    both.same("POST", "/v1/wait", {"ids": ids, "until": "never"})
    both.same("POST", "/v1/wait", {"ids": ids, "wait": -1})
    both.same("POST", "/v1/wait", {"ids": ids * 400})
    for each in ids:
        both.same("GET", f"/v1/messages/{each}")
        both.ask("DELETE", f"/v1/messages/{each}")
        both.same("GET", f"/v1/messages/{each}")


@pytest.mark.parametrize("name", ["e", "f"])
def test_what_a_stream_processor_has_claimed_is_finished(both: Both, name: str) -> None:
    wish = {"consumer": "spark", "lease": 1000}
    claimed = both.same("POST", f"/v1/claims/{name}", wish | {"count": 2})["claimed"]
    assert both.same("POST", f"/v1/claims/{name}/finish", {"consumer": "spark", "claimed": claimed}) == {
        "finished": 2
    }
    assert both.same("POST", f"/v1/claims/{name}/finish", {"consumer": "spark", "claimed": []}) == {"finished": 0}
    responses = both.ask("POST", f"/v1/claims/{name}/read", wish | {"claimed": claimed})
    assert [(each.status, each.header("X-Penstock-Missing")) for each in responses] == [(200, "2")] * 2


def test_events_as_lines_ask_no_proxy_for_anything(both: Both) -> None:
    responses = both.ask("HEAD", "/v1/events?queue=a")
    assert [each.header("X-Accel-Buffering") for each in responses] == [None, None]


# ── Lists and figures ─────────────────────────────────────────────────────────────────────────────────────────


def test_lists_of_queues_are_the_same(both: Both) -> None:
    one, four = both.pages("/v1/queues?limit=4", "queues")
    for queue in one + four:
        del queue["status"]["oldest_message_age"]
    assert four == one
    both.same("GET", "/queues?limit=3")


def test_lists_of_channels_show_how_their_push_goes(both: Both) -> None:
    for number in range(5):
        topics = {"topics": [f"topic{number}"]}
        push = {"push": {"url": "http://127.0.0.1:9/nobody"}} if number % 2 else {}
        for answer in both.ask("PUT", f"/v1/channels/channel-{number}", topics | push):
            assert answer.status == 201, answer
    both.four.until(lambda: len(_pushed(both)) == 2)
    one, four = both.pages("/v1/channels?limit=2", "channels")
    shown = {channel["name"]: sorted(channel["push"] or ()) for channel in four}
    assert shown == {channel["name"]: sorted(channel["push"] or ()) for channel in one}
    assert len(four) == 5
    for number in range(5):
        both.same("DELETE", f"/v1/channels/channel-{number}")
    both.same("GET", "/v1/channels")


def _pushed(both: Both) -> list[str]:
    shards = [shard for worker in both.four.all for shard in worker.shards.values()]
    names = [f"channel-{number}" for number in range(5)]
    return [name for name in names if any(shard.services.push.describe(name) for shard in shards)]


@pytest.mark.parametrize("sort", ["name", "ready", "delayed", "waiting", "ready_since"])
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_figures_of_queues_are_sorted_and_paged_in_the_same_way(both: Both, sort: str, order: str) -> None:
    one, four = both.pages(f"/v1/stats?sort={sort}&order={order}&limit=2", "queues")
    for queue in one + four:
        for name in ("ready_since", "in", "out"):
            del queue[name]
    if sort != "ready_since":
        assert four == one
    assert {queue["name"]: queue for queue in four} == {queue["name"]: queue for queue in one}


def test_figures_of_all_queues_together_are_sums(both: Both) -> None:
    one, four = (answer.json() for answer in both.ask("GET", "/v1/stats?history=true&name=a"))
    assert (four["total"], four["next"]) == (one["total"], one["next"])
    for name in ("queues", "ready", "leased", "delayed", "kept", "damaged", "dead", "waiting"):
        assert four["totals"][name] == one["totals"][name], name
    assert four["history"].keys() == one["history"].keys()
    for each in four["history"]["totals"].values():
        assert len(each) == len(four["history"]["times"])
    both.same("GET", "/v1/stats?sort=nothing")
    both.same("GET", "/v1/stats?limit=0")
    both.same("GET", "/v1/stats/other")


def test_live_figures_come_of_all_shards(both: Both) -> None:
    with both.four.connect() as connection:
        connection.begin("/v1/stats/stream")
        first = json.loads(connection.read_chunk().removeprefix(b"data: "))
        assert {queue["name"] for queue in first["queues"]} >= NAMES.keys()
        assert first["totals"]["queues"] == len(first["queues"])
        both.same("PUT", "/v1/queues/live", {})
        seen = set[str]()
        while "live" not in seen:
            event = json.loads(connection.read_chunk().removeprefix(b"data: "))
            seen |= {queue["name"] for queue in event["queues"]}
        both.same("DELETE", "/v1/queues/live")
        while "live" in seen:
            event = json.loads(connection.read_chunk().removeprefix(b"data: "))
            seen -= set(event["removed"])
    services = [shard.services for worker in both.four.all for shard in worker.shards.values()]
    both.four.until(lambda: not any(each.stats._watchers for each in services))


def test_metrics_are_those_of_one_broker(both: Both) -> None:
    one, four = (samples_of(answer.body.decode()) for answer in both.ask("GET", "/metrics"))
    more = [name for name in four if name not in one]
    assert [name for name in more if not name.startswith("penstock_courier_")] == []
    assert [name for name in one if name not in four] == []
    for name, value in one.items():
        if name.startswith(
            ("penstock_queue_messages", "penstock_queue_entered", "penstock_queues", "penstock_build")
        ):
            assert four[name] == value, name
    assert four["penstock_healthy"] == 1
    assert four["process_start_time_seconds"] == one["process_start_time_seconds"]


def samples_of(text: str) -> dict[str, float]:
    """By name and labels; every metric has its description once."""
    lines = text.splitlines()
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(described)) == len(described)
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    found = {name: float(value) for name, _, value in pairs if "dialect=" not in name and "status=" not in name}
    assert len(found) == len([name for name, _, _ in pairs if "dialect=" not in name and "status=" not in name])
    return found


def test_a_broker_is_as_healthy_as_its_worst_shard(both: Both) -> None:
    both.same("GET", "/health")


def test_connections_and_clients_that_wait_are_those_of_all_workers(both: Both) -> None:
    waiting = [both.four.connect(worker) for worker in (0, 1, 0, 1)]
    for connection, name in zip(waiting, ("none-1", "none-2", "none-3", "none-4"), strict=True):
        both.four.request("PUT", f"/v1/queues/{name}", b"{}")
        pull = {"receiver": "me", "timeout": 600, "queues": {name: {}}}
        connection.send_request("POST", "/pull", body=json.dumps(pull).encode())
    loops = [shard.loop for worker in both.four.all for shard in worker.shards.values()]
    both.four.until(lambda: sum(len(loop.waiting_commands()) for loop in loops) == 4)
    both.four.until(lambda: sum(len(worker.http.connections) for worker in both.four.all) == 4)
    found = both.four.request("GET", "/v1/connections").json()
    assert (found["total"], found["total_waiting"], found["next"]) == (5, 4, None)
    assert sorted(each["queue"] for each in found["waiting"]) == ["none-1", "none-2", "none-3", "none-4"]
    pages = [both.four.request("GET", f"/v1/connections?limit=3&offset={offset}").json() for offset in (0, 3)]
    assert [len(page["waiting"]) for page in pages] == [3, 1]
    assert [page["next"] for page in pages] == [3, None]
    for connection, name in zip(waiting, ("none-1", "none-2", "none-3", "none-4"), strict=True):
        connection.close()
        both.four.request("DELETE", f"/v1/queues/{name}")


def test_jobs_of_all_shards_are_listed_and_found(both: Both) -> None:
    jobs = {}
    for name in NAMES:
        both.same("PUT", f"/v1/queues/purged-{name}", {})
        both.ask("POST", f"/v1/queues/purged-{name}/messages", {"message": "x"})
        for answer in both.ask("DELETE", f"/v1/queues/purged-{name}/messages"):
            assert answer.status == 200, answer
        jobs[answer.json()["job"]] = f"purged-{name}"
    listed = both.four.request("GET", "/v1/purges").json()["purges"]
    assert {job["job"]: job["queue"] for job in listed} == jobs
    for job in jobs:
        assert both.four.request("GET", f"/v1/purges/{job}").json()["queue"] == jobs[job]
    both.same("GET", "/v1/purges/none")
    both.same("GET", "/v1/redrive")
    for name in NAMES:
        both.same("DELETE", f"/v1/queues/purged-{name}")


# ── What leaves a shard ───────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_letter_in_another_shard_has_one_document(both: Both) -> None:
    policy = {"redrive_policy": {"max_receives": 1, "dead_letter_queue": "b"}}
    assert {answer.status for answer in both.ask("PATCH", "/v1/queues/a", policy)} == {200}
    both.ask("DELETE", "/v1/queues/a/messages")
    published = both.same("POST", "/v1/queues/a/messages", {"message": "dead"})["id"]
    documents = []
    for store in both:
        assert store.request("GET", "/v1/queues/a/messages?lease=0").json()[0]["id"] == published
        store.request("GET", "/v1/queues/a/messages")
        while not (found := store.request("GET", "/v1/search?queue=b&text=dead").json()["messages"]):
            pass
        assert found[0]["id"] == published
    both.same("POST", "/v1/wait", {"ids": [published], "until": "done", "wait": 0})
    both.same("POST", "/v1/wait", {"ids": [published], "until": "taken", "wait": 0})
    for store in both:
        documents.append(plain(store.request("GET", f"/v1/messages/{published}")))
    one, four = documents
    told = ("id", "queue", "sequence", "state", "status", "queued", "archived", "receives", "message", "complete")
    assert {name: four[name] for name in told} == {name: one[name] for name in told}
    assert [place["queue"] for place in four["places"]] == ["b"]
    assert [_step(event) for event in four["events"]] == [_step(event) for event in one["events"]]
    assert both.same("GET", "/v1/search?queue=b&origin=a")["messages"][0]["origin"] == "a"
    assert both.same("GET", f"/v1/search?id={published}&bodies=false")["messages"][0]["queue"] == "b"
    dry = {"from": "b", "filter": {"id": published}, "dry_run": True}
    assert [answer.json()["matched"] for answer in both.ask("POST", "/v1/redrive", dry)] == [1, 1]
    named = [
        [row["name"] for row in answer.json()["queues"]] for answer in both.ask("GET", "/v1/stats?dead_letters=true")
    ]
    assert named == [["b"], ["b"]]
    both.ask("PATCH", "/v1/queues/a", {"redrive_policy": None})


def test_figures_show_how_far_each_shard_is_behind_the_others(both: Both) -> None:
    one, four = (answer.json() for answer in both.ask("GET", "/v1/stats"))
    assert "couriers" not in one
    assert [each["shard"] for each in four["couriers"]] == [0, 1, 2, 3]
    assert all(each["source"] != each["shard"] and each["lag"] >= 0 for each in four["couriers"])


@pytest.mark.parametrize(("target", "status"), [("b", 200), ("nowhere", 404)])
def test_messages_are_moved_to_a_queue_of_another_shard_if_it_exists(both: Both, target: str, status: int) -> None:
    both.ask("POST", "/v1/queues/a/messages", {"message": "wanderer"})
    one, four = both.ask("POST", "/v1/redrive", {"from": "a", "to": target, "filter": {"text": "wanderer"}})
    assert one.status == four.status == status
    for store in both if status == 200 else ():
        while not store.request("GET", "/v1/search?queue=b&text=wanderer").json()["messages"]:
            pass


def _step(event: dict[str, Any]) -> list[Any]:
    return [event.get(name) for name in ("state", "event", "queue", "sequence", "to_queue", "to_id", "reason")]
