"""What every verb has in common: where it finds the broker, and how it says that there is none."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker import StartBroker
from tests.support.command_line import penstock


def test_a_broker_that_cannot_be_reached_has_its_exit_code_and_a_remedy() -> None:
    ended = penstock("queues", "list", "--url", "http://127.0.0.1:1")
    assert (ended.returncode, ended.stdout) == (6, "")
    assert ended.stderr.startswith(
        "penstock: the broker at http://127.0.0.1:1 cannot be reached: Connection refused;"
    )
    assert "penstock serve" in ended.stderr
    assert penstock("queues", "list", "--url", "nonsense").returncode == 2


def test_an_address_with_a_password_is_refused_and_the_password_is_not_repeated(tmp_path: Path) -> None:
    address = "http://ann:hush-hush@127.0.0.1:1"
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock/config.toml").write_text(f'[profiles.mine]\nurl = "{address}"\n')
    for ended, where in (
        (penstock("queues", "list", "--url", address), "--url"),
        (penstock("doctor", PENSTOCK_URL=address), "PENSTOCK_URL"),
        (penstock("config", "show", XDG_CONFIG_HOME=str(tmp_path)), "profile mine"),
    ):
        assert (ended.returncode, ended.stdout) == (2, "")
        assert f"{where}: the address of a broker must not contain a user or a password" in ended.stderr
        assert "hush" not in ended.stderr


def test_a_token_comes_from_the_profile_and_a_wrong_one_is_refused(start_broker: StartBroker, tmp_path: Path) -> None:
    url = "http://{}:{}".format(*start_broker("auth.tokens=secret").http)
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock/config.toml").write_text(f'[profiles.mine]\nurl = "{url}"\ntoken = "secret"\n')
    there = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert penstock("queues", "list", "--profile", "mine", **there).returncode == 0
    assert penstock("queues", "list", PENSTOCK_PROFILE="mine", **there).returncode == 0
    refused = penstock("queues", "list", "--url", url, **there)
    assert (refused.returncode, "--token" in refused.stderr) == (5, True)


def test_an_address_without_a_scheme_is_a_mistake_that_is_named() -> None:
    ended = penstock("peek", "jobs", PENSTOCK_URL="localhost:28000")
    assert ended.returncode == 2
    assert "localhost:28000 (PENSTOCK_URL) does not begin with http:// or https://" in ended.stderr
    assert "write http://localhost:28000" in ended.stderr
