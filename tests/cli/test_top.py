"""`penstock top`: rates from one look to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.cli.top import rates
from penstock.client import Queue
from penstock.client.results import QueueStatus
from tests.cli.conftest import Verb


def queue_with(name: str, ever: int, messages: int) -> Queue:
    status = QueueStatus(
        messages=messages, ready=messages, leased=0, delayed=0, kept=0, damaged=0, last_sequence=ever
    )
    return Queue(name=name, status=status, lease=30, max_attempts=None)


def test_the_busiest_queue_is_first_then_the_fullest() -> None:
    before = [queue_with("idle", 5, 5), queue_with("full", 9, 9), queue_with("busy", 100, 0)]
    now = [queue_with("idle", 5, 5), queue_with("full", 9, 9), queue_with("busy", 120, 10), queue_with("new", 7, 7)]
    found = rates(before, now, 2.0)
    assert [(rate.queue.name, rate.entered, rate.left) for rate in found] == [
        ("busy", 10.0, 5.0),
        ("full", 0.0, 0.0),
        ("new", 0.0, 0.0),
        ("idle", 0.0, 0.0),
    ]


def test_it_can_be_shown_once(verb: Verb, ask: Callable[..., Any], queue: str) -> None:
    shown = verb("top", "--once", "--every", "0.1", "--count", "100")
    assert shown.stdout.split()[:3] == ["queue", "in/s", "out/s"]
    (found,) = ask("top", "--once", "--every", "0.1", "--count", "1000")
    assert queue in [row["queue"] for row in found]


def test_it_says_why_a_queue_needs_a_person(verb: Verb, ask: Callable[..., Any], queue: str) -> None:
    verb("queues", "create", f"{queue}-lost")
    policy = (f"redrive_policy.dead_letter_queue={queue}-lost", "redrive_policy.max_receives=1")
    verb("queues", "change", queue, *policy)
    verb("publish", f"{queue}-lost", "a dead letter")
    (found,) = ask("top", "--once", "--every", "0.1", "--count", "1000")
    assert [row["why"] for row in found if row["queue"] == f"{queue}-lost"] == ["waiting for a decision"]
    (row,) = [
        line for line in verb("top", "--once", "--count", "1000").stdout.splitlines() if f"{queue}-lost" in line
    ]
    assert row.endswith("waiting for a decision")


def test_a_pipe_without_once_is_a_usage_error(verb: Verb) -> None:
    ended = verb("top")
    assert (ended.returncode, "--once" in ended.stderr) == (2, True)
