"""Every request is answered in the same order, with one shard and with two: may its client do that, is there what it
names, and only then what else is wrong with it. Of messages of others nobody hears whether they exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.config.config import AuditConfig, AuthConfig
from penstock.dialects.etzel.codec import FIELDS
from penstock.dialects.glovebox import codec
from penstock.server.subjects import SUBJECTS
from tests.support.http_client import Response
from tests.support.sharded import Store, a_store
from tests.support.ws_client import WsClient

SHARDS = (0, 1)
ELSEWHERE = {f"{name}-{shard}": shard for name in ("mine", "none", "other", "feed") for shard in SHARDS}
ADMIN = "admin"
STRANGERS = {"guest": ["read:nothing"], "neighbour": ["publish,consume,read,manage:other*"]}
OWNER = ["publish,consume,read,manage:mine*,none*,feed*,thing"]
UNKNOWN = "6f1e7a52-7f0d-4c8b-9a55-0d3f6c1b2a11"  # The id of no message.
TYPE = {"Content-Type": "application/json"}


class Request(NamedTuple):
    method: str
    target: str
    body: Any = None
    headers: Mapping[str, str] = TYPE

    def about(self, name: str) -> Request:
        body = json.loads(json.dumps(self.body).replace("{name}", name))
        return self._replace(target=self.target.replace("{name}", name), body=body)


class Named(NamedTuple):
    """A request about a name. `wrong`: what else may be wrong with it. `missing`: the status if there is nothing of
    that name, `there`: if there is something; each before what is wrong."""

    good: Request
    wrong: Request | None = None
    missing: int = 400
    there: int = 400
    strangers: tuple[str, ...] = tuple(STRANGERS)
    kind: str = "mine"  # What the name is that exists.


def named(method: str, target: str, body: Any = None, wrong: Any = None, **rest: Any) -> Named:
    """`wrong`: another body, or what is added to the target."""
    bad = None
    if isinstance(wrong, str):
        bad = Request(method, target + wrong, body)
    elif wrong is not None:
        bad = Request(method, target, wrong)
    return Named(Request(method, target, body), bad, **rest)


def headed(named: Named, **wrong: str) -> Named:
    return named._replace(wrong=named.good._replace(headers=wrong))


MQS = {"retention_timeout": 600, "visibility_timeout": 30, "message_deduplication": False}
HELLO, SCOPES = {"message": "x"}, {"scopes": ["read:x"]}
DAILY = {"queue": "mine-0", "message": "x", "every": 3600}
REPORT = {"queues": ["{name}"], "concurrency": 1, "running": 0, "seconds": 10}

BY_NAME: dict[tuple[bytes, int, bytes], Named] = {
    (b"messages", 2, b"GET"): headed(named("GET", "/messages/{name}", missing=404), X_MQS_MAX_MESSAGES="0"),
    (b"messages", 2, b"POST"): headed(
        named("POST", "/messages/{name}", HELLO, missing=404), Content_Type="multipart/mixed; boundary=none"
    ),
    (b"queues", 2, b"GET"): named("GET", "/queues/{name}"),
    (b"queues", 2, b"PUT"): named("PUT", "/queues/{name}", MQS, {}, there=409),
    (b"queues", 2, b"POST"): named("POST", "/queues/{name}", MQS, {}, missing=404),
    (b"queues", 2, b"DELETE"): named("DELETE", "/queues/{name}"),
    (b"post", 1, b"POST"): named("POST", "/post", {"messages": {"{name}": ["x"]}}, {"messages": {"{name}": [5]}}),
    (b"pull", 1, b"POST"): named(
        "POST", "/pull", {"receiver": "r", "timeout": 0, "queues": {"{name}": {}}}, {"queues": {"{name}": {}}}
    ),
    (b"v1/results", 4, b"GET"): named("GET", "/v1/results/{name}/1?timeout=0", None, "&x=1", missing=404),
    (b"status", 2, b"GET"): named("GET", "/status/{name}"),
    (b"v1/queues", 3, b"GET"): named("GET", "/v1/queues/{name}"),
    (b"v1/queues", 3, b"PUT"): named("PUT", "/v1/queues/{name}", {}, {"max_attempts": "x"}),
    (b"v1/queues", 3, b"PATCH"): named("PATCH", "/v1/queues/{name}", {}, {"max_attempts": "x"}, missing=404),
    (b"v1/queues", 3, b"DELETE"): named("DELETE", "/v1/queues/{name}"),
    (b"v1/queues", 4, b"GET"): named("GET", "/v1/queues/{name}/messages", None, "?max=0", missing=404),
    (b"v1/queues", 4, b"POST"): named("POST", "/v1/queues/{name}/messages", HELLO, {"x": 1}, missing=404),
    (b"v1/queues", 4, b"DELETE"): named("DELETE", "/v1/queues/{name}/messages", None, "?x=1", missing=404),
    (b"v1/channels", 3, b"GET"): named("GET", "/v1/channels/{name}", kind="feed"),
    (b"v1/channels", 3, b"PUT"): named("PUT", "/v1/channels/{name}", {"topics": ["t"]}, {"topics": 5}, kind="feed"),
    (b"v1/channels", 3, b"DELETE"): named("DELETE", "/v1/channels/{name}", kind="feed"),
    (b"v1/channels", 4, b"GET"): named(
        "GET", "/v1/channels/{name}/messages", None, "?max=0", missing=404, kind="feed"
    ),
    (b"v1/publish", 2, b"POST"): named("POST", "/v1/publish", HELLO | {"topics": ["{name}"]}, {"topics": ["{name}"]}),
    (b"v1/search", 2, b"GET"): named("GET", "/v1/search?queue={name}", None, "&limit=0", missing=404),
    (b"v1/schedule", 2, b"GET"): named("GET", "/v1/schedule?queue={name}", None, "&limit=0", missing=404),
    (b"v1/redrive", 2, b"POST"): named(
        "POST", "/v1/redrive", {"from": "{name}"}, {"from": "{name}", "rate": -1}, missing=404
    ),
    (b"v1/claims", 3, b"POST"): named("POST", "/v1/claims/{name}", {"consumer": "c", "lease": 9}, {}, missing=404),
    (b"v1/claims", 4, b"POST"): named("POST", "/v1/claims/{name}/finish", {"consumer": "c", "claimed": []}, {}),
    (b"v1/events", 2, b"GET"): named("GET", "/v1/events?queue={name}&limit=1", None, "&bodies=x"),
    (b"v1/lake", 3, b"GET"): named("GET", "/v1/lake/queue_minutes?queue={name}&since=0&until=1", None, "&x=1"),
    (b"v1/schedules", 3, b"GET"): named("GET", "/v1/schedules/{name}"),
    (b"v1/schedules", 3, b"PUT"): named("PUT", "/v1/schedules/{name}", DAILY, {}),
    (b"v1/schedules", 3, b"PATCH"): named("PATCH", "/v1/schedules/{name}", {}, {"every": "x"}, missing=404),
    (b"v1/schedules", 3, b"DELETE"): named("DELETE", "/v1/schedules/{name}"),
    (b"v1/schedules", 4, b"POST"): named("POST", "/v1/schedules/{name}/run", {}),
    (b"v1/workers", 3, b"PUT"): named("PUT", "/v1/workers/w", REPORT, REPORT | {"running": -1}),
    (b"v1/stage", 3, b"GET"): named("GET", "/v1/stage/{name}", strangers=("guest",)),
    (b"v1/stage", 4, b"DELETE"): named("DELETE", "/v1/stage/{name}/1", strangers=("guest",)),
    (b"v1/stage", 5, b"POST"): named("POST", "/v1/stage/{name}/1/commit", {"parts": []}, {}, strangers=("guest",)),
}
ADMINISTERED: dict[tuple[bytes, int, bytes], Named] = {
    (b"v1/tokens", 2, b"GET"): named("GET", "/v1/tokens", None, "?limit=0"),
    (b"v1/tokens", 3, b"GET"): named("GET", "/v1/tokens/{name}"),
    (b"v1/tokens", 3, b"PUT"): named("PUT", "/v1/tokens/{name}", SCOPES, {}, there=409),
    (b"v1/tokens", 3, b"PATCH"): named("PATCH", "/v1/tokens/{name}", SCOPES, {"scopes": 5}, missing=404),
    (b"v1/tokens", 3, b"DELETE"): named("DELETE", "/v1/tokens/{name}"),
    (b"v1/tokens", 4, b"POST"): named("POST", "/v1/tokens/{name}/rotate", {}, {"grace": -1}, missing=404),
    (b"v1/log", 2, b"GET"): named("GET", "/v1/log", None, "?x=1"),
    (b"v1/log", 3, b"GET"): named("GET", "/v1/log/batches?from=0&shard=0", None, "&x=1"),
    (b"v1/backup", 2, b"GET"): named("GET", "/v1/backup", None, "?x=1"),
    (b"v1/backup", 3, b"GET"): named("GET", "/v1/backup/log?from=0&to=1", None, "&x=1"),
    (b"v1/settings", 2, b"GET"): named("GET", "/v1/settings", None, "?x=1"),
    (b"v1/cluster", 2, b"GET"): named("GET", "/v1/cluster", None, "?x=1"),
}
VISIBLE = {"visible_at": "2030-01-01T00:00:00Z"}
ID = "{name}"
BY_ID: dict[tuple[bytes, int, bytes], list[Named]] = {
    (b"messages", 2, b"DELETE"): [named("DELETE", "/messages/{name}")],
    (b"v1/messages", 3, b"GET"): [
        named("GET", "/v1/messages/{name}", None, "?raw=x"),
        named("GET", "/v1/messages/{name}?wait=20", None, "&until=x"),
    ],
    (b"v1/messages", 3, b"DELETE"): [named("DELETE", "/v1/messages/{name}")],
    (b"v1/schedule", 3, b"PATCH"): [named("PATCH", "/v1/schedule/{name}", VISIBLE, {})],
    (b"v1/schedule", 3, b"DELETE"): [named("DELETE", "/v1/schedule/{name}")],
    (b"v1/confirm", 2, b"POST"): [
        named("POST", "/v1/confirm", {"id": ID}, {"id": ID, "outcome": "maybe"}),
        named("POST", "/v1/confirm", [{"id": ID}]),
        named("POST", "/v1/confirm", [{"id": ID, "result_base64": "%"}]),
    ],
    (b"v1/extend", 2, b"POST"): [
        named("POST", "/v1/extend", {"id": ID, "seconds": 1}, {"id": ID, "seconds": -1}),
        named("POST", "/v1/extend", [{"id": ID, "seconds": 1, "consumer": ""}]),
    ],
    (b"v1/wait", 2, b"POST"): [named("POST", "/v1/wait", {"ids": [ID], "wait": 20})],
    (b"v1/purges", 3, b"GET"): [named("GET", "/v1/purges/{name}", kind="job")],
    (b"v1/purges", 3, b"DELETE"): [named("DELETE", "/v1/purges/{name}", kind="job")],
    (b"v1/redrive", 3, b"GET"): [named("GET", "/v1/redrive/{name}", kind="redrive")],
    (b"v1/redrive", 3, b"DELETE"): [named("DELETE", "/v1/redrive/{name}", kind="redrive")],
    (b"v1/workers", 3, b"DELETE"): [named("DELETE", "/v1/workers/{name}", kind="worker")],
    (b"v1/objects", 4, b"GET"): [named("GET", "/v1/objects/thing/{name}", None, "?limit=0", kind="key")],
}
LISTS = {
    (b"queues", 1): "/queues",
    (b"v1/queues", 2): "/v1/queues",
    (b"v1/channels", 2): "/v1/channels",
    (b"v1/redrive", 2): "/v1/redrive",
    (b"v1/purges", 2): "/v1/purges",
    (b"v1/schedules", 2): "/v1/schedules",
    (b"v1/workers", 2): "/v1/workers",
    (b"v1/connections", 2): "/v1/connections",
    (b"v1/consumers", 2): "/v1/consumers",
    (b"v1/stats", 2): "/v1/stats",
    (b"v1/identity", 2): "/v1/identity",
    (b"metrics", 1): "/metrics",
}
ENDLESS = (b"v1/stats", 3)  # As v1/stats, again and again.
PAGES = {(b"health", 1), (b"", 1), (b"console", 2), (b"console", 3), (b"openapi.json", 1), (b"asyncapi.json", 1)}


class House:
    """A store with queues of the owner, and with tokens, which worker 0 knows."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tokens = {"": ADMIN}
        for name, scopes in {**STRANGERS, "owner": OWNER}.items():
            made = self.ask("", Request("PUT", f"/v1/tokens/{name}", {"scopes": scopes}))
            self.tokens[name] = made.json()["token"]
        self.theirs: list[dict[str, str]] = []  # What the owner has in each shard, by its kind.
        for shard in SHARDS:
            self.theirs.append(self._fill(shard))

    def _fill(self, shard: int) -> dict[str, str]:
        mine, feed = f"mine-{shard}", f"feed-{shard}"
        self.done(Request("PUT", f"/v1/queues/{mine}", {"keep": "all"}))
        self.done(Request("PUT", f"/v1/queues/other-{shard}", {}))
        self.done(Request("PUT", f"/v1/channels/{feed}", {"topics": [f"{mine}*"]}))
        self.done(Request("PUT", f"/v1/schedules/{mine}", DAILY | {"queue": mine}))
        self.done(Request("PUT", f"/v1/tokens/{mine}", SCOPES))
        self.done(Request("PUT", f"/v1/workers/{mine}", {**REPORT, "queues": [mine]}), as_="owner")
        job = self.done(Request("DELETE", f"/v1/queues/{mine}/messages")).json()["job"]
        redrive = self.done(Request("POST", "/v1/redrive", {"from": mine})).json()["job"]
        message = {"message": "x", "object": "thing", "key": mine, "delay": 1000}
        sent = self.done(Request("POST", f"/v1/queues/{mine}/messages", message)).json()["id"]
        kinds = {"mine": mine, "feed": feed, "job": job, "redrive": redrive, "worker": mine, "key": mine}
        return kinds | {"message": sent}

    def ask(self, who: str, request: Request) -> Response:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        headers |= {name.replace("_", "-"): value for name, value in request.headers.items()}
        body = None if request.body is None else json.dumps(request.body).encode()
        return self.store.request(request.method, request.target, body, 0, headers)

    def done(self, request: Request, as_: str = "") -> Response:
        answer = self.ask(as_, request)
        assert answer.status < 300, (request, answer)
        return answer

    def contents(self) -> list[Any]:
        """What there is; nobody has changed it meanwhile."""
        found = self.ask("", Request("GET", "/v1/queues?limit=1000")).json()["queues"]
        for queue in found:
            del queue["status"]["oldest_message_age"]
        lists = [self.ask("", Request("GET", f"/v1/{name}")).json() for name in ("schedules", "tokens")]
        return [found, lists[0]["total"], lists[1]["total"]]


