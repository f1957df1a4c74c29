"""`penstock worker`: which broker it uses, and what it reports when it cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.command_line import penstock
from tests.support.working import url_of

TASKS = """
import penstock
app = penstock.App({url})

@app.task(queue="cli-worker")
def double(number: int) -> int:
    return 2 * number

if __name__ == "__main__":
    double.send(21)
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cli_tasks.py"


def test_a_worker_uses_the_broker_of_a_profile(broker: Broker, tasks: Path) -> None:
    tasks.write_text(TASKS.format(url=""))
    config = tasks.parent / "penstock" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'[profiles.here]\nurl = "{url_of(broker)}"\n')
    arguments = ("worker", "cli_tasks:app", "--burst", "--profile", "here", "--log-format", "text")
    ended = penstock(*arguments, XDG_CONFIG_HOME=str(tasks.parent))
    assert ended.returncode == 0, ended
    assert f"broker={url_of(broker)}" in ended.stderr
    assert broker.request("GET", "/v1/queues/cli-worker").status == 200


def test_an_app_that_names_its_broker_keeps_it(broker: Broker, tasks: Path) -> None:
    tasks.write_text(TASKS.format(url=repr(url_of(broker))))
    ended = penstock("worker", "cli_tasks:app", "--burst", "--log-format", "text", PENSTOCK_URL="http://127.0.0.1:1")
    assert ended.returncode == 0, ended
    assert f"broker={url_of(broker)}" in ended.stderr


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nothing:app", "cannot import nothing"),
        ("cli_tasks:other", "cli_tasks has no app called other; use cli_tasks:app"),
        ("json", "json has no app called app; make one with app = penstock.App()"),
    ],
)
def test_an_app_that_is_not_there_is_reported_with_a_remedy(tasks: Path, target: str, sentence: str) -> None:
    tasks.write_text(TASKS.format(url=""))
    ended = penstock("worker", target)
    assert ended.returncode == 1
    assert sentence in ended.stderr
