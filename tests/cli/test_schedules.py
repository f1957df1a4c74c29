"""`penstock schedules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cli.conftest import Verb


def test_a_schedule_is_made_run_paused_changed_and_removed(verb: Verb, ask: Callable[..., Any], queue: str) -> None:
    at = ("--queue", queue, "--message", "report", "--cron", "30 2 * * mon-fri", "--zone", "Europe/Berlin")
    (made,) = ask("schedules", "create", "cli-nightly", *at, "catch_up=all")
    assert (made["cron"], made["time_zone"], made["catch_up"]) == ("30 2 * * mon-fri", "Europe/Berlin", "all")
    assert "Europe/Berlin" in verb("schedules", "list").stdout
    (sent,) = ask("schedules", "run", "cli-nightly")
    assert [message["id"] for message in ask("peek", queue)] == [sent["id"]]
    assert ask("schedules", "pause", "cli-nightly")[0]["paused"] is True
    assert " paused " in verb("schedules", "list").stdout
    assert ask("schedules", "resume", "cli-nightly")[0]["next_run"] is not None
    assert ask("schedules", "change", "cli-nightly", "every=3600")[0]["every"] == 3600
    assert ask("schedules", "show", "cli-nightly")[0]["cron"] == ""
    assert "every 3600 s" in verb("schedules", "list").stdout
    assert verb("schedules", "delete", "cli-nightly").returncode == 2
    assert verb("schedules", "delete", "cli-nightly", "--yes").stdout == "cli-nightly is deleted\n"
    assert verb("schedules", "show", "cli-nightly").returncode == 4


def test_a_schedule_says_when_in_one_way(verb: Verb) -> None:
    for when in ((), ("--cron", "* * * * *", "--every", "5")):
        ended = verb("schedules", "create", "cli-never", "--queue", "q", *when)
        assert (ended.returncode, "--cron or --every" in ended.stderr) == (2, True)