class Answer(NamedTuple):
    """What a client hears, without what it has sent itself."""

    status: int
    body: bytes


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[House]]:
    """One shard in one process, and two in two."""
    folder = tmp_path_factory.mktemp("houses")
    settings: dict[str, Any] = {"auth": AuthConfig(tokens=(ADMIN,))}
    with ExitStack() as stack:
        one = stack.enter_context(a_store(folder / "one", 1, 1, **settings))
        two = stack.enter_context(a_store(folder / "two", 2, 2, ELSEWHERE, **settings))
        yield [House(one), House(two)]


def answer(house: House, who: str, request: Request, *names: str) -> Answer:
    answered = house.ask(who, request)
    body = answered.body
    for name in names:
        body = body.replace(name.encode(), b"<name>")
    return Answer(answered.status, body)


def the_same(houses: list[House], who: str, shard: int, request: Request, kind: str) -> Answer:
    """The answer of all of them about what they have, which is another id in each."""
    heard = {answer(house, who, request.about(name := house.theirs[shard][kind]), name) for house in houses}
    assert len(heard) == 1, (who, request, heard)
    return heard.pop()


def all_same(houses: list[House], who: str, request: Request, name: str) -> Answer:
    """The answer of all of them. `name`: what the request is about, which is left out of the answer."""
    heard = {answer(house, who, request.about(name), *filter(None, (name,))) for house in houses}
    assert len(heard) == 1, (who, request, heard)
    return heard.pop()


