"""`penstock tokens`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.command_line import penstock


def token(*words: str | Path, code: int = 0) -> str:
    ended = penstock("tokens", *map(str, words))
    assert ended.returncode == code, ended
    return (ended.stdout if code == 0 else ended.stderr).strip()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_stopped_broker_gets_its_first_token_from_the_command_line(data: Path) -> None:
    assert "no administrator" in token("create", "shop", "--scope", "publish:orders", "--data", data, code=5)
    boss = token("create", "boss", "--scope", "admin", "--data", data)
    assert boss.startswith("pst_")
    broker = Broker(data)
    broker.start()
    try:
        at = ("--url", broker.url, "--token", boss)
        shop = token("create", "shop", "--scope", "publish:orders*", "--scope", "read:orders", "--days", "30", *at)
        shown = json.loads(token("show", "shop", "--json", *at))
        assert shown["scopes"] == ["publish:orders*", "read:orders"]
        assert shown["expires"]
        assert shop not in token("list", *at)
        assert "publish:orders*" in token("list", *at)
        assert json.loads(token("change", "shop", "--never", "--json", *at))["expires"] is None
        token("change", "shop", "--limit", "waiting=5", "--limit", "published_per_second=50", *at)
        limits = json.loads(token("change", "shop", "--limit", "waiting=7", "--json", *at))["limits"]
        assert limits == {"waiting": 7, "published_per_second": 50}
        assert "the limits are connections, " in token("change", "shop", "--limit", "wait=5", *at, code=2)
        newer = token("rotate", "shop", "--grace", "60", *at)
        assert newer != shop
        for secret in (shop, newer):
            headers = {"Authorization": f"Bearer {secret}"}
            assert broker.request("GET", "/v1/search?queue=orders", headers).status == 404
        assert token("delete", "shop", "--yes", *at) == "shop is deleted"
        assert "token" in token("show", "shop", *at, code=4)
        assert "is in use" in token("list", "--data", data, code=3)
    finally:
        broker.stop()
