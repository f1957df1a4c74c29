"""Secrets appear nowhere: not in the log, the metrics, the audit or an answer, whatever goes wrong with them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit_records import AUDIT, audited, audited_soon, bearer
from tests.support.broker import Broker, StartBroker, refused_start
from tests.support.http_client import Response
from tests.support.jwt_provider import Provider
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient

SECRET = "very-secret-7f3a91"
ROOT = f"{SECRET}-root"
PUSH = "push.private_addresses=allow"


class Witness:
    """Sends requests with a secret in them, and keeps every answer."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.heard: list[bytes] = []

    def ask(self, method: str, target: str, document: Any = None, **headers: str) -> Response:
        body = None if document is None else json.dumps(document).encode()
        answer = self.broker.request(method, target, {name.title(): value for name, value in headers.items()}, body)
        self.heard += [answer.body, *(f"{name}: {value}".encode() for name, value in answer.headers)]
        return answer

    def check(self) -> None:
        """Nothing that the broker has written anywhere has the secret in it."""
        metrics = self.broker.request("GET", "/metrics", bearer(ROOT)).body
        records = json.dumps(audited(self.broker, token=ROOT)).encode()
        for written in (*self.heard, metrics, records, self.broker.log().encode()):
            assert SECRET.encode() not in written


@pytest.fixture
def witness(start_broker: StartBroker) -> Witness:
    return Witness(start_broker(AUDIT, PUSH, f"auth.tokens={ROOT}"))


def test_a_wrong_token_is_repeated_nowhere(witness: Witness) -> None:
    basic = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    for shown in (f"Bearer {SECRET}", f"Basic {basic}", SECRET, f"Bearer {SECRET} {SECRET}", f"{SECRET} {SECRET}"):
        assert witness.ask("GET", "/v1/queues", authorization=shown).status == 401
        assert witness.ask("POST", "/messages/x", {}, authorization=shown).status == 401
        assert witness.ask("GET", "/connect/", authorization=shown).status == 401
    assert len(audited_soon(witness.broker, token=ROOT, act="login", code="unauthorized")) > 0
    witness.check()


def test_a_wrong_token_in_json_lines_is_repeated_nowhere(witness: Witness) -> None:
    with LineClient(witness.broker.lines) as client:
        client.say({"cmd": "AUTH", "token": SECRET})
        witness.heard.append(client.read_line())
    (record,) = audited_soon(witness.broker, token=ROOT, act="login")
    assert (record["dialect"], record["address"], record["who"]) == ("etzel", "127.0.0.1", "anonymous")
    witness.check()


@pytest.mark.parametrize("query", [f"token={SECRET}", f"access_token={SECRET}", f"authorization=Bearer%20{SECRET}"])
def test_a_token_in_a_url_is_repeated_nowhere(witness: Witness, query: str) -> None:
    for path in ("/v1/queues", "/v1/search", "/queues", "/v1/events", "/nothing", "/metrics", "/connect/"):
        witness.ask("GET", f"{path}?{query}")
        witness.ask("GET", f"{path}?{query}", authorization=f"Bearer {ROOT}")
    witness.check()


def test_push_urls_are_shown_only_to_those_who_manage_the_channel(witness: Witness) -> None:
    root = {"authorization": f"Bearer {ROOT}"}
    refused = {"topics": ["t"], "push": {"url": f"http://ann:{SECRET}@127.0.0.1:9/hook"}}
    assert witness.ask("PUT", "/v1/channels/refused", refused, **root).status == 400
    pushed = {"topics": ["t"], "push": {"url": f"http://127.0.0.1:9/hook?key={SECRET}"}}
    made = witness.broker.request("PUT", "/v1/channels/pushed", bearer(ROOT), json.dumps(pushed).encode())
    assert made.status == 201
    assert witness.ask("POST", "/v1/publish", {"topics": ["t"], "message": "x"}, **root).status == 201
    while not witness.broker.times_logged("push_suspended"):
        witness.ask("POST", "/v1/publish", {"topics": ["t"], "message": "x"}, **root)
    witness.check()


def test_bodies_that_cannot_be_read_are_not_repeated(witness: Witness) -> None:
    root = {"authorization": f"Bearer {ROOT}"}
    for document in ({"retries": SECRET}, {"push": {"url": [SECRET]}}, [SECRET], SECRET):
        assert witness.ask("PUT", "/v1/queues/x", document, **root).status == 400
        assert witness.ask("PUT", "/v1/schedules/x", document, **root).status == 400
    witness.check()


@pytest.mark.parametrize(
    "setting", [f"auth.tokens=two words {SECRET}", f"auth.token={SECRET}", f"auth.tokens={SECRET},,", f"auth{SECRET}"]
)
def test_a_broker_that_refuses_its_settings_does_not_show_them(tmp_path: Path, setting: str) -> None:
    code, errors = refused_start(tmp_path / "data", setting)
    assert code != 0
    assert SECRET not in errors.replace(f"auth{SECRET}", "")


def test_a_settings_file_that_cannot_be_read_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f'[auth]\ntokens = ["{SECRET}", ')
    code, errors = refused_start(tmp_path / "data", flags=("--config", str(file)))
    assert code != 0
    assert SECRET not in errors


def test_a_wrong_token_in_a_first_frame_is_repeated_nowhere(witness: Witness) -> None:
    with WsClient(witness.broker.http) as client:
        client.say({"type": "authenticate", "token": SECRET})
        witness.heard.append(json.dumps(client.hear()).encode())
    (record,) = audited_soon(witness.broker, token=ROOT, act="login")
    assert (record["dialect"], record["code"]) == ("glovebox", "unauthorized")
    witness.check()


def test_a_bad_jwt_is_repeated_nowhere(start_broker: StartBroker, tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    witness = Witness(start_broker(AUDIT, f"auth.tokens={ROOT}", *provider.settings))
    for token in (
        provider.token(SECRET, aud=SECRET),
        provider.token(SECRET, iss=SECRET),
        provider.token(headers={"kid": SECRET}),
        provider.token(penstock=[SECRET]),
        SECRET.encode() + b"." + provider.token(SECRET).partition(b".")[2],
    ):
        assert witness.ask("GET", "/v1/queues", authorization=f"Bearer {token.decode()}").status == 401
        assert not any(token in heard for heard in witness.heard)
    witness.check()


def test_a_key_file_with_a_private_key_is_not_shown(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    provider.publish(provider.public() | {"d": SECRET})
    code, errors = refused_start(tmp_path / "data", *provider.settings)
    assert (code, "key 1 is secret" in errors, SECRET in errors) == (2, True, False)