def ids(cases: Mapping[tuple[bytes, int, bytes], object]) -> list[str]:
    return [f"{method.decode()} {path.decode()}/{count}" for path, count, method in cases]


def test_every_path_and_method_is_tried(houses: list[House]) -> None:
    routes = houses[0].store.all[0].application.routes
    assert SUBJECTS.keys() == routes.keys()
    served = {(*path, method) for path, methods in routes.items() for method in methods if method != b"HEAD"}
    lists = {(*path, b"GET") for path in (*LISTS, ENDLESS, *PAGES)}
    assert served == BY_NAME.keys() | ADMINISTERED.keys() | BY_ID.keys() | lists
    for path, row in SUBJECTS.items():
        if isinstance(row, Mapping):
            assert row.keys() == routes[path].keys(), path


@pytest.mark.parametrize("case", BY_NAME.values(), ids=ids(BY_NAME))
def test_a_name_that_a_client_may_not_use_is_refused_whether_or_not_there_is_such_a_thing(
    houses: list[House], case: Named
) -> None:
    for request in filter(None, (case.good, case.wrong)):
        for who in case.strangers:
            heard = {
                all_same(houses, who, request, f"{name}-{shard}") for shard in SHARDS for name in ("none", case.kind)
            }
            assert len(heard) == 1, (who, request, heard)
            ((status, body),) = heard
            assert (status, b"access denied" in body) == (403, True), (who, request, heard)


