"""JWTs over the wire: who is let in, with which scopes, for how long, and what the others are told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.audit_records import AUDIT, audited_soon, bearer
from tests.support.broker import Broker, StartBroker, refused_start
from tests.support.jwt_provider import Provider, unpadded
from tests.support.line_client import LineClient
from tests.support.waiting import wait_until
from tests.support.ws_client import WsClient


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path)


@pytest.fixture
def guarded(start_broker: StartBroker, provider: Provider) -> Broker:
    """A broker that knows the provider, and has a token of its own."""
    broker = start_broker(AUDIT, "auth.tokens=root", *provider.settings)
    assert broker.request("PUT", "/v1/queues/orders", bearer("root"), b"{}").status == 201
    return broker


def shown(token: bytes) -> dict[str, str]:
    return bearer(token.decode())


def test_a_jwt_may_do_what_its_scopes_allow(guarded: Broker, provider: Provider) -> None:
    ann = shown(provider.token("ann", penstock=["publish:orders"]))
    assert guarded.request("POST", "/messages/orders", ann, b"x").status == 201
    refused = guarded.request("GET", "/messages/orders", ann)
    assert (refused.status, refused.json()["code"]) == (403, "forbidden")
    (record,) = audited_soon(guarded, token="root", code="forbidden")
    assert (record["who"], record["identity"], record["act"]) == ("ann", "jwt", "consume")


def test_a_broker_with_keys_lets_nobody_in_without_a_token(start_broker: StartBroker, provider: Provider) -> None:
    broker = start_broker(*provider.settings)
    assert broker.request("GET", "/v1/queues").status == 401
    assert broker.request("GET", "/v1/queues", shown(provider.token())).status == 200
    assert broker.request("PUT", "/v1/queues/x", shown(provider.token(penstock=["admin"])), b"{}").status == 201


def test_a_refusal_says_why_and_nothing_of_the_token(guarded: Broker, provider: Provider) -> None:
    now = int(time.time())
    for token, why in (
        (provider.token(exp=now - 60), "the token has expired"),
        (provider.token(nbf=now + 60), "the token is not valid yet"),
        (provider.token(aud="others"), "the token is for another audience"),
        (provider.token(headers={"kid": "other"}), "the token is signed with an unknown key"),
        (provider.token()[:-8] + b"AAAAAAAA", "the signature of the token is wrong"),
        (unpadded(b'{"alg":' + b"[" * 3000) + b".e30.AAAA", "the token has no header with alg and kid"),
    ):
        refused = guarded.request("GET", "/v1/queues", shown(token))
        assert refused.status == 401
        challenge = f'Bearer realm="penstock", error="invalid_token", error_description="{why}"'
        assert refused.header("WWW-Authenticate") == challenge
    assert guarded.request("GET", "/v1/queues", bearer("no.t.jwt")).status == 401


def test_json_lines_take_a_jwt_too(guarded: Broker, provider: Provider) -> None:
    with LineClient(guarded.lines) as client:
        token = provider.token(penstock=["publish:orders"]).decode()
        assert client.ask(cmd="AUTH", token=token) == {"cmd": "okauth"}


def test_a_key_that_is_taken_away_ends_its_tokens_on_open_connections(
    guarded: Broker, provider: Provider, tmp_path: Path
) -> None:
    ann = shown(provider.token(penstock=["read:orders"]))
    with guarded.connect() as connection:
        for _ in range(3):  # The broker remembers heads that repeat.
            assert connection.request("GET", "/v1/queues/orders", ann).status == 200
        (tmp_path / "next").mkdir()
        following = Provider(tmp_path / "next", "EdDSA", key_id="second")
        provider.publish(following.public())
        wait_until(lambda: guarded.request("GET", "/v1/queues/orders", ann).status != 200, "the key is not used")
        with pytest.raises((EOFError, OSError, AssertionError)):
            assert connection.request("GET", "/v1/queues/orders", ann).status == 200
    assert guarded.request("GET", "/v1/queues/orders", shown(following.token(penstock=["read"]))).status == 200


@pytest.mark.parametrize(
    ("left_out", "why"),
    [("auth.jwt_keys", "belong together"), ("auth.jwt_issuer", "belong together"), ("", "cannot be read")],
)
def test_a_broker_does_not_start_with_half_of_the_settings(
    tmp_path: Path, provider: Provider, left_out: str, why: str
) -> None:
    given = [setting for setting in provider.settings if not left_out or not setting.startswith(left_out)]
    if not left_out:
        provider.path.unlink()
    code, errors = refused_start(tmp_path / "data", *given)
    assert (code, why in errors) == (2, True), errors


def test_a_jwt_with_the_name_of_a_token_is_another_identity(guarded: Broker, provider: Provider) -> None:
    body = b'{"scopes": ["publish,consume:orders"]}'
    token = guarded.request("PUT", "/v1/tokens/ann", bearer("root"), body).json()["token"]
    jwt = provider.token("ann", penstock=["publish,consume:orders"])
    sent = [
        guarded.request("POST", "/v1/queues/orders/messages", headers | {"Idempotency-Key": "1"}, b'{"message": 1}')
        for headers in (bearer(token), shown(jwt), shown(jwt))
    ]
    assert [answer.header("Idempotent-Replay") for answer in sent] == [None, None, "true"]
    with WsClient(guarded.http, **bearer(token), Durable_Session="true") as client:
        session = str(client.hear()["id"])
    for headers, resumed in ((shown(jwt), False), (bearer(token), True)):
        with WsClient(guarded.http, **headers, Reconnect_As=session) as client:
            assert (str(client.hear()["id"]) == session) is resumed
