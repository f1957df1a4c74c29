"""Settings that are read again while the broker serves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker, workers_of
from tests.support.waiting import wait_until

WORKERS = {"one process": (), "two workers": ("--workers", "2", "--shards", "2")}


def written(tokens: list[str], more: str = "") -> str:
    return f"[auth]\ntokens = {tokens}\n{more}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(written(["first"]))
    return path


@pytest.fixture(params=list(WORKERS.values()), ids=list(WORKERS))
def broker(request: pytest.FixtureRequest, file: Path, tmp_path: Path) -> Iterator[Broker]:
    started = Broker(tmp_path / "data", flags=("--config", str(file), *request.param)).start()
    yield started
    started.stop()


def status(broker: Broker, token: str, target: str = "/v1/queues") -> int:
    return broker.request("GET", target, {"Authorization": f"Bearer {token}"}).status


def reload(broker: Broker, event: str) -> list[dict[str, object]]:
    """What each process has logged about it."""
    os.kill(broker.pid, signal.SIGHUP)
    return [broker.wait_until_logged(event) for _ in range(len(workers_of(broker)) or 1)]


def test_other_tokens_count_at_once_and_what_needs_a_restart_is_named(broker: Broker, file: Path) -> None:
    file.write_text(written(["first", "second"], "[push]\nconnections_max = 7\n"))
    for told in reload(broker, "settings_reloaded"):
        assert (told["changed"], told["need_restart"]) == ("auth.tokens", "push.connections_max")
    assert [status(broker, token) for token in ("first", "second")] == [200, 200]
    file.write_text(written(["second"]))
    reload(broker, "settings_reloaded")
    assert [status(broker, token) for token in ("first", "second")] == [401, 200]


def test_a_connection_whose_token_stays_goes_on_and_one_whose_token_is_gone_does_not(
    broker: Broker, file: Path
) -> None:
    file.write_text(written(["first", "second"]))
    reload(broker, "settings_reloaded")
    with broker.connect() as stays, broker.connect() as goes:
        asked = [(stays, "second"), (goes, "first")]
        for connection, token in asked:
            assert connection.request("GET", "/v1/queues", {"Authorization": f"Bearer {token}"}).status == 200
        file.write_text(written(["second"]))
        reload(broker, "settings_reloaded")
        found = [
            connection.request("GET", "/v1/queues", {"Authorization": f"Bearer {token}"}).status
            for connection, token in asked
        ]
    assert found == [200, 401]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[auth", "cannot be read"),
        ("[quota.identity]\nwaiting = -1\n", "quota.identity.waiting"),
        (written(["first"], '[tls]\ncertificate = "nowhere.pem"\nkey = "nowhere.key"\n'), "tls.certificate"),
    ],
    ids=["no TOML", "out of range", "TLS begins"],
)
def test_a_mistake_changes_nothing(broker: Broker, file: Path, text: str, reason: str) -> None:
    file.write_text(text)
    for told in reload(broker, "settings_refused"):
        assert reason in str(told["reason"])
    assert status(broker, "first") == 200


def test_quotas_count_from_now_on_and_are_shown(broker: Broker, file: Path) -> None:
    file.write_text(written(["first"], "[quota.identity]\nrequests_per_second = 1\n"))
    reload(broker, "settings_reloaded")
    with broker.connect() as connection:

        def is_refused() -> bool:
            return connection.request("GET", "/v1/queues", {"Authorization": "Bearer first"}).status == 429

        wait_until(is_refused, "the quota refuses")
    file.write_text(written(["first"]))
    reload(broker, "settings_reloaded")
    shown = broker.request("GET", "/v1/settings", {"Authorization": "Bearer first"}).json()["settings"]
    [quota] = [each for each in shown if each["key"] == "quota.identity.requests_per_second"]
    assert (quota["value"], quota["source"]) == (0, "default")
