"""The audit over the wire: what is recorded of acts and refusals, and who can see and change it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit_records import AUDIT, audited, audited_soon, bearer
from tests.support.broker import Broker, StartBroker
from tests.support.command_line import penstock
from tests.support.event_history import publish

HERE = {"who": "anonymous", "identity": "anonymous", "address": "127.0.0.1"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that records, for all tests of this file: use names of your own."""
    shared = Broker(tmp_path_factory.mktemp("audit") / "data", AUDIT).start()
    yield shared
    shared.stop()


def ask(broker: Broker, method: str, target: str, document: Any = None, token: str = "") -> int:
    body = None if document is None else json.dumps(document).encode()
    return broker.request(method, target, bearer(token) if token else {}, body).status


def sent(broker: Broker, queue: str, body: bytes) -> str:
    """Publishes a message; its id."""
    message = broker.request("POST", f"/messages/{queue}", body=body).header("X-MQS-MESSAGE-ID")
    assert message is not None
    return message


def acts(broker: Broker, target: str) -> list[str]:
    return [record["act"] for record in audited(broker, target)]


def test_a_queue_is_recorded_with_the_settings_that_change(broker: Broker) -> None:
    began = datetime.now(UTC)
    assert ask(broker, "PUT", "/v1/queues/audit-q", {"lease": 60}) == 201
    assert ask(broker, "PATCH", "/v1/queues/audit-q", {"lease": 60, "max_attempts": 5}) == 200
    assert ask(broker, "DELETE", "/v1/queues/audit-q") == 204
    made, changed, removed = audited(broker, "audit-q")
    usual = {**HERE, "dialect": "native", "target": "audit-q", "outcome": "done"}
    assert made == {**usual, "time": made["time"], "act": "queue.create", "after": {"lease": 60}}
    assert (changed["act"], changed["before"], changed["after"]) == (
        "queue.update",
        {"max_attempts": None},
        {"max_attempts": 5},
    )
    assert (removed["act"], removed["before"]) == ("queue.delete", {"lease": 60, "max_attempts": 5})
    assert began <= datetime.fromisoformat(made["time"]) <= datetime.fromisoformat(removed["time"])


def test_every_dialect_is_named(broker: Broker) -> None:
    settings = {"retention_timeout": 60, "visibility_timeout": 1, "message_deduplication": False}
    assert ask(broker, "PUT", "/queues/audit-mqs", settings) == 201
    (made,) = audited(broker, "audit-mqs")
    assert (made["dialect"], made["act"]) == ("mqs", "queue.create")


def test_a_channel_is_no_queue(broker: Broker) -> None:
    assert ask(broker, "PUT", "/v1/channels/audit-c", {"topics": ["audit-fruit"]}) == 201
    assert ask(broker, "PUT", "/v1/channels/audit-c", {"topics": ["audit-fruit", "audit-nut"]}) == 200
    assert ask(broker, "DELETE", "/v1/channels/audit-c") == 204
    assert acts(broker, "audit-c") == ["channel.create", "channel.update", "channel.delete"]
    assert audited(broker, "audit-c")[1]["before"] == {"topics": ["audit-fruit"]}


def test_a_schedule_is_recorded_without_its_message(broker: Broker) -> None:
    broker.create_queue("audit-s-q")
    assert (
        ask(broker, "PUT", "/v1/schedules/audit-s", {"queue": "audit-s-q", "every": 3600, "message": "hush"}) == 201
    )
    assert ask(broker, "PATCH", "/v1/schedules/audit-s", {"paused": True}) == 200
    assert ask(broker, "POST", "/v1/schedules/audit-s/run") == 201
    assert ask(broker, "DELETE", "/v1/schedules/audit-s") == 204
    made, paused, _, _ = found = audited(broker, "audit-s")
    assert [record["act"] for record in found] == ["schedule.set", "schedule.set", "schedule.run", "schedule.delete"]
    assert made["after"] == {"queue": "audit-s-q", "every": 3600, "message_bytes": 4}
    assert (paused["before"], paused["after"]) == ({"paused": False}, {"paused": True})