@pytest.mark.parametrize("case", BY_NAME.values(), ids=ids(BY_NAME))
def test_whether_there_is_what_a_request_names_is_said_before_what_else_is_wrong(
    houses: list[House], case: Named
) -> None:
    if case.wrong is None:
        return
    for shard in SHARDS:
        missing = all_same(houses, "owner", case.wrong, f"none-{shard}")
        there = all_same(houses, "owner", case.wrong, f"{case.kind}-{shard}")
        assert (missing.status, there.status) == (case.missing, case.there), (missing, there)


@pytest.mark.parametrize("case", ADMINISTERED.values(), ids=ids(ADMINISTERED))
def test_what_only_administrators_do_is_refused_before_anything_else(houses: list[House], case: Named) -> None:
    for request in filter(None, (case.good, case.wrong)):
        for who in (*STRANGERS, "owner"):
            heard = {all_same(houses, who, request, name) for name in ("none-0", "mine-0", "mine-1")}
            assert {each.status for each in heard} == {403}, (who, request, heard)
            assert len(heard) == 1
    if case.wrong:  # Which parameters there are is another matter with several shards.
        for house in houses:
            missing, there = (answer(house, "", case.wrong.about(name)) for name in ("none-0", "mine-0"))
            assert (missing.status, there.status) == (case.missing, case.there), (missing, there)


