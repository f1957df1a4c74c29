"""What an operator changes: forms show what is allowed, say what will happen, and lose no input."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from tests.console.conftest import call
from tests.console.test_pages import new_queue, show
from tests.support.broker import Broker, StartBroker
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
        expect(dialog).to_contain_text("If max_attempts is set too, the lower number counts")
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
        page.locator("[name=lease]").fill("-1")
        page.get_by_role("button", name="Review").click()
        expect(page.locator("[name=lease]")).to_be_focused()


def failed_in(broker: Broker, work: str, lost: str, reason: str) -> str:
    """The id of a message that has failed in a queue after two deliveries."""
    policy = {"max_receives": 2, "dead_letter_queue": lost}
    call(broker, "PATCH", f"/v1/queues/{work}", {"redrive_policy": policy})
    identifier: str = call(broker, "POST", f"/v1/queues/{work}/messages", {"message": "m"})["id"]
    for _ in range(2):
        call(broker, "GET", f"/v1/queues/{work}/messages?consumer=ada")
        given = {"id": identifier, "outcome": "retry", "consumer": "ada", "reason": reason}
        call(broker, "POST", "/v1/confirm", given)
    return identifier


def test_a_redrive_names_its_target_warns_if_nobody_consumes_it_and_leads_there(
    browser: Browser, shop: Broker
) -> None:
    work, lost, quiet = new_queue(shop), new_queue(shop), new_queue(shop)
    failed_in(shop, work, lost, "no route")
    with opened(browser) as page:
        show(page, shop, f"dead-letters/{lost}")
        page.get_by_role("button", name="Redrive …", exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("textbox", name="To")).to_have_value(work)
        dialog.get_by_role("textbox", name="To").fill(quiet)
        dialog.get_by_role("textbox", name="To").blur()
        expect(dialog).to_contain_text(f"{quiet}: nobody consumes it now")
        dialog.get_by_role("textbox", name="To").fill("nowhere")
        dialog.get_by_role("textbox", name="To").blur()
        expect(dialog).to_contain_text("nowhere: there is no such queue")
        dialog.get_by_role("textbox", name="To").fill(work)
        page.get_by_role("button", name="Move 1").click()
        expect(page.locator("#notes")).to_contain_text(f"1 message moved to {work}")
        page.locator("#notes").get_by_role("link", name=work).click()
        expect(page.locator("h1")).to_have_text(work)
    assert call(shop, "GET", f"/v1/queues/{work}")["status"]["ready"] == 1


def test_a_dead_letter_says_where_it_is_where_it_came_from_and_why(browser: Browser, shop: Broker) -> None:
    work, lost = new_queue(shop), new_queue(shop)
    failed = failed_in(shop, work, lost, "no route")
    with opened(browser) as page:
        show(page, shop, f"dead-letters/{lost}")
        row = page.get_by_role("region", name="Messages").get_by_role("row").last
        expect(row).to_contain_text("no route")
        expect(row.get_by_text("no route")).to_be_in_viewport(ratio=1)
        expect(row.locator("td").last).to_have_text("2")
        row.get_by_role("link").click()
        expect(page.locator("main")).to_contain_text(
            f"Now in {lost}, came from {work}, 2 deliveries, reason: no route"
        )
        expect(page.locator(".heading .badge")).to_have_text("dead letter")
        call(shop, "GET", f"/v1/queues/{lost}/messages")
        call(shop, "POST", "/v1/confirm", {"id": failed})
        page.reload()
        expect(page.locator(".heading .badge")).to_have_text("completed")


def test_a_message_that_was_deleted_is_not_called_completed(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, "unwanted")
    [found] = call(shop, "GET", f"/v1/search?queue={name}")["messages"]
    call(shop, "DELETE", f"/v1/messages/{found['id']}")
    with opened(browser) as page:
        show(page, shop, f"messages/{found['id']}")
        expect(page.locator(".heading .badge")).to_have_text("deleted")


def test_a_schedule_shows_whether_its_last_run_worked_and_counts_down(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    call(shop, "PUT", f"/v1/schedules/{name}", {"every": 3000, "queue": name, "message": "tick"})
    with opened(browser) as page:
        show(page, shop, "schedules")
        table = page.get_by_role("region", name="Recurring schedules")
        row = table.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text("never yet")
        expect(row.get_by_role("button", name="Delete")).to_be_in_viewport(ratio=1)
        call(shop, "POST", f"/v1/schedules/{name}/run")  # The page finds out by itself.
        expect(row.locator("td").nth(4)).to_contain_text("ready")
        [taken] = call(shop, "GET", f"/v1/queues/{name}/messages")
        call(shop, "POST", "/v1/confirm", {"id": taken["id"]})
        last = row.get_by_role("link", name="completed in")
        expect(last).to_contain_text(re.compile(r"^\d\d:\d\d:\d\d completed in [\d.]+ (ms|s)$"))
        call(shop, "PATCH", f"/v1/schedules/{name}", {"every": 20})
        expect(row.locator("td").nth(3)).to_have_text(re.compile(r"^in ([1-9]\.0|1\d) s$"))
        last.click()
        expect(page.locator(".heading .badge")).to_have_text("completed")
    call(shop, "DELETE", f"/v1/schedules/{name}")


def test_a_table_shows_as_much_of_a_body_as_fits(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, "a body of sixty letters that has its last word at the end.")
    with opened(browser, (1600, 800)) as page:
        show(page, shop, f"queues/{name}")
        cut = page.locator("td .preview").evaluate("each => each.scrollWidth - each.clientWidth")
        assert cut <= 0


def test_events_are_chosen_and_named_in_words(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    with opened(browser) as page:
        show(page, shop, f"events?queue={name}")
        page.get_by_label("Delivered").check()
        page.get_by_label("Completed").check()
        with page.expect_response("**/v1/events*state=FX*"):
            page.get_by_role("button", name="Follow").click()
        call(shop, "POST", f"/v1/queues/{name}/messages", {"message": "x"})
        [taken] = call(shop, "GET", f"/v1/queues/{name}/messages")
        call(shop, "POST", "/v1/confirm", {"id": taken["id"]})
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.last).to_contain_text("Delivered")
        expect(rows.first.locator(".letter")).to_have_attribute("title", "Completed")
        expect(page.get_by_label("Completed")).to_be_checked()
        expect(page.get_by_label("Received")).not_to_be_checked()


def test_times_have_a_zone_and_utc_and_words_have_a_meaning(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, "dated")
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        expect(page.locator("#nav")).to_contain_text(re.compile(r"Times in \S+"))
        expect(page.locator("td time")).to_have_attribute(
            "title", re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
        )
        expect(page.locator(".tile").filter(has_text="Kept")).to_have_attribute("title", re.compile("keep = all"))
        headings = page.locator("main h2").all_inner_texts()
        assert headings.index("Consumers") < headings.index("Messages")


def test_charts_shade_what_was_not_measured(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, f"queues/{new_queue(shop)}")
        waits = page.locator(".chart").filter(has_text="Wait before delivery")
        expect(waits.locator(".unmeasured")).to_have_attribute("d", re.compile("^M0.0 0H"))
        expect(waits).to_contain_text("shaded: not measured")


def test_an_audit_without_names_says_why(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker("audit.enabled=true")
    new_queue(broker)
    with opened(browser) as page:
        show(page, broker, "audit")
        expect(page.locator("main")).to_contain_text("Nobody is named, because these acts came without a token")


def test_the_first_messages_of_a_queue_are_shown_with_how_many_there_are(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    call(shop, "POST", f"/v1/queues/{name}/messages", [{"message": n} for n in range(60)])
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        expect(page.locator("main")).to_contain_text(re.compile("50 messages of 60"))