def test_what_operators_do_to_messages_is_recorded_with_their_ids(broker: Broker) -> None:
    broker.create_queue("audit-m", message_delay=3600)
    first, second = (sent(broker, "audit-m", body) for body in (b"a", b"b"))
    later = "2100-01-01T00:00:00Z"
    assert ask(broker, "PATCH", f"/v1/schedule/{first}", {"visible_at": later}) == 200
    assert ask(broker, "DELETE", f"/v1/schedule/{first}") == 204
    assert ask(broker, "DELETE", f"/v1/messages/{second}") == 204
    found = [(record["act"], record["message"]) for record in audited(broker, "audit-m")[1:]]
    assert found == [("message.reschedule", first), ("message.cancel", first), ("message.delete", second)]


def test_purges_and_redrives_are_recorded_when_they_begin_and_with_what_they_did_when_they_end(
    broker: Broker,
) -> None:
    broker.create_queue("audit-p")
    broker.create_queue("audit-p-to")
    publish(broker, "audit-p", b"a")
    assert ask(broker, "POST", "/v1/redrive", {"from": "audit-p", "to": "audit-p-to", "dry_run": True}) == 200
    assert ask(broker, "POST", "/v1/redrive", {"from": "audit-p", "to": "audit-p-to"}) == 200
    assert ask(broker, "DELETE", "/v1/queues/audit-p/messages") == 200
    found = [(record["act"], record.get("after")) for record in audited(broker, "audit-p")[1:]]
    assert found == [
        ("queue.redrive", {"to": "audit-p-to"}),
        ("queue.redriven", {"matched": 1, "moved": 1, "state": "done"}),
        ("queue.purge", None),
        ("queue.purged", {"deleted": 0, "state": "done"}),
    ]


def test_the_record_of_a_redrive_says_what_was_asked_for_and_hides_content(broker: Broker) -> None:
    broker.create_queue("audit-r")
    asked = {"from": "audit-r", "filter": {"origin": "orders", "text": "secret"}, "rate": 5}
    assert ask(broker, "POST", "/v1/redrive", asked) == 200
    assert audited(broker, "audit-r", act="queue.redrive")[0]["after"] == {
        "to": "(each to the queue that it came from)",
        "filter": {"origin": "orders", "text": "(hidden)"},
        "rate": 5,
    }


def test_a_backup_is_recorded_once_whatever_it_reads_first(broker: Broker, tmp_path: Path) -> None:
    assert ask(broker, "GET", "/v1/backup/log?from=0&to=0") == 200
    (begun,) = audited(broker, act="backup")
    assert begun == {
        **HERE,
        "time": begun["time"],
        "dialect": "native",
        "act": "backup",
        "target": "",
        "outcome": "done",
    }
    assert penstock("backup", str(tmp_path / "copy"), "--url", broker.url).returncode == 0
    assert audited(broker, act="backup") == [begun]


def test_what_the_broker_refuses_is_recorded_with_its_code(broker: Broker) -> None:
    assert ask(broker, "DELETE", "/v1/queues/audit-none") == 404
    assert ask(broker, "DELETE", "/v1/queues/audit-none/messages") == 404
    found = audited_soon(broker, count=2, target="audit-none")
    assert [(each["act"], each["outcome"], each["code"]) for each in found] == [
        ("queue.delete", "refused", "no_queue"),
        ("queue.purge", "refused", "no_queue"),
    ]


def test_publishing_and_receiving_are_not_recorded(broker: Broker) -> None:
    broker.create_queue("audit-plain")
    publish(broker, "audit-plain", b"a")
    assert broker.request("GET", "/messages/audit-plain").status == 200
    assert ask(broker, "POST", "/v1/publish", {"topics": ["audit-plain.x"], "message": "a"}) == 201
    assert acts(broker, "audit-plain") == ["queue.create"]


def test_equal_refusals_are_counted_in_one_record(start_broker: StartBroker) -> None:
    broker = start_broker(AUDIT)
    for _ in range(50):
        assert ask(broker, "DELETE", "/v1/queues/none") == 404
    assert len(audited_soon(broker, target="none")) == 1
    broker.stop()
    broker.start()
    first, later = audited(broker, "none")
    assert ("count" in first, later["count"], later["since"] <= later["time"]) == (False, 49, True)