@pytest.mark.parametrize("cases", BY_ID.values(), ids=ids(BY_ID))
def test_an_id_of_others_is_an_id_that_was_never_given_out(houses: list[House], cases: list[Named]) -> None:
    for case in cases:
        kind = "message" if case.kind == "mine" else case.kind
        for request in filter(None, (case.good, case.wrong)):
            for who in STRANGERS:
                unknown = all_same(houses, who, request, UNKNOWN)
                heard = {the_same(houses, who, shard, request, kind) for shard in SHARDS}
                assert heard == {unknown}, (who, request)
                assert unknown.status == 404 or b'"code":"no_message"' in unknown.body, unknown


def test_a_message_of_others_that_was_asked_for_is_in_the_audit_and_an_unknown_one_is_not(
    tmp_path: Path,
) -> None:
    for folder, shards, elsewhere in (("one", 1, {}), ("two", 2, ELSEWHERE)):
        kept: dict[str, Any] = {"auth": AuthConfig(tokens=(ADMIN,)), "audit": AuditConfig()}
        with a_store(tmp_path / folder, shards, shards, elsewhere, **kept) as store:
            house = House(store)
            for each in (house.theirs[1]["message"], UNKNOWN):
                assert house.ask("guest", Request("GET", f"/v1/messages/{each}")).status == 404
            records = house.done(Request("GET", "/v1/search?queue=_audit&limit=1000")).json()["messages"]
            refused = [each["message"] for each in records if each["message"]["who"] == "guest"]
            told = [(each["act"], each["target"], each["code"]) for each in refused]
            assert told == [("read", "mine-1", "forbidden")], folder


