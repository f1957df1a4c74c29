"""The console of a broker with several shards shows what one with a single shard does, and what is between them."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.console.conftest import call
from tests.console.test_pages import show
from tests.support.broker import StartBroker
from tests.support.browser import needs_browser, opened

pytestmark = needs_browser


def test_dead_letters_of_other_shards_are_shown_as_those_of_one_and_the_overview_shows_what_is_between(
    browser: Browser, start_broker: StartBroker
) -> None:
    sharded = start_broker(flags=("--workers", "1", "--shards", "4"))
    call(sharded, "PUT", "/v1/queues/lost")
    for name in ("one", "two", "three"):
        policy = {"max_receives": 1, "dead_letter_queue": "lost"}
        call(sharded, "PUT", f"/v1/queues/{name}", {"visibility_timeout": 0, "redrive_policy": policy})
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
