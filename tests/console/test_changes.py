"""What an operator changes: forms show what is allowed, say what will happen, and lose no input."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.console.conftest import call
from tests.console.test_pages import new_queue, show
from tests.support.broker import Broker
from tests.support.browser import needs_browser, opened

pytestmark = needs_browser


def test_a_redrive_policy_is_two_fields_and_its_queue_can_be_created_with_it(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    lost = f"{name}.lost"
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        page.get_by_role("button", name="Edit").click()
        dialog = page.get_by_role("dialog")
        review = dialog.get_by_role("button", name="Review")
        expect(review).to_be_in_viewport(ratio=1)
        expect(dialog).not_to_contain_text("`")
        expect(dialog).to_contain_text("If retries is set too, the lower number counts")
        page.get_by_label("Give up after").fill("5")
        review.click()  # It does not say to which queue.
        expect(page.get_by_label("and move to")).to_be_focused()
        page.get_by_label("and move to").fill(lost)
        review.click()  # There is no such queue.
        expect(page.get_by_label("and move to")).to_be_focused()
        page.get_by_label(f"Create {lost}").check()
        page.get_by_label("message_deduplication").check()
        page.get_by_label("retry_backoff").select_option("linear")
        review.click()
        expect(dialog).to_contain_text(f"redrive_policy: none → {lost} after 5 deliveries")
        expect(dialog).to_contain_text(f"The queue {lost} is created first")
        dialog.get_by_role("button", name="Change").click()
        changed = page.locator("dd.changed")
        expect(changed).to_have_count(3)
        expect(changed.first).to_contain_text(f"{lost} after 5 deliveries")
        expect(changed.first).to_be_in_viewport()
    settings = call(shop, "GET", f"/v1/queues/{name}")
    assert settings["redrive_policy"] == {"max_receives": 5, "dead_letter_queue": lost}
    assert (settings["message_deduplication"], settings["retry_backoff"]) == (True, "linear")


def test_settings_that_the_broker_refuses_stay_in_the_form(browser: Browser, shop: Broker) -> None:
    name, lost = new_queue(shop), new_queue(shop)
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Give up after").fill("7")
        page.get_by_label("and move to").fill(lost)
        page.get_by_role("button", name="Review").click()
        call(shop, "DELETE", f"/v1/queues/{lost}")
        page.get_by_role("button", name="Change").click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(f"does not exist: {lost}")
        page.get_by_role("button", name="Back").click()
        expect(page.get_by_label("Give up after")).to_have_value("7")
        page.get_by_label("visibility_timeout").fill("-1")
        page.get_by_role("button", name="Review").click()
        expect(page.get_by_label("visibility_timeout")).to_be_focused()
