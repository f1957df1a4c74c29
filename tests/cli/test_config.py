"""`penstock config`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import penstock


def test_a_file_to_start_from_is_written_once_and_read_by_nobody_else(tmp_path: Path) -> None:
    there = {"XDG_CONFIG_HOME": str(tmp_path)}
    path = Path(penstock("config", "init", **there).stdout.strip())
    assert (path.is_relative_to(tmp_path), path.stat().st_mode & 0o777) == (True, 0o600)
    again = penstock("config", "init", **there)
    assert (again.returncode, "--force" in again.stderr) == (3, True)
    assert penstock("config", "init", "--force", **there).returncode == 0
    assert penstock("config", "path", **there).stdout.strip() == str(path)


def test_it_shows_what_holds_and_where_it_comes_from_but_no_token(tmp_path: Path) -> None:
    penstock("config", "init", XDG_CONFIG_HOME=str(tmp_path))
    shown = penstock("config", "show", "--token", "secret-token", "--json", XDG_CONFIG_HOME=str(tmp_path))
    found = json.loads(shown.stdout)
    assert found["url"] == {"value": "http://127.0.0.1:7843", "source": "profile local"}
    assert found["token"] == {"value": "se…", "source": "--token"}
    assert found["profiles"] == ["local"]


def test_a_profile_that_is_not_there_is_a_usage_error() -> None:
    ended = penstock("config", "show", "--profile", "nowhere")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "penstock config init" in ended.stderr
