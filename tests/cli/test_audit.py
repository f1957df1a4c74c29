"""`penstock audit`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.conftest import Verb
from tests.support.audit_records import AUDIT
from tests.support.broker import Broker, StartBroker
from tests.support.command_line import penstock


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that records."""
    shared = Broker(tmp_path_factory.mktemp("audit") / "data", AUDIT).start()
    yield shared
    shared.stop()


def test_the_audit_is_a_table_with_what_has_changed(verb: Verb) -> None:
    assert verb("queues", "create", "cli-audit", "lease=60").returncode == 0
    assert verb("queues", "change", "cli-audit", "max_attempts=5").returncode == 0
    shown = verb("audit", "--target", "cli-audit").stdout.splitlines()
    assert shown[0].split() == ["time", "who", "from", "act", "target", "outcome", "details"]
    assert shown[1].endswith("done     lease 60")
    assert "anonymous  127.0.0.1 native  queue.update  cli-audit  done     max_attempts none → 5" in shown[2]


def test_records_are_chosen_by_who_act_time_and_outcome(ask: Callable[..., Any], verb: Verb) -> None:
    assert verb("queues", "create", "cli-chosen").returncode == 0
    assert verb("queues", "delete", "cli-chosen", "--yes").returncode == 0
    assert verb("queues", "delete", "cli-none", "--yes").returncode == 4
    at = ("--target", "cli-chosen")
    assert [each["act"] for each in ask("audit", *at)] == ["queue.create", "queue.delete"]
    assert [each["act"] for each in ask("audit", *at, "--act", "*.delete", "--who", "anon*")] == ["queue.delete"]
    assert [each["act"] for each in ask("audit", *at, "--since", "1h")] == ["queue.create", "queue.delete"]
    assert ask("audit", *at, "--who", "ann") == []
    assert ask("audit", *at, "--since", "2100-01-01T00:00:00Z") == []
    assert ask("audit", *at, "--refused") == []


def test_a_broker_that_has_recorded_nothing_shows_an_empty_table(start_broker: StartBroker) -> None:
    broker = start_broker(AUDIT)
    ended = penstock("audit", PENSTOCK_URL=broker.url)
    assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 1)


def test_followers_see_what_happens_next(broker: Broker) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "audit",
        "--follow",
        "--target",
        "cli-followed",
        "--url",
        broker.url,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as following:
        assert following.stdout is not None
        assert following.stdout.readline().startswith("time")
        broker.create_queue("cli-followed")
        assert "queue.create  cli-followed  done" in following.stdout.readline()
        following.kill()