@pytest.mark.parametrize("cases", BY_ID.values(), ids=ids(BY_ID))
def test_whether_there_is_a_message_is_said_before_what_else_is_wrong(
    houses: list[House], cases: list[Named]
) -> None:
    for case in cases:
        if case.wrong is not None:
            kind = "message" if case.kind == "mine" else case.kind
            assert all_same(houses, "owner", case.wrong, UNKNOWN).status == 404
            for shard in SHARDS:
                assert the_same(houses, "owner", shard, case.wrong, kind).status == 400


DEAD = {"max_receives": 1, "dead_letter_queue": "mine-1"}
ACROSS = [
    # With what the neighbour may use first, and what it may not use in another shard.
    (Request("POST", "/post", {"messages": {"other-0": ["x"], "mine-1": ["x"]}}), "publish on mine-1"),
    (Request("POST", "/post", {"messages": {"other-1": ["x"], "mine-0": ["x"], "mine-1": 5}}), "publish on mine-0"),
    (
        Request("POST", "/pull", {"receiver": "r", "timeout": 0, "queues": {"other-0": {}, "mine-1": {}}}),
        "consume on mine-1",
    ),
    (
        Request("POST", "/v1/publish", [{"message": "x", "topics": [name]} for name in ("other-0", "mine-1")]),
        "mine-1",
    ),
    (Request("PUT", "/queues/other-0", {"redrive_policy": DEAD}), "publish on mine-1"),
    (Request("POST", "/queues/other-0", {"redrive_policy": DEAD}), "publish on mine-1"),
    (Request("PUT", "/v1/queues/other-0", {"redrive_policy": DEAD, "x": 1}), "publish on mine-1"),
    (Request("PATCH", "/v1/queues/other-0", {"redrive_policy": DEAD, "x": 1}), "publish on mine-1"),
    (Request("PUT", "/v1/channels/other-0", {"topics": ["mine-1"], "x": 1}), "read on mine-1"),
    (Request("PUT", "/v1/schedules/other-0", {"queue": "mine-1", "x": 1}), "publish on mine-1"),
    (Request("PATCH", "/v1/schedules/other-0", {"topics": ["mine-1"], "every": "x"}), "publish on mine-1"),
    (Request("POST", "/v1/redrive", {"from": "other-0", "to": "mine-1"}), "manage on mine-1"),
    (Request("POST", "/v1/redrive", {"from": "other-0", "to": "none-1", "rate": -1}), "manage on none-1"),
]


