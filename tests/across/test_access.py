"""Who may do what, in every dialect: with no token, a wrong one, one for something else, and the right one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.broker import Site, StartBroker
from tests.support.effort import LONG
from tests.support.http_client import Response
from tests.support.line_client import LineClient
from tests.support.sites import SITES, started
from tests.support.staged_rows import arrow
from tests.support.ws_client import RawWs, WsClient, client_frame

MQS = {"retention_timeout": 600, "visibility_timeout": 30, "message_deduplication": False}
ADMIN = "settings-secret"
WRONG = "pst_wrong"
NOBODY = "6f1e7a52-7f0d-4c8b-9a55-0d3f6c1b2a11"  # The id of no message.


class House(NamedTuple):
    """A broker with tokens: one for each verb on `orders*`, and one for all verbs on `other*`."""

    broker: Site
    tokens: dict[str, str]
    kind: str  # One of `SITES`.

    def ask(self, token: str | None, method: str, path: str, document: Any = None) -> Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = None if document is None else json.dumps(document).encode()
        return self.broker.request(method, path, headers, body)

    def admin(self, method: str, path: str, document: Any = None) -> Response:
        answer = self.ask(ADMIN, method, path, document)
        assert answer.status < 300, (path, answer)
        return answer


def token(broker: Site, name: str, *scopes: str, admin: str = ADMIN) -> str:
    headers = {"Authorization": f"Bearer {admin}"} if admin else {}
    body = json.dumps({"scopes": scopes}).encode()
    answer = broker.request("PUT", f"/v1/tokens/{name}", headers, body)
    assert answer.status == 201, answer
    return str(answer.json()["token"])


# Refused logins wait, longer and longer: too long for all kinds of brokers in the short run.
@pytest.fixture(scope="module", params=SITES if LONG else SITES[:1])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with started(request.param, tmp_path_factory.mktemp("house"), request, f"auth.tokens={ADMIN}") as site:
        tokens = {verb: token(site, verb, f"{verb}:orders*") for verb in ("publish", "consume", "read", "manage")}
        tokens["other"] = token(site, "other", "publish,consume,read,manage:other*")
        found = House(site, tokens, request.param)
        for name in ("orders", "other", "secret"):
            found.admin("PUT", f"/queues/{name}", MQS)
        found.admin("PUT", "/v1/channels/orders-feed", {"topics": ["orders.*"]})
        yield found


def document(text: str = "x") -> dict[str, Any]:
    return {"message": text}


# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────

SETTINGS = {"scopes": ["read:x"]}
HTTP: list[tuple[str, str, str, Any, str]] = [
    # Verb, method, path, body, and what the refusal names.
    ("publish", "POST", "/messages/orders", document(), "publish on orders"),
    ("consume", "GET", "/messages/orders", None, "consume on orders"),
    ("read", "GET", "/queues/orders", None, "read or consume or manage on orders"),
    ("manage", "PUT", "/queues/orders-mqs", MQS, "manage on orders-mqs"),
    ("manage", "POST", "/queues/orders", MQS, "manage on orders"),
    ("publish", "POST", "/post", {"messages": {"orders": ["x"]}}, "publish on orders"),
    ("consume", "POST", "/pull", {"receiver": "r", "timeout": 0, "queues": {"orders": {}}}, "consume on orders"),
    ("read", "GET", "/v1/results/orders/1?timeout=0", None, "publish or read on orders"),
    ("read", "GET", "/status/orders", None, "read or consume or manage on orders"),
    ("publish", "POST", "/v1/queues/orders/messages", document(), "publish on orders"),
    ("publish", "POST", "/v1/publish", document() | {"topics": ["orders.eu"]}, "publish on orders.eu"),
    ("publish", "POST", "/v1/publish?topic=orders.us", document(), "publish on orders.us"),
    ("consume", "GET", "/v1/queues/orders/messages", None, "consume on orders"),
    ("consume", "GET", "/v1/channels/orders-feed/messages", None, "consume on orders-feed"),
    ("consume", "POST", "/v1/claims/orders", {"consumer": "c", "lease": 9}, "consume on orders"),
    ("read", "GET", "/v1/search?queue=orders", None, "read on orders"),
    ("read", "GET", "/v1/schedule?queue=orders", None, "read on orders"),
    ("read", "GET", "/v1/events?queue=orders&limit=1", None, "read on orders"),
    ("read", "GET", "/v1/queues/orders", None, "read or consume or manage on orders"),
    ("manage", "PUT", "/v1/queues/orders-native", {}, "manage on orders-native"),
    ("manage", "PATCH", "/v1/queues/orders", {"max_attempts": 3}, "manage on orders"),
    ("manage", "DELETE", "/v1/queues/orders/messages", None, "manage on orders"),
    ("manage", "POST", "/v1/redrive", {"from": "orders"}, "manage on orders"),
    ("manage", "DELETE", "/v1/queues/orders-native", None, "manage on orders-native"),
    ("admin", "GET", "/v1/tokens", None, "admin on *"),
    ("admin", "PUT", "/v1/tokens/new", SETTINGS, "admin on *"),
    ("admin", "PATCH", "/v1/tokens/new", SETTINGS, "admin on *"),
    ("admin", "POST", "/v1/tokens/new/rotate", {}, "admin on *"),
    ("admin", "DELETE", "/v1/tokens/new", None, "admin on *"),
    ("admin", "GET", "/v1/log", None, "read on *"),
    ("admin", "GET", "/v1/log/batches?from=0&shard=0", None, "read on *"),
]


@pytest.mark.parametrize(
    ("verb", "method", "path", "body", "named"), HTTP, ids=[f"{m} {p}" for _, m, p, _, _ in HTTP]
)
def test_over_http_each_verb_needs_its_token(
    house: House, verb: str, method: str, path: str, body: Any, named: str
) -> None:
    for shown in (None, WRONG):
        answer = house.ask(shown, method, path, body)
        assert (answer.status, answer.json()["code"]) == (401, "unauthorized")
        assert answer.header("WWW-Authenticate")
    refused = house.ask(house.tokens["other"], method, path, body)
    assert refused.status == 403, refused
    assert named in refused.body.decode()
    if path.startswith("/v1/") and "results" not in path:
        assert refused.json()["code"] == "forbidden"
    right = ADMIN if verb == "admin" else house.tokens[verb]
    allowed = house.ask(right, method, path, body)
    assert allowed.status not in (401, 403), allowed


def test_a_message_is_confirmed_extended_read_and_deleted_by_those_who_may(house: House) -> None:
    sent = house.ask(house.tokens["publish"], "POST", "/v1/queues/orders/messages", document()).json()["id"]
    for method, path, body, verb in (
        ("GET", f"/v1/messages/{sent}", None, "read"),
        ("POST", "/v1/extend", {"id": sent, "seconds": 9}, "consume"),
        ("POST", "/v1/confirm", {"id": sent}, "consume"),
        ("DELETE", f"/messages/{sent}", None, "consume"),
        ("PATCH", f"/v1/schedule/{sent}", {"visible_at": "2030-01-01T00:00:00Z"}, "manage"),
        ("DELETE", f"/v1/schedule/{sent}", None, "manage"),
        ("DELETE", f"/v1/messages/{sent}", None, "manage"),
    ):
        for name in ("publish", "consume", "read", "manage", "other"):
            answer = house.ask(house.tokens[name], method, path, body)
            if name in ("publish", "other"):  # They do not see the queue.
                unknown = house.ask(house.tokens[name], method, path.replace(sent, NOBODY), _about(body, NOBODY))
                assert (answer.status, answer.body) == (404, unknown.body), (name, path, answer)
            elif name != verb:
                assert (answer.status, answer.json()["code"]) == (403, "forbidden"), (name, path, answer)
                assert f"{verb} on orders" in answer.json()["error"]


def _about(body: Any, identifier: str) -> Any:
    return body | {"id": identifier} if body and "id" in body else body


def test_a_wait_is_for_those_who_publish_or_read(house: House) -> None:
    sent = house.ask(house.tokens["publish"], "POST", "/v1/queues/orders/messages", document()).json()["id"]
    wanted = {"ids": [sent], "until": "taken"}
    for name, code in (("publish", None), ("read", None), ("consume", "forbidden"), ("other", "no_message")):
        found = house.ask(house.tokens[name], "POST", "/v1/wait", wanted).json()["messages"]
        assert [each.get("code") for each in found] == ([code] if code else []), name


def test_an_idempotency_key_of_one_identity_is_not_that_of_another(house: House) -> None:
    twin = token(house.broker, "twin", "publish:orders*")
    mine, others, changed = (
        _publish_once(house, secret, text)
        for secret, text in ((house.tokens["publish"], "x"), (twin, "x"), (ADMIN, "another"))
    )
    assert (mine.status, others.status, changed.status) == (201, 201, 201)
    assert len({each.json()["id"] for each in (mine, others, changed)}) == 3
    rotated = house.admin("POST", "/v1/tokens/twin/rotate").json()["token"]
    assert _publish_once(house, rotated, "x").json() == others.json()
    assert _publish_once(house, house.tokens["publish"], "another").json()["code"] == "idempotency_key_reused"


def test_staged_rows_need_whole_topics_as_a_publish_does(house: House) -> None:
    by_topic = token(house.broker, "by-topic", "publish:orders.eu,orders.us")
    bearer = {"Authorization": f"Bearer {by_topic}"}
    for topics, needed in (
        (["orders.eu", "orders.us"], ""),
        (["orders.eu", "orders.asia"], "publish on orders.asia"),
    ):
        rows = arrow({"body": [b"x"] * 2, "topics": topics, "key": [b"1"] * 2, "object": ["orders"] * 2})
        answer = house.broker.request("POST", "/v1/stage/by-topic/1/a", bearer, rows)
        assert (answer.status, needed in answer.json().get("error", "")) == (403 if needed else 201, True)
    rows = arrow({"body": [b"x"], "topics": ["orders.eu"], "key": [b"1"], "object": ["secret"]})
    answer = house.broker.request("POST", "/v1/stage/by-topic/1/b", bearer, rows)
    assert (answer.status, "publish on secret" in answer.json()["error"]) == (403, True)


def _publish_once(house: House, secret: str, text: str) -> Response:
    headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": "shared"}
    body = json.dumps(document(text)).encode()
    return house.broker.request("POST", "/v1/queues/orders/messages", headers, body)


def test_a_channel_needs_reading_and_a_dead_letter_queue_publishing(house: House) -> None:
    feed, dead = {"topics": ["orders.*"]}, {"redrive_policy": {"max_receives": 1, "dead_letter_queue": "other"}}
    refused = house.ask(house.tokens["manage"], "PUT", "/v1/channels/orders-new", feed)
    assert (refused.status, "read on orders.*" in refused.json()["error"]) == (403, True)
    refused = house.ask(house.tokens["manage"], "PUT", "/v1/queues/orders-new", dead)
    assert (refused.status, "publish on other" in refused.json()["error"]) == (403, True)


def test_a_schedule_needs_its_name_and_its_target(house: House) -> None:
    daily = {"queue": "orders", "message": "x", "every": 3600}
    both = token(house.broker, "scheduler", "manage:daily*", "publish:orders")
    assert house.ask(both, "PUT", "/v1/schedules/daily", daily).status == 201
    for name, missing in (("publish", "manage on daily"), ("other", "manage on daily")):
        for method, path, body in (
            ("PUT", "/v1/schedules/daily", daily),
            ("PATCH", "/v1/schedules/daily", {"paused": True}),
            ("POST", "/v1/schedules/daily/run", {}),
            ("DELETE", "/v1/schedules/daily", None),
        ):
            refused = house.ask(house.tokens[name], method, path, body)
            assert refused.status == 403, (path, refused)
            assert missing in refused.json()["error"]
    refused = house.ask(both, "PATCH", "/v1/schedules/daily", {"queue": "secret"})
    assert (refused.status, "publish on secret" in refused.json()["error"]) == (403, True)
    assert house.ask(both, "DELETE", "/v1/schedules/daily").status == 204


# ── Conversations ───────────────────────────────────────────────────────────────────────────────────────────

ETZEL: dict[str, dict[str, Any]] = {
    "publish": {"cmd": "PUB", "qname": "orders", "message": "x"},
    "consume": {"cmd": "FET", "qname": "orders"},
}


def test_etzel_in_lines_asks_for_a_token_first_and_then_for_scopes(house: House) -> None:
    for first in ({"cmd": "AUTH", "token": WRONG}, ETZEL["publish"]):
        with LineClient(house.broker.lines) as client:
            assert client.ask(**first) == {"cmd": "nok", "err": "DENIED"}
            assert client.read_to_end() == b""
    _etzel_verbs(house, lambda: LineClient(house.broker.lines))


def test_etzel_over_websocket_does_the_same(house: House) -> None:
    for first in ({"cmd": "AUTH", "token": WRONG}, ETZEL["publish"]):
        with WsClient(house.broker.http, "/connect") as client:
            assert client.ask(**first) == {"cmd": "nok", "err": "DENIED"}
            assert client.closed()[0] == 1008
    _etzel_verbs(house, lambda: WsClient(house.broker.http, "/connect"))


def _etzel_verbs(house: House, connect: Callable[[], Any]) -> None:
    for verb, command in ETZEL.items():
        for name in (verb, "other"):
            with connect() as client:
                assert client.ask(cmd="AUTH", token=house.tokens[name]) == {"cmd": "okauth"}
                answer = client.ask(**command)
                if name == verb:
                    assert answer["cmd"] != "nok" or answer["err"] == "NO_MESSAGE"
                else:
                    assert (answer["cmd"], answer["err"]) == ("nok", "FORBIDDEN")
                    assert f"{verb} on orders" in answer["detail"]
    with connect() as client:
        client.ask(cmd="AUTH", token=house.tokens["publish"])
        for word in ("SUB", "ISLP"):
            assert client.ask(cmd=word, qname="orders")["err"] == "FORBIDDEN"


GLOVEBOX: dict[str, dict[str, Any]] = {
    "publish": {"type": "post", "queue": "orders", "message": "x", "label": 1, "notify": ["sync"]},
    "consume": {"type": "fetch", "queue": "orders", "label": 1},
    "manage": {"type": "create", "queue": "orders-box", "label": 1},
}


@pytest.mark.parametrize("verb", GLOVEBOX)
@pytest.mark.parametrize("how", ["header", "first frame"])
def test_glovebox_needs_a_token_in_a_header_or_the_first_frame(house: House, verb: str, how: str) -> None:
    for name in (verb, "other"):
        secret = house.tokens[name]
        wanted = f"orders-{how}" if verb == "manage" else "orders"
        headers = {"Authorization": f"Bearer {secret}"} if how == "header" else {}
        with WsClient(house.broker.http, **headers) as client:
            if how == "first frame":
                client.say({"type": "authenticate", "token": secret})
            assert client.hear()["type"] == "hello"
            answer = client.ask(**GLOVEBOX[verb] | {"queue": wanted})
            if name == verb:
                assert answer["type"] in ("notice", "message", "nomessage"), answer
            else:
                assert (answer["type"], answer["code"]) == ("error", "PermissionDenied")
                assert f"{verb} on {wanted}" in answer["key"]


@pytest.mark.parametrize(
    "first", [{"type": "authenticate", "token": WRONG}, GLOVEBOX["publish"], b"\x00\x01", {"type": "authenticate"}]
)
def test_glovebox_carries_nothing_out_for_a_guest(house: House, first: Any) -> None:
    before = house.admin("GET", "/v1/queues/orders").json()["status"]["last_sequence"]
    with WsClient(house.broker.http) as client:
        client.say(first)
        assert client.hear()["code"] == "PermissionDenied"
        assert client.closed()[0] == 1008
    assert house.admin("GET", "/v1/queues/orders").json()["status"]["last_sequence"] == before


@pytest.mark.parametrize("path", ["/connect", "/connect/"])
def test_a_guest_sends_only_small_messages_and_larger_ones_as_soon_as_it_is_known(house: House, path: str) -> None:
    posted = {"cmd": "PUB", "type": "post", "queue": "orders", "qname": "orders", "message": "x" * 20_000}
    large = json.dumps(posted | {"notify": ["sync"], "label": 1})
    with WsClient(house.broker.http, path) as client:
        client.say(large.encode())
        assert client.closed() == (1009, "the message is over 16384 bytes")
    login = {"cmd": "AUTH", "type": "authenticate", "token": house.tokens["publish"]}
    with RawWs(house.broker.http, path) as raw:
        raw.send(client_frame(json.dumps(login).encode()) + client_frame(large.encode()))
        answers = [json.loads(raw.read_frame()[1]) for _ in range(2)]
        assert [each.get("cmd") or each["type"] for each in answers] in (["okauth", "ok"], ["hello", "notice"])


def test_a_session_is_continued_only_by_the_identity_that_began_it(house: House) -> None:
    headers = {"Authorization": f"Bearer {house.tokens['consume']}", "Durable_Session": "true"}
    with WsClient(house.broker.http, **headers) as client:
        session = client.hear()["id"]
    stranger = {"Authorization": f"Bearer {house.tokens['other']}", "Reconnect_As": str(session)}
    with WsClient(house.broker.http, **stranger) as client:
        assert client.hear()["id"] != session
    with WsClient(house.broker.http, **headers, Reconnect_As=str(session)) as client:
        assert client.hear()["id"] == session


# ── Lists ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_list_shows_what_its_reader_may_not_see(house: House) -> None:
    mine = token(house.broker, "reader", "read:mine*")
    for name in ("mine", "hidden"):
        house.admin("PUT", f"/v1/queues/{name}", {})
        house.admin("PUT", f"/v1/channels/{name}-feed", {"topics": [f"{name}.*"]})
        house.admin("PUT", f"/v1/schedules/{name}-daily", {"queue": name, "message": "x", "every": 3600})
        house.admin("POST", f"/v1/queues/{name}/messages", document(f"text of {name}"))
        house.admin("POST", f"/v1/queues/{name}/messages", document(f"later in {name}") | {"delay": 3600})
        house.admin("POST", "/v1/publish", document() | {"topics": [f"{name}.a"], "key": "1"})
    for path in (
        *("/queues", "/v1/queues", "/v1/channels", "/v1/schedules", "/v1/search", "/v1/schedule", "/v1/events"),
        *("/v1/search?text=text", "/v1/purges", "/v1/redrive", "/metrics", "/v1/events?topic=*"),
    ):
        shown = house.ask(mine, "GET", path)
        assert shown.status == 200, (path, shown)
        assert b"hidden" not in shown.body, path
        assert b"orders" not in shown.body, path
        if path not in ("/v1/purges", "/v1/redrive"):
            assert b"mine" in shown.body, path
            assert b"hidden" in house.admin("GET", path).body, path
    assert house.ask(mine, "GET", "/v1/queues").json()["total"] == 2
    assert house.ask(mine, "GET", "/v1/objects/hidden/1").status == 404
    assert house.ask(mine, "GET", "/v1/objects/mine/1").status == 200


def test_a_publisher_is_not_shown_the_channels_that_get_its_message(house: House) -> None:
    house.admin("PUT", "/v1/channels/spy", {"topics": ["orders.spied"]})
    sent = document() | {"topics": ["orders.spied"]}
    answer = house.ask(house.tokens["publish"], "POST", "/v1/publish", sent).json()
    assert (answer["queues"], answer["channels"]) == (["orders"], [])
    assert "spy" in house.admin("POST", "/v1/publish", sent).json()["channels"]


def test_a_document_shows_only_the_places_that_its_reader_may_read(house: House) -> None:
    house.admin("PUT", "/v1/channels/secret-feed", {"topics": ["orders.both"]})
    sent = house.admin("POST", "/v1/publish", document() | {"topics": ["orders.both"]}).json()["id"]
    seen = house.ask(house.tokens["read"], "GET", f"/v1/messages/{sent}")
    assert "secret-feed" not in seen.body.decode()
    if house.kind != SITES[0]:
        return  # Copies in other shards are messages of their own there, and no places of this one.
    assert {place["queue"] for place in seen.json()["places"]} == {"orders", "orders-feed"}
    whole = house.admin("GET", f"/v1/messages/{sent}").json()
    assert "secret-feed" in {place["queue"] for place in whole["places"]}


def test_a_token_in_a_url_is_refused(house: House) -> None:
    for path in (f"/v1/queues?token={ADMIN}", f"/v1/queues?limit=1&access_token={ADMIN}"):
        refused = house.ask(ADMIN, "GET", path)
        assert (refused.status, refused.json()["code"]) == (400, "token_in_url")


# ── Changes count at once ───────────────────────────────────────────────────────────────────────────────────


def test_a_revoked_token_loses_what_it_has_open(house: House) -> None:
    secret = token(house.broker, "leaver", "read,consume:orders*")
    house.admin("PUT", "/queues/orders-quiet", MQS)
    bearer = {"Authorization": f"Bearer {secret}"}
    with (
        house.broker.connect() as poll,
        house.broker.connect() as stream,
        WsClient(house.broker.http, **bearer) as glovebox,
        WsClient(house.broker.http, "/connect") as etzel,
        LineClient(house.broker.lines) as lines,
    ):
        assert poll.request("GET", "/v1/queues/orders", bearer).status == 200
        assert stream.begin("/v1/events?follow=true&from=latest", bearer).status == 200
        glovebox.hear()
        assert etzel.ask(cmd="AUTH", token=secret) == {"cmd": "okauth"}
        assert lines.ask(cmd="AUTH", token=secret) == {"cmd": "okauth"}
        poll.send_request("GET", "/messages/orders-quiet", bearer | {"X-MQS-MAX-WAIT-TIME": "20"})
        glovebox.say({"type": "fetch", "queue": "orders-quiet", "label": 1, "block_timeout": 20})
        lines.say({"cmd": "ISLP", "qname": "orders-quiet"})
        assert lines.hear()["cmd"] == "okslp"
        house.admin("DELETE", "/v1/tokens/leaver")
        assert poll.read_response().status == 401
        assert glovebox.closed() == (1008, "the token is not valid any more")
        assert etzel.closed()[0] == 1008
        assert json.loads(lines.read_to_end()) == {"cmd": "nok", "err": "DENIED"}
        assert stream.ended_within(30)
    assert house.ask(secret, "GET", "/v1/queues/orders").status == 401


def test_changed_scopes_count_on_connections_that_are_open(house: House) -> None:
    secret = token(house.broker, "changer", "read:orders*")
    with house.broker.connect() as connection:
        bearer = {"Authorization": f"Bearer {secret}"}
        for _ in range(3):
            assert connection.request("GET", "/v1/queues/orders", bearer).status == 200
        house.admin("PATCH", "/v1/tokens/changer", {"scopes": ["read:other*"]})
        assert connection.request("GET", "/v1/queues/orders", bearer).status == 403
        assert connection.request("GET", "/v1/queues/other", bearer).status == 200


def test_a_rotated_token_has_a_new_secret_and_the_old_one_for_a_while(house: House) -> None:
    old = token(house.broker, "turner", "read:orders*")
    new = house.admin("POST", "/v1/tokens/turner/rotate", {"grace": 600}).json()
    assert new["old_secret_until"]
    assert {house.ask(each, "GET", "/v1/queues/orders").status for each in (old, new["token"])} == {200}
    newest = house.admin("POST", "/v1/tokens/turner/rotate").json()["token"]
    statuses = [house.ask(each, "GET", "/v1/queues/orders").status for each in (old, new["token"], newest)]
    assert statuses == [401, 401, 200]


def test_a_token_ends_when_it_expires_on_open_connections_too(house: House) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat().replace("+00:00", "Z")
    answer = house.admin("PUT", "/v1/tokens/brief", {"scopes": ["consume:orders*"], "expires": soon})
    bearer = {"Authorization": f"Bearer {answer.json()['token']}"}
    house.admin("PUT", "/queues/orders-empty", MQS)
    with house.broker.connect() as poll:
        poll.send_request("GET", "/messages/orders-empty", bearer | {"X-MQS-MAX-WAIT-TIME": "20"})
        assert poll.read_response().status == 401
    assert house.admin("GET", "/v1/tokens/brief").json()["expires"] is not None
    past = house.ask(ADMIN, "PATCH", "/v1/tokens/brief", {"expires": "2020-01-01T00:00:00Z"})
    assert (past.status, past.json()["code"]) == (400, "expires_in_past")


def test_the_first_token_must_be_an_admin_and_ends_anonymous_access(start_broker: StartBroker) -> None:
    broker = start_broker()
    body = json.dumps({"scopes": ["read:orders"]}).encode()
    refused = broker.request("PUT", "/v1/tokens/reader", body=body)
    assert (refused.status, refused.json()["code"]) == (409, "no_admin")
    with LineClient(broker.lines) as lines, WsClient(broker.http) as glovebox:
        glovebox.hear()
        boss = token(broker, "boss", "admin", admin="")
        assert glovebox.closed()[0] == 1008
        assert json.loads(lines.read_to_end())["err"] == "DENIED"
    assert broker.request("GET", "/v1/queues").status == 401
    headers = {"Authorization": f"Bearer {boss}"}
    token(broker, "reader", "read:orders", admin=boss)
    refused = broker.request("DELETE", "/v1/tokens/boss", headers)
    assert (refused.status, refused.json()["code"]) == (409, "no_admin")
    assert broker.request("PATCH", "/v1/tokens/boss", headers, body).json()["code"] == "no_admin"
    broker.kill()
    broker.start()
    assert broker.request("GET", "/v1/queues").status == 401
    assert broker.request("DELETE", "/v1/tokens/reader", headers).status == 204
    assert broker.request("DELETE", "/v1/tokens/boss", headers).status == 204
    assert broker.request("GET", "/v1/queues").status == 200


def test_tokens_survive_in_snapshots_and_no_secret_is_on_the_disk(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    boss = token(broker, "boss", "admin", admin="")
    broker.stop()
    files = [path for path in broker.data.rglob("*") if path.is_file()]
    assert any(path.suffix == ".snapshot" for path in files)
    assert not [path for path in files if boss.encode() in path.read_bytes()]
    broker.start()
    assert broker.request("GET", "/v1/tokens/boss", {"Authorization": f"Bearer {boss}"}).status == 200
    assert boss not in broker.log()