def test_no_administrator_changes_the_audit(start_broker: StartBroker) -> None:
    broker, token = start_broker(AUDIT, "auth.tokens=root"), "root"
    assert ask(broker, "PUT", "/v1/queues/work", {}, token) == 201
    message = broker.request("GET", "/v1/search?queue=_audit", bearer(token)).json()["messages"][0]["id"]
    settings_of_mqs = {"retention_timeout": 60, "visibility_timeout": 1, "message_deduplication": False}
    tried = {
        "publish": ask(broker, "POST", "/messages/_audit", {}, token),
        "publish native": ask(broker, "POST", "/v1/queues/_audit/messages", {"message": "x"}, token),
        "publish topic": ask(broker, "POST", "/v1/publish", {"topics": ["_audit.x"], "message": "x"}, token),
        "receive": ask(broker, "GET", "/messages/_audit", None, token),
        "fetch": ask(broker, "GET", "/v1/queues/_audit/messages", None, token),
        "update": ask(broker, "PATCH", "/v1/queues/_audit", {"retries": 1}, token),
        "update mqs": ask(broker, "PUT", "/queues/_audit", settings_of_mqs, token),
        "remove": ask(broker, "DELETE", "/v1/queues/_audit", None, token),
        "purge": ask(broker, "DELETE", "/v1/queues/_audit/messages", None, token),
        "delete message": ask(broker, "DELETE", f"/v1/messages/{message}", None, token),
        "redrive from": ask(broker, "POST", "/v1/redrive", {"from": "_audit", "to": "work"}, token),
        "redrive to": ask(broker, "POST", "/v1/redrive", {"from": "work", "to": "_audit"}, token),
        "dead letters": ask(
            broker,
            "PATCH",
            "/v1/queues/work",
            {"redrive_policy": {"max_receives": 1, "dead_letter_queue": "_audit"}},
            token,
        ),
        "schedule": ask(broker, "PUT", "/v1/schedules/x", {"queue": "_audit", "every": 60, "message": "x"}, token),
    }
    assert tried == dict.fromkeys(tried, 403)


def test_other_names_that_begin_with_an_underscore_are_ordinary(broker: Broker) -> None:
    broker.create_queue("_audits")
    publish(broker, "_audits", b"a")
    assert broker.request("GET", "/messages/_audits").body == b"a"
    assert ask(broker, "DELETE", "/v1/queues/_audits") == 204


def test_a_broker_that_records_nothing_has_no_such_queue(start_broker: StartBroker) -> None:
    broker = start_broker("audit.enabled=false")
    broker.create_queue("work")
    assert ask(broker, "DELETE", "/v1/queues/none") == 404
    assert ask(broker, "DELETE", "/v1/queues/work/messages") == 200
    assert broker.request("GET", "/v1/search?queue=_audit").status == 404


def test_records_end_with_their_retention_also_if_it_is_changed(start_broker: StartBroker) -> None:
    broker = start_broker(AUDIT)
    broker.create_queue("work")
    broker.stop()
    again = start_broker(AUDIT, "audit.retention_seconds=86400", data=broker.data)
    again.create_queue("more")
    settings = again.request("GET", "/v1/queues/_audit").json()
    assert (settings["keep"], settings["retention_timeout"]) == ("all", 86400)


def test_tokens_are_recorded_without_their_secrets(start_broker: StartBroker) -> None:
    broker = start_broker(AUDIT, "auth.tokens=root")
    root = bearer("root")
    made = broker.request("PUT", "/v1/tokens/ann", root, b'{"scopes": ["publish:orders"]}')
    changed = broker.request("PATCH", "/v1/tokens/ann", root, b'{"scopes": ["read:orders"]}')
    rotated = broker.request("POST", "/v1/tokens/ann/rotate", root, b'{"grace": 60}')
    assert (made.status, changed.status, rotated.status) == (201, 200, 200)
    assert ask(broker, "GET", "/v1/tokens", token=rotated.json()["token"]) == 403
    assert ask(broker, "DELETE", "/v1/tokens/ann", token="root") == 204
    found = audited(broker, "ann", "root")
    assert [each["act"] for each in found] == ["token.set", "token.set", "token.rotate", "token.revoke"]
    assert found[0]["after"] == {"scopes": ["publish:orders"]}
    assert (found[1]["before"], found[1]["after"]) == ({"scopes": ["publish:orders"]}, {"scopes": ["read:orders"]})
    assert {each["who"] for each in found} == {"auth.tokens[0]"}
    (forbidden,) = audited_soon(broker, token="root", code="forbidden")
    assert (forbidden["who"], forbidden["identity"], forbidden["act"]) == ("ann", "token", "admin")
    written = json.dumps(audited(broker, token="root"))
    secrets = [made.json()["token"], rotated.json()["token"]]
    assert not any(each in written or sha256(each.encode()).hexdigest() in written for each in secrets)