IN_PATH = [case for case in BY_NAME.values() if case.good.body and "{name}" in case.good.target]


@pytest.mark.parametrize("case", IN_PATH, ids=lambda case: f"{case.good.method} {case.good.target}")
def test_who_may_not_send_a_request_hears_that_before_its_body_is_read(houses: list[House], case: Named) -> None:
    def heard(house: House, who: str, name: str) -> int:
        sent = {"Authorization": f"Bearer {house.tokens[who]}", "Content-Length": "1000000000"}
        with house.store.connect(0) as connection:
            connection.send_request(case.good.method, case.good.about(name).target, sent | {"Expect": "100-continue"})
            return connection.read_response().status

    for house in houses:
        for shard in SHARDS:
            for who in case.strangers:
                assert [heard(house, who, f"{name}-{shard}") for name in ("none", case.kind)] == [403, 403]
    if not case.good.target.startswith("/messages/"):  # There, the rest of a long body is dropped.
        assert heard(houses[0], "owner", "none-0") == 413


@pytest.mark.parametrize(("request_", "needed"), ACROSS)
def test_a_request_about_several_shards_is_refused_as_a_whole(
    houses: list[House], request_: Request, needed: str
) -> None:
    """And names the one that it is refused for."""
    refused = all_same(houses, "neighbour", request_, "")
    assert (refused.status, needed.encode() in refused.body) == (403, True), refused


@pytest.mark.parametrize("dead", ["mine-1", "none-1", "other-1"])
def test_a_dead_letter_queue_in_another_shard_is_looked_for_last(houses: list[House], dead: str) -> None:
    change = Request("PATCH", "/v1/queues/{name}", {"redrive_policy": {"max_receives": 1, "dead_letter_queue": dead}})
    for who in STRANGERS:
        heard = {all_same(houses, who, change, name) for name in ("mine-0", "none-0")}
        assert len(heard) == 1
        assert heard.pop().status == 403
    may_use = dead != "other-1"
    assert all_same(houses, "owner", change, "none-0").status == (404 if may_use else 403)
    if dead != "mine-1":  # Else it would be carried out.
        assert all_same(houses, "owner", change, "mine-0").status == (400 if may_use else 403)
    create = Request("PUT", "/queues/{name}", MQS | dict(change.body))
    assert all_same(houses, "owner", create, "mine-0").status == (409 if may_use else 403)


@pytest.mark.parametrize("wrong", [{}, {"rate": -1}])
@pytest.mark.parametrize("dry", [True, False])
def test_of_two_queues_that_are_missing_the_source_is_said_first(
    houses: list[House], wrong: dict[str, int], dry: bool
) -> None:
    for source, to, missing in (("none-0", "none-1", "none-0"), ("mine-0", "none-1", "none-1")):
        redrive = Request("POST", "/v1/redrive", {"from": source, "to": to, "dry_run": dry, **wrong})
        answered = all_same(houses, "owner", redrive, "")
        assert (answered.status, missing.encode() in answered.body) == (404, True), answered


@pytest.mark.parametrize("target", LISTS.values())
def test_a_list_shows_nothing_of_others(houses: list[House], target: str) -> None:
    for house in houses:
        for who in STRANGERS:
            found = house.ask(who, Request("GET", target))
            assert (found.status, re.search(rb"mine|feed", found.body)) == (200, None)


# ── Conversations ─────────────────────────────────────────────────────────────────────────────────────────────

