"""Whether content has changed does not depend on the number of shards: stores with one and with four answer alike."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.cluster.store.test_like_one_shard import NAMES, Both
from tests.support.sharded import a_store
from tests.support.waiting import wait_until

KEYS = [f"key {number}" for number in range(8)]  # Each shard answers for some.


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("stores")
    with a_store(folder / "one", 1, 1) as one, a_store(folder / "four", 4, 2, NAMES) as four:
        both = Both(one, four)
        for name in NAMES:
            both.same("PUT", f"/v1/queues/{name}", {"detect_unchanged": name != "f"})
        yield both


def about(root: str, key: str, content: str, thing: str = "thing") -> dict[str, Any]:
    return {"topics": [f"{root}.said"], "object": thing, "key": key, "message": content}


def states(answer: Any) -> str:
    return "".join(each["state"] for each in (answer if isinstance(answer, list) else [answer]))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_published_through_several_roots_has_one_history(both: Both, key: str) -> None:
    publishes = (("a", "1"), ("b", "2"), ("a", "1"), ("b", "1"), ("c", "3"))
    answers = [both.same("POST", "/v1/publish", about(root, key, content)) for root, content in publishes]
    assert [states(answer) for answer in answers] == ["Q", "Q", "Q", "U", "Q"]
    found = both.same("GET", f"/v1/objects/thing/{key.replace(' ', '%20')}")
    assert (found["versions"], len(found["history"])) == (4, 4)
    assert {each["queue"] for each in found["history"]} == {"a", "b", "c"}


def test_lists_are_compared_in_their_order_whatever_shards_they_are_for(both: Both) -> None:
    def listed(contents: str) -> list[dict[str, Any]]:
        roots = zip(product(KEYS, contents), "abcdef" * 99, strict=False)
        return [about(root, key, content, "list") for (key, content), root in roots]

    for one_queue in ("?queue=a", "?queue=f", ""):
        for contents in ("1", "1", "121", "1", "2"):
            messages = listed(contents)
            if one_queue:
                messages = [{**each, "topics": []} for each in messages]
            elif len(contents) > 1:
                continue  # Parts for several shards go there at the same time.
            both.same("POST", f"/v1/publish{one_queue}", messages)
    for key in KEYS:
        both.same("GET", f"/v1/objects/list/{key.replace(' ', '%20')}")


def test_a_queue_that_does_not_detect_takes_what_has_not_changed_and_that_is_no_version(both: Both) -> None:
    for root in ("f", "a", "f", "b", "f"):
        both.same("POST", "/v1/publish", about(root, "taken", "same"))
    assert both.same("GET", "/v1/objects/thing/taken")["versions"] == 1
    assert [states(both.same("POST", "/v1/publish", about(root, "taken", "new"))) for root in "fa"] == ["Q", "U"]


def test_a_request_with_an_idempotency_key_is_answered_as_it_was(both: Both) -> None:
    for number, (root, content) in enumerate((("a", "1"), ("b", "1"), ("c", "2"))):
        data = json.dumps(about(root, "once", content)).encode()
        for store in both:
            answers = [
                store.request("POST", "/v1/publish", data, headers={"Idempotency-Key": f"once {number}"})
                for _ in range(2)
            ]
            assert answers[0].json() == answers[1].json()
            assert answers[0].json()["state"] == "QUQ"[number]
    assert both.same("GET", "/v1/objects/thing/once")["versions"] == 2


def test_schedules_compare_what_they_publish(both: Both) -> None:
    for number, (root, content) in enumerate((("a", "1"), ("b", "1"), ("c", "2"), ("a", "1"))):
        for key in ("daily 1", "daily 2", "daily 3"):
            name = f"{root}-{number}-{key[-1]}"
            wanted = {**about(root, key, content), "every": 86_400}
            both.same("PUT", f"/v1/schedules/{name}", wanted)
            for store in both:
                answer = store.request("POST", f"/v1/schedules/{name}/run")
                assert (answer.status, states(answer.json())) == (201, "QUQQ"[number])
    assert both.same("GET", "/v1/objects/thing/daily%202")["versions"] == 3


def test_schedules_that_are_due_borrow_their_keys_first(both: Both) -> None:
    store = both.four
    for number, root in enumerate("abcd"):
        wanted = {**about(root, f"hourly {number % 2}", "same"), "every": 1}
        assert store.request("PUT", f"/v1/schedules/{root}-hourly", json.dumps(wanted).encode()).status == 201

    def runs(root: str) -> int:
        document = store.request("GET", f"/v1/schedules/{root}-hourly").json()
        assert not document.get("last_error"), document
        return int(document["runs"])

    wait_until(lambda: all(runs(root) >= 2 for root in "abcd"), "two runs of each schedule")
    for number in range(2):
        assert store.request("GET", f"/v1/objects/thing/hourly%20{number}").json()["versions"] == 1
    for root in "abcd":
        assert store.request("DELETE", f"/v1/schedules/{root}-hourly").status == 204


def test_two_clients_that_publish_one_key_through_several_roots_count_each_change_once(both: Both) -> None:
    store, queued = both.four, list[str]()

    def publish(client: int) -> None:
        with store.connect(client % 2) as connection:
            for number in range(60):
                root, content = "abcd"[(client + number) % 4], str((client + number) % 3)
                data = json.dumps(about(root, "shared", content)).encode()
                answer = connection.request("POST", "/v1/publish", {"Content-Type": "application/json"}, data)
                assert answer.status == 201, answer
                queued.extend(states(answer.json()))

    clients = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert len(queued) == 240
    assert store.request("GET", "/v1/objects/thing/shared").json()["versions"] == queued.count("Q")
