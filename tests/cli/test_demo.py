"""`penstock demo`: it works without anything, and leaves nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

from penstock import Client
from tests.support.command_line import Terminal, penstock


def test_the_brief_demo_shows_a_life_and_leaves_nothing(tmp_path: Path) -> None:
    ended = penstock("demo", "--brief", TMPDIR=str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "to Oslo: done" in ended.stdout
    assert "E  exasperated    parcels" in ended.stdout
    assert "penstock serve" in ended.stdout
    assert not list(tmp_path.iterdir())


def test_the_shop_has_orders_failures_and_dead_letters_and_closes_without_a_trace(tmp_path: Path) -> None:
    shop = Terminal("demo", "--no-tables", "--rate", "20", TMPDIR=str(tmp_path))
    shop.wait_for("penstock schedules list")
    with Client(re.findall(r"Console +(\S+)/", shop.shown)[0]) as client:
        happened: set[tuple[str | None, str]] = set()
        wanted = {("payments", "R"), ("payments-failed", "Q"), ("mail", "S"), ("prices", "U"), ("reports", "Q")}
        for event in client.events(from_=0):
            happened.add((event.queue, event.state))
            if wanted <= happened:
                break
        assert {schedule.name for schedule in client.schedules.list()} >= {"shop.report", "shop.close_the_books"}
    shop.press("\x03")
    assert shop.end() == 0, shop.shown
    assert "The shop is closed" in shop.shown
    assert not list(tmp_path.iterdir())