ETZEL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Of each command: what is good, and what is wrong.
    "PUB": ({"message": "x"}, {"message": "x", "delay": -1}),
    "FET": ({}, {}),
    "SUB": ({}, {}),
    "ISLP": ({}, {}),
}
ETZEL_BY_ID = ("ACK", "DEL")
GLOVEBOX: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "post": ({"message": "x", "notify": ["sync"]}, {"message": "x", "priority": "high"}),
    "fetch": ({}, {"block_timeout": -1}),
    "pop": ({}, {"timeout": -1}),
    "create": ({}, {"retries": -1}),
}
GLOVEBOX_BY_LEASE = ("finish",)


def test_every_command_is_tried() -> None:
    assert FIELDS.keys() == {*ETZEL, *ETZEL_BY_ID, "AUTH"}
    kinds = {str(kind.__struct_config__.tag) for kind in codec.Request.__args__}
    assert kinds == {*GLOVEBOX, *GLOVEBOX_BY_LEASE}


def conversation(house: House, who: str, path: str) -> WsClient:
    client = WsClient(("127.0.0.1", house.store.ports[0]), path, Authorization=f"Bearer {house.tokens[who]}")
    if path == "/connect/":
        client.hear()
    return client


def said(client: WsClient, frame: dict[str, Any], name: str) -> str:
    return json.dumps(client.ask(**frame)).replace(name, "<name>")


def test_etzel_says_first_who_may_and_then_what_is_wrong(houses: list[House]) -> None:
    for who in STRANGERS:
        for house in houses:
            with conversation(house, who, "/connect") as client:
                for command, frames in ETZEL.items():
                    heard = {
                        said(client, {"cmd": command, "qname": name, **frame}, name)
                        for frame in frames
                        for name in ("mine-0", "mine-1", "none-0", "none-1")
                    }
                    assert len(heard) == 1, heard
                    assert '"FORBIDDEN"' in heard.pop()
    wrong = {"cmd": "PUB", "qname": "mine-1", "delay": -1}
    for house in houses:
        with conversation(house, "owner", "/connect") as client:
            assert client.ask(**wrong) == {"cmd": "nok", "err": "BAD_FIELD", "field": "delay"}


def test_etzel_acknowledges_messages_of_others_as_those_that_never_were(houses: list[House]) -> None:
    for who in STRANGERS:
        for house in houses:
            with conversation(house, who, "/connect") as client:
                for command in ETZEL_BY_ID:
                    heard = {
                        said(client, {"cmd": command, "qname": "mine-0", "uid": uid}, uid)
                        for uid in (UNKNOWN, *(each["message"] for each in house.theirs))
                    }
                    assert heard == {'{"cmd": "okack", "qname": "mine-0", "uid": "<name>"}'}


def test_glovebox_says_first_who_may_then_what_there_is_and_then_what_is_wrong(houses: list[House]) -> None:
    there = {"post": "NoObject", "fetch": "NoObject", "pop": "NoObject", "create": "BadRequest"}
    for house in houses:
        for who in STRANGERS:
            with conversation(house, who, "/connect/") as client:
                for kind, frames in GLOVEBOX.items():
                    heard = {
                        said(client, {"type": kind, "queue": name, **frame}, name)
                        for frame in frames
                        for name in ("mine-0", "mine-1", "none-0", "none-1")
                    }
                    assert len(heard) == 1, heard
                    assert '"PermissionDenied"' in heard.pop()
        with conversation(house, "owner", "/connect/") as client:
            for kind, (_, wrong) in GLOVEBOX.items():
                for shard in SHARDS:
                    missing, found = (
                        client.ask(type=kind, queue=f"{name}-{shard}", **wrong)["code"] for name in ("none", "mine")
                    )
                    assert missing == there[kind]
                    assert found == ("ObjectAlreadyExists" if kind == "create" else "BadRequest")


def test_nobody_has_changed_anything(houses: list[House]) -> None:
    one, two = (house.contents() for house in houses)
    assert one == two
    assert {queue["status"]["messages"] for queue in one[0] if queue["name"].startswith("mine")} == {1}
