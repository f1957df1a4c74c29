"""The console of a broker with several shards shows what one with a single shard does, and what is between them."""

from __future__ import annotations

import os
import signal

import pytest
from playwright.sync_api import Browser, expect

from tests.console.conftest import call
from tests.console.test_pages import show
from tests.support.broker import Broker, StartBroker, workers_of
from tests.support.browser import PHONE, WIDE, faults, needs_browser, opened

pytestmark = needs_browser


def test_dead_letters_of_other_shards_are_shown_as_those_of_one_and_the_overview_shows_what_is_between(
    browser: Browser, start_broker: StartBroker
) -> None:
    sharded = start_broker(flags=("--workers", "1", "--shards", "4"))
    call(sharded, "PUT", "/v1/queues/lost")
    for name in ("one", "two", "three"):
        policy = {"max_receives": 1, "dead_letter_queue": "lost"}
        call(sharded, "PUT", f"/v1/queues/{name}", {"lease": 0, "redrive_policy": policy})
        call(sharded, "POST", f"/v1/queues/{name}/messages", {"message": name})
        call(sharded, "GET", f"/v1/queues/{name}/messages")
        call(sharded, "PUT", f"/v1/queues/held-{name}")
        call(sharded, "POST", f"/v1/queues/held-{name}/messages", {"message": name})
        call(sharded, "GET", f"/v1/queues/held-{name}/messages?consumer=worker-{name}")
    with opened(browser) as page:
        show(page, sharded, "consumers?name=worker-")
        expect(page.locator("tbody tr")).to_have_count(3)
        show(page, sharded, "")
        row = page.get_by_role("row").filter(has_text="lost")
        expect(row).to_contain_text("3 messages · waiting for a decision")
        expect(page.locator("dl.facts")).to_contain_text("No message waits to be taken to another shard.")
        row.get_by_role("link", name="Look and redrive").click()
        groups = page.get_by_role("region", name="Groups")
        for name in ("one", "two", "three"):
            expect(groups.get_by_role("row").filter(has=page.get_by_role("link", name=name))).to_have_count(1)


def kill(broker: Broker, worker: int) -> None:
    """For good: the supervisor stands still until it is told to go on."""
    os.kill(broker.pid, signal.SIGSTOP)
    os.kill(workers_of(broker)[worker], signal.SIGKILL)


def test_the_cluster_shows_who_has_which_shard_and_why_one_cannot_be_reached(
    browser: Browser, start_broker: StartBroker
) -> None:
    broker = start_broker(flags=("--workers", "2", "--shards", "4"))
    with opened(browser) as page:
        show(page, broker, "")
        page.keyboard.press("Control+k")
        page.get_by_role("dialog").get_by_role("combobox").fill("cluster")
        page.keyboard.press("Enter")
        expect(page.get_by_text("2 workers, 4 shards")).to_be_visible()
        members = page.get_by_role("region", name="Members")
        expect(members.locator("tbody tr")).to_have_count(2)
        expect(members.get_by_text("answers here")).to_have_count(1)
        expect(page.get_by_role("list", name="Shards of 1").get_by_role("listitem")).to_have_text(["1", "3"])
        expect(page.get_by_text("No message waits to be taken to another shard.")).to_be_visible()
        expect(page.locator(".problem")).to_have_count(0)
        try:
            kill(broker, 1)
            expect(page.locator(".problem h2")).to_have_text("Shards 1, 3 cannot be reached")
            expect(page.locator(".problem")).to_contain_text("Worker 1 is gone or starting")
            expect(members.get_by_role("row").filter(has_text="no link")).to_contain_text("gone")
            expect(page.get_by_text("Not known now")).to_be_visible()
            assert faults(page) == []
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        expect(page.locator(".problem")).to_have_count(0)


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, False), (WIDE, True), (PHONE, False)], ids=["light", "dark", "phone"]
)
def test_the_cluster_can_be_used_by_everybody(
    browser: Browser, start_broker: StartBroker, size: tuple[int, int], dark: bool
) -> None:
    broker = start_broker(flags=("--workers", "2", "--shards", "16"))
    with opened(browser, size, dark=dark) as page:
        show(page, broker, "cluster")
        expect(page.get_by_text("2 workers, 16 shards")).to_be_visible()
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
