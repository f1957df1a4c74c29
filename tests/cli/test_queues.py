"""`penstock queues`: from the first setting to the last message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli.assignments import parsed, texts
from penstock.cli.exits import CommandError
from tests.cli.conftest import Verb

Ask = Callable[..., Any]


def test_a_queue_is_made_shown_changed_listed_and_removed(verb: Verb, ask: Ask) -> None:
    (made,) = ask("queues", "create", "cli-life", "max_attempts=5", "lease=0.5", "keep=all")
    assert (made["max_attempts"], made["lease"], made["keep"]) == (5, 0.5, "all")
    assert (made["retries"], made["visibility_timeout"]) == (5, 0.5)  # Until 1.0, as in the native API.
    (changed,) = ask("queues", "change", "cli-life", "max_attempts=2")
    assert (changed["max_attempts"], changed["keep"]) == (2, "all")
    assert ask("queues", "show", "cli-life") == [changed]
    assert changed in ask("queues", "list")
    assert verb("queues", "list").stdout.startswith("name ")
    assert "max_attempts           2\n" in verb("queues", "show", "cli-life").stdout
    assert ask("queues", "delete", "cli-life", "--yes") == [{"removed": "cli-life", "messages": 0}]
    assert verb("queues", "show", "cli-life").returncode == 4


def test_an_old_name_of_a_setting_is_told_in_one_line(verb: Verb) -> None:
    made = verb("queues", "create", "cli-old-setting", "visibility_timeout=7", "--json")
    assert '"lease":7' in made.stdout
    assert made.stderr == (
        "penstock: queue setting visibility_timeout is deprecated since 0.3 and works until 1.0: use lease\n"
    )


def test_a_queue_with_other_settings_is_in_use(verb: Verb, queue: str) -> None:
    ended = verb("queues", "create", queue, "max_attempts=5")
    assert (ended.returncode, "penstock queues change" in ended.stderr) == (3, True)


def test_a_wrong_setting_is_a_usage_error(verb: Verb, queue: str) -> None:
    assert verb("queues", "change", queue, "max_attempts=many").returncode == 2
    assert verb("queues", "change", queue, "max_attempts").returncode == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("queues", "create", "cli-name", "name=x"), "name cannot be given as a setting"),
        (("queues", "change", "cli-name", "self=x"), "self cannot be given as a setting"),
        (("channels", "create", "cli-name", "--topic", "fruit.*", "topics=x"), "topics cannot be given as a setting"),
        (("channels", "change", "cli-name", "name=x"), "name cannot be given as a setting"),
        (("schedules", "create", "cli-name", "message=x", "--every", "9"), "message cannot be given as a setting"),
        (("schedules", "create", "cli-name", "colour=red", "--every", "9"), "colour cannot be given as a setting"),
        (("schedules", "create", "cli-name", "every=8", "--every", "9"), "every cannot be given as a setting"),
        (("schedules", "change", "cli-name", "name=x"), "name cannot be given as a setting"),
        (
            ("queues", "create", "cli-name", "redrive_policy=1", "redrive_policy.max_receives=2"),
            "redrive_policy is given as a value, so redrive_policy.max_receives cannot be",
        ),
    ],
)
def test_what_is_no_setting_is_a_usage_error(verb: Verb, words: tuple[str, ...], why: str) -> None:
    ended = verb(*words)
    assert (ended.returncode, ended.stderr) == (2, f"penstock: {why}\n")


def test_a_setting_under_both_of_its_names_is_a_usage_error(verb: Verb, queue: str) -> None:
    ended = verb("queues", "change", queue, "lease=20", "visibility_timeout=30")
    assert (ended.returncode, ended.stderr) == (
        2,
        "penstock: queue setting visibility_timeout is the old name of lease: give only lease\n",
    )


def test_nothing_is_removed_without_yes_where_nobody_can_be_asked(verb: Verb, queue: str) -> None:
    for action in ("delete", "purge"):
        ended = verb("queues", action, queue)
        assert (ended.returncode, "add --yes" in ended.stderr) == (2, True)
    assert verb("queues", "show", queue).returncode == 0


def test_a_purge_empties_a_queue(verb: Verb, ask: Ask, queue: str) -> None:
    verb("publish", queue, "--lines", given="a\nb\nc\n")
    assert verb("queues", "purge", queue, "--yes").stdout == "3 messages deleted\n"
    assert ask("queues", "show", queue)[0]["status"]["messages"] == 0


def test_a_redrive_moves_what_matches(verb: Verb, ask: Ask, queue: str) -> None:
    ask("queues", "create", f"{queue}-to")
    verb("publish", queue, "--lines", given="apple\npear\napple pie\n")
    choice = (queue, "--to", f"{queue}-to", "--filter", "text=apple")
    assert verb("queues", "redrive", *choice, "--dry-run").stdout == "2 messages match\n"
    assert verb("queues", "redrive", *choice).stdout == "2 of 2 messages moved\n"
    assert ask("queues", "show", queue)[0]["status"]["messages"] == 1


def test_a_filter_is_text_also_if_it_is_all_digits(verb: Verb, ask: Ask, queue: str) -> None:
    ask("queues", "create", f"{queue}-to")
    verb("publish", queue, "--lines", given="order 441\norder 442\n")
    for given in ("text=441", 'text="441"'):
        choice = (queue, "--to", f"{queue}-to", "--filter", given, "--dry-run")
        assert verb("queues", "redrive", *choice).stdout == "1 messages match\n"
    for name in ("key", "object", "reason", "origin", "topic", "since", "ready_until"):
        ended = verb("queues", "redrive", queue, "--to", f"{queue}-to", "--filter", f"{name}=441", "--dry-run")
        assert (ended.returncode, ended.stderr) == (0, ""), name


def test_a_wrong_value_is_named_in_words_and_without_the_request(verb: Verb, queue: str) -> None:
    ended = verb("queues", "change", queue, "lease=abc")
    assert (ended.returncode, ended.stderr) == (2, "penstock: lease must be a number, not text\n")


@pytest.mark.parametrize(
    ("assignments", "document"),
    [
        (None, {}),
        (["a=1", "b=x", "c=null", "d=true"], {"a": 1, "b": "x", "c": None, "d": True}),
        (["p.m=5", "p.q=dead"], {"p": {"m": 5, "q": "dead"}}),
        (["a=b=c"], {"a": "b=c"}),
    ],
)
def test_settings_are_json_where_they_can_be(assignments: list[str] | None, document: dict[str, Any]) -> None:
    assert parsed(assignments) == document


def test_a_setting_without_a_value_is_refused() -> None:
    for read in (parsed, texts):
        with pytest.raises(CommandError, match="NAME=VALUE"):
            read(["max_attempts"])
