"""`penstock peek`, `search`, `message` and `tail`: looking at messages touches nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.cli.messages import duration, preview
from tests.cli.conftest import Verb
from tests.support.broker import Broker

Ask = Callable[..., Any]


def test_a_peek_shows_the_first_messages_and_counts_no_delivery(verb: Verb, ask: Ask, queue: str) -> None:
    verb("publish", queue, "--lines", given="a\nb\nc\n")
    assert [message["message"] for message in ask("peek", queue, "-n", "2")] == ["a", "b"]
    shown = verb("peek", queue).stdout.splitlines()
    assert shown[0].split() == ["queue", "sequence", "id", "status", "age", "receives", "message"]
    assert (shown[1].split()[0], shown[1].split()[-1]) == (queue, "a")
    assert ask("peek", queue)[0]["receives"] == 0


def test_a_search_finds_or_says_that_there_is_nothing(verb: Verb, ask: Ask, queue: str) -> None:
    verb("publish", queue, "--lines", given="green apple\nred apple\n")
    assert [message["message"] for message in ask("search", "red", "--queue", queue)] == ["red apple"]
    assert verb("search", "blue", "--queue", queue).returncode == 4


def test_the_life_of_a_message_is_shown_when_it_is_gone(verb: Verb, ask: Ask, queue: str) -> None:
    (sent,) = ask("publish", queue, "short life")
    verb("consume", queue)
    shown = verb("message", sent["id"]).stdout
    assert "short life" in shown
    letters = [line.split()[1] for line in shown.splitlines() if line.startswith(f"{datetime.now(UTC):%Y-%m}")]
    assert letters == ["L", "Q", "F", "S", "X"]
    assert ask("message", sent["id"])[0]["status"] == "gone"
    assert verb("message", "00000000-0000-8000-8000-000000000000").returncode == 4


def test_the_tail_shows_events_of_the_past_and_ends_if_told(verb: Verb, ask: Ask, queue: str) -> None:
    verb("publish", queue, "hello")
    past = ("tail", "--queue", queue, "--from", "earliest", "--no-follow")
    assert [(event["state"], event.get("message")) for event in ask(*past)] == [("L", "hello"), ("Q", "")]
    assert ask(*past, "--state", "Q", "-n", "1")[0]["event"] == "queued"
    (line,) = verb(*past, "--state", "L").stdout.splitlines()
    assert line.split()[1:4] == ["L", "logged", queue]
    assert line.endswith("hello")


def failed(broker: Broker, queue: str, reason: str, body: object) -> str:
    """The id of a message that has failed in a queue, and is in its dead-letter queue."""
    lost = f"{queue}.failed"
    broker.request("PUT", f"/v1/queues/{lost}", body=b"{}")
    policy = {"redrive_policy": {"max_receives": 1, "dead_letter_queue": lost}}
    broker.request("PATCH", f"/v1/queues/{queue}", body=json.dumps(policy).encode())
    sent = broker.request("POST", f"/v1/queues/{queue}/messages", body=json.dumps({"message": body}).encode()).json()
    broker.request("GET", f"/v1/queues/{queue}/messages?consumer=ada")
    given = {"id": sent["id"], "outcome": "retry", "consumer": "ada", "reason": reason}
    assert broker.request("POST", "/v1/confirm", body=json.dumps(given).encode()).status == 200
    identifier: str = sent["id"]
    return identifier


def test_a_dead_letter_says_where_it_is_where_it_came_from_and_why(verb: Verb, broker: Broker, queue: str) -> None:
    body = {"order": 96628, "customer": "ann", "lines": [{"sku": "7"}]}
    lost = failed(broker, queue, "no such card", body)
    shown = verb("message", lost).stdout
    facts = dict(line.split(None, 1) for line in shown.splitlines())
    assert facts["queue"].strip() == f"{queue}.failed"
    assert f"came from  {queue}\n" in shown
    assert json.loads(facts["message"]) == body
    (failure,) = [line for line in shown.splitlines() if line.split()[1] == "E"]
    assert failure.endswith(f'to_queue={queue}.failed reason="no such card"')


def test_dead_letters_are_listed_with_where_they_came_from_and_why(verb: Verb, broker: Broker, queue: str) -> None:
    failed(broker, queue, "no such card", "m")
    chosen = ("--origin", queue, "--ready-since", "2020-01-01T00:00:00Z", "--reason", "no such*")
    assert verb("search", *chosen, "--ready-until", "2020-01-01T00:00:00Z").returncode == 4
    for shown in (verb("peek", f"{queue}.failed").stdout, verb("search", *chosen).stdout):
        head, row = (line.split("  ") for line in shown.splitlines())
        names, cells = ([cell.strip() for cell in each if cell.strip()] for each in (head, row))
        assert names == ["queue", "sequence", "id", "status", "age", "receives", "came from", "reason", "message"]
        assert cells[-3:] == [queue, "no such card", "m"]
        assert len(cells) == len(names) - 1  # It was not delivered from here: 0 would only puzzle.


def test_a_dead_letter_is_sent_back_or_deleted_by_its_id(verb: Verb, ask: Ask, broker: Broker, queue: str) -> None:
    first, second, third = (failed(broker, queue, "no such card", f"m{n}") for n in range(3))
    assert verb("message", "redrive", first, "--dry-run").stdout == "1 message can be moved\n"
    assert verb("message", "redrive", first, second).stdout == "2 of 2 messages moved\n"
    assert [each["message"] for each in ask("peek", queue)] == ["m0", "m1"]
    assert ask("message", "redrive", second, "--to", f"{queue}.failed")[0]["moved"] == 1
    ended = verb("message", "delete", second, third)
    assert (ended.returncode, "Delete 2 messages?" in ended.stderr) == (2, True)
    assert verb("message", "delete", second, third, "--yes").stdout == "2 messages deleted\n"
    assert verb("message", "redrive", third).returncode == 4
    broker.request("GET", f"/v1/queues/{queue}/messages")
    assert verb("message", "delete", first, "--yes").returncode == 5  # A consumer holds it.
    assert verb("message", "--json", first).returncode == verb("message", "show", first).returncode == 0


def test_consumers_are_listed_with_what_they_hold(verb: Verb, ask: Ask, broker: Broker, queue: str) -> None:
    ask("consumers")  # From now on the broker counts.
    verb("publish", queue, "--lines", given="a\nb\n")
    broker.request("GET", f"/v1/queues/{queue}/messages?consumer=ada")
    (found,) = ask("consumers", queue)
    assert (found["consumer"], found["queue"], found["leases"]) == ("ada", queue, 1)
    assert [each["consumer"] for each in ask("consumers", "--name", queue)] == ["ada"]
    head, row = verb("consumers", queue).stdout.splitlines()
    assert head.split("  ")[0] == "consumer"
    assert row.startswith(f"ada       {queue}")


def test_workers_are_listed_and_forgotten(verb: Verb, ask: Ask, broker: Broker, queue: str) -> None:
    worker = {"queues": [queue], "concurrency": 4, "running": 1, "seconds": 0.001}
    broker.request("PUT", f"/v1/workers/{queue}", body=json.dumps(worker).encode())
    listed = {each["name"]: each for each in ask("workers", "list")}
    assert (listed[queue]["running"], listed[queue]["concurrency"]) == (1, 4)
    (row,) = [line for line in verb("workers", "list").stdout.splitlines() if line.startswith(queue)]
    assert row.split()[1:4] == ["missing", "1", "4"]
    assert verb("workers", "delete", queue).stdout == f"{queue} is forgotten\n"
    assert queue not in {each["name"] for each in ask("workers", "list")}


def test_the_tail_refuses_letters_that_nothing_has(verb: Verb) -> None:
    for wrong in ("ZZ", "SXY"):
        ended = verb("tail", "--state", wrong)
        assert ended.returncode == 2
        assert "letters are L logged, U unchanged" in ended.stderr


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0.25, "0.2s"), (12, "12s"), (90, "2m"), (7200, "2h"), (200_000, "2d")]
)
def test_a_duration_has_one_unit(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_preview_is_one_line_whatever_the_bytes_are() -> None:
    assert preview(b"a\nb\x00") == "a·b·"
    assert preview(b"x" * 100, 10) == "xxxxxxxxx…"
    assert preview(b"\xff\xfe") == "��"
