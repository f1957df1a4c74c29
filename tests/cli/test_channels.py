"""`penstock channels`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cli.conftest import Verb


def test_a_channel_is_made_changed_filled_emptied_and_removed(verb: Verb, ask: Callable[..., Any]) -> None:
    (made,) = ask("channels", "create", "cli-mail", "--topic", "cli-post.*", "max_attempts=3")
    assert (made["topics"], made["max_attempts"]) == (["cli-post.*"], 3)
    (changed,) = ask("channels", "change", "cli-mail", "lease=5")
    assert (changed["topics"], changed["max_attempts"], changed["lease"]) == (["cli-post.*"], 3, 5)
    assert ask("channels", "change", "cli-mail", "--topic", "cli-post.x")[0]["topics"] == ["cli-post.x"]
    verb("publish", "--topic", "cli-post.x", "letter")
    assert ask("channels", "show", "cli-mail")[0]["status"]["ready"] == 1
    assert "cli-mail" in [channel["name"] for channel in ask("channels", "list")]
    assert verb("channels", "purge", "cli-mail", "--yes").stdout == "1 messages deleted\n"
    assert verb("channels", "delete", "cli-mail").returncode == 2
    assert verb("channels", "delete", "cli-mail", "--yes").returncode == 0
    gone = verb("channels", "show", "cli-mail")
    assert (gone.returncode, "penstock channels create" in gone.stderr) == (4, True)
