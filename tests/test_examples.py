"""The programs in examples/ that need no Spark, as their users run them. tests/pipeline has the others."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from penstock import Client
from tests.support.broker import Broker, StartBroker
from tests.support.ports import free_port

EXAMPLES = Path(__file__).parents[1] / "examples"
LINES_MAX = 60


@pytest.fixture
def broker(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = start_broker("push.private_addresses=allow")
    monkeypatch.setenv("PENSTOCK_URL", "http://{}:{}".format(*broker.http))
    return broker


@contextmanager
def worker(app: str, *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "penstock.cli", "worker", app, *options]
    process = subprocess.Popen(command, cwd=EXAMPLES)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0


@contextmanager
def web_server(app: str) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port)]
    process = subprocess.Popen(command, cwd=EXAMPLES, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "Uvicorn running" in line:
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def ask(url: str, document: object = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def run(name: str, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.usefixtures("broker")
def test_an_order_is_accepted_charged_and_receipted() -> None:
    with web_server("shop_orders:web") as url, worker("shop_orders:app"), Client() as client:
        order = ask(f"{url}/orders", {"item": "apple", "cents": 120, "email": "ann@example.com"})
        assert client.wait([order["id"]], until="done", timeout=60)[0].json() == "apple: 1.20 paid"
        assert ask(f"{url}/orders/{order['id']}") == {"status": "done"}
        free = ask(f"{url}/orders", {"item": "air", "cents": 0, "email": "bob@example.com"})
        assert client.wait([free["id"]], until="done", timeout=60)[0].outcome != "success"


@pytest.mark.usefixtures("broker")
def test_a_thumbnail_is_made_by_a_child_process(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (640, 480), "teal").save(photo)
    with worker("thumbnails:app", "--processes", "1"):
        run("thumbnails", str(photo))
    assert Image.open(io.BytesIO((tmp_path / "photo.thumbnail.png").read_bytes())).size == (128, 96)


@pytest.mark.usefixtures("broker")
def test_a_question_is_answered_and_a_bad_one_is_not() -> None:
    with Client() as client:
        client.queues.create("rpc-factors", lease=60)
    server = subprocess.Popen([sys.executable, str(EXAMPLES / "rpc.py"), "serve"])
    try:
        assert run("rpc", "ask", "5040").split() == ["2", "2", "2", "2", "3", "3", "5", "7"]
        bad = subprocess.run(
            [sys.executable, str(EXAMPLES / "rpc.py"), "ask", "eleven"], capture_output=True, text=True, timeout=60
        )
        assert bad.returncode == 1
        assert "invalid" in bad.stderr
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.usefixtures("broker")
def test_every_partner_gets_its_copy() -> None:
    said = run("webhooks")
    assert "hook-billing b'{\"order\":17}'" in said
    assert "hook-warehouse b'{\"order\":17}'" in said


@pytest.mark.usefixtures("broker")
def test_only_changed_prices_arrive(tmp_path: Path) -> None:
    export = tmp_path / "export.csv"

    def write(**prices: int) -> None:
        with export.open("w", newline="") as file:
            csv.writer(file).writerows(prices.items())

    write(apple=100, pear=200)
    assert run("price_changes", str(export)).splitlines() == ["2 changed, 0 unchanged", "apple 100", "pear 200"]
    write(apple=100, pear=220)
    assert run("price_changes", str(export)).splitlines() == ["1 changed, 1 unchanged", "pear 220"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < LINES_MAX
