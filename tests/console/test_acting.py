"""What an operator does where the trouble is: choose messages, see what will happen, and do it; at any width."""

from __future__ import annotations

import re
import secrets

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.conftest import call
from tests.console.test_changes import failed_in
from tests.console.test_pages import new_queue, show
from tests.support.broker import Broker, StartBroker
from tests.support.browser import needs_browser, opened

pytestmark = needs_browser

LONG = "customer." + "very-long-segment-of-a-name." * 5 + "legal"
WIDTHS = {1440: 900, 1024: 768, 768: 1024, 390: 844}


def ready(broker: Broker, queue: str) -> int:
    count: int = call(broker, "GET", f"/v1/queues/{queue}")["status"]["ready"]
    return count


def dead_letters(broker: Broker, number: int) -> tuple[str, str]:
    """A queue, and the one where as many messages are that have failed in it."""
    work, lost = new_queue(broker), new_queue(broker)
    call(broker, "PATCH", f"/v1/queues/{work}", {"redrive_policy": {"max_receives": 1, "dead_letter_queue": lost}})
    call(broker, "POST", f"/v1/queues/{work}/messages", [{"message": f"m{n:02}"} for n in range(number)])
    for taken in call(broker, "GET", f"/v1/queues/{work}/messages?max={number}&consumer=ada"):
        given = {"id": taken["id"], "outcome": "retry", "consumer": "ada", "reason": f"HTTP 50{taken['message'][-1]}"}
        call(broker, "POST", "/v1/confirm", given)
    return work, lost


def test_one_dead_letter_is_sent_back_from_its_page(browser: Browser, shop: Broker) -> None:
    work, lost = new_queue(shop), new_queue(shop)
    failed = failed_in(shop, work, lost, "no route")
    failed_in(shop, work, lost, "no route")
    with opened(browser) as page:
        show(page, shop, f"messages/{failed}")
        page.get_by_role("button", name="Redrive …").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"Move 1 message out of {lost}?")
        dialog.get_by_text("Copy as …").click()
        expect(dialog.locator("pre").first).to_contain_text(f"penstock queues redrive {lost} --filter=id=0")
        page.get_by_role("button", name="Move 1").click()
        expect(page.locator("#notes")).to_contain_text(f"1 message moved to {work}")
        expect(page.get_by_role("button", name="Move …")).to_be_visible()  # It is no dead letter any more.
    assert (ready(shop, work), ready(shop, lost)) == (1, 1)


def test_what_is_chosen_has_its_actions_in_sight(browser: Browser, shop: Broker) -> None:
    work, lost = dead_letters(shop, 60)
    with opened(browser) as page:
        show(page, shop, f"dead-letters/{lost}")
        rows = page.get_by_role("region", name="Messages").locator("tbody")
        rows.get_by_role("checkbox").nth(0).check()
        bar = page.locator(".chosen")
        expect(bar).to_contain_text("1 message chosen")
        expect(bar.get_by_role("button", name="Redrive …")).to_be_in_viewport(ratio=1)
        expect(bar.get_by_role("button", name="Delete 1 …")).to_be_in_viewport(ratio=1)
        rows.get_by_role("checkbox").nth(1).check()
        bar.get_by_role("button", name="Redrive …").click()
        expect(page.get_by_role("dialog").locator(".previews")).to_have_text("m00m01")
        page.get_by_role("button", name="Move 2").click()
        expect(page.locator("#notes")).to_contain_text("2 messages moved")
        expect(bar).to_be_hidden()
        assert (ready(shop, work), ready(shop, lost)) == (2, 58)
        page.get_by_label("Choose all that are shown").check()
        expect(bar).to_contain_text("50 messages chosen")
        bar.get_by_role("button", name=re.compile("Choose all that match")).click()
        expect(bar).to_contain_text("All that match")
        bar.get_by_role("button", name="Redrive …").click()
        page.get_by_role("button", name="Move 58").click()
        expect(page.locator("#notes")).to_contain_text("58 messages moved")
    assert (ready(shop, work), ready(shop, lost)) == (60, 0)


def test_chosen_messages_are_deleted_and_those_that_a_consumer_holds_are_counted(
    browser: Browser, shop: Broker
) -> None:
    name = new_queue(shop, *range(4))
    call(shop, "GET", f"/v1/queues/{name}/messages?consumer=ada")
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        page.get_by_label("Choose all that are shown").check()
        page.get_by_role("button", name="Delete 4 …").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Delete 4 messages?")
        dialog.get_by_text("Copy as …").click()
        expect(dialog.locator("pre").first).to_contain_text("penstock message delete --yes 0")
        dialog.get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator("#notes")).to_contain_text("3 messages deleted; 1 not")
    assert call(shop, "GET", f"/v1/queues/{name}")["status"]["messages"] == 1


def test_all_that_match_are_deleted_only_if_the_queue_is_typed(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    call(
        shop,
        "POST",
        f"/v1/queues/{name}/messages",
        [{"message": f"{'old' if n < 70 else 'new'} {n}"} for n in range(80)],
    )
    with opened(browser) as page:
        show(page, shop, f"search?queue={name}&text=old")
        page.get_by_label("Choose all that are shown").check()
        page.get_by_role("button", name="Choose all that match").click()
        page.get_by_role("button", name="Delete …").click()
        page.get_by_label(f"Type {name} to go on").fill(name)
        page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator("#notes")).to_contain_text("70 messages deleted")
    assert ready(shop, name) == 10


def test_a_message_is_moved_from_any_queue(browser: Browser, shop: Broker) -> None:
    name, target = new_queue(shop, "stray"), new_queue(shop)
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        page.get_by_role("region", name="Messages").locator("tbody").get_by_role("checkbox").check()
        page.get_by_role("button", name="Move …").click()
        page.get_by_role("textbox", name="To").fill(target)
        page.get_by_role("button", name="Move 1").click()
        expect(page.locator("#notes")).to_contain_text(f"1 message moved to {target}")
    assert (ready(shop, name), ready(shop, target)) == (0, 1)


def test_a_dialog_goes_with_its_page(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, "precious")
    with opened(browser) as page:
        show(page, shop, "queues")
        show(page, shop, f"queues/{name}")
        page.get_by_role("button", name="Edit").click()
        page.locator("[name=lease]").fill("99")
        page.get_by_role("button", name="Review").click()
        expect(page.get_by_role("dialog")).to_contain_text("Change this setting")
        page.go_back()
        expect(page.locator("h1")).to_have_text("Queues")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.go_forward()
        page.get_by_role("button", name="Purge").click()
        page.get_by_role("dialog").get_by_text("Copy as …").click()
        expect(page.get_by_role("dialog").locator("pre").first).to_contain_text(f"penstock queues purge {name} --yes")
        page.go_back()
        expect(page.locator("h1")).to_have_text("Queues")
        expect(page.get_by_role("dialog")).to_have_count(0)
    assert ready(shop, name) == 1


def test_the_palette_goes_to_the_queue_that_was_typed_and_one_escape_closes_it(
    browser: Browser, shop: Broker
) -> None:
    name = new_queue(shop)
    call(shop, "PUT", f"/v1/queues/a-{name}")
    with opened(browser) as page:
        show(page, shop, "settings")
        page.keyboard.press("Control+k")
        page.get_by_role("dialog").get_by_role("combobox").fill(name)
        places = page.get_by_role("dialog").get_by_role("option")
        expect(places).to_have_text([f"{name}queue", f"a-{name}queue", f"Search messages for “{name}”action"])
        expect(places.first).to_have_attribute("aria-selected", "true")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("Control+k")
        page.get_by_role("dialog").get_by_role("combobox").fill(name)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(name)


def sizes(page: Page, table: str) -> tuple[list[str], float]:
    """The columns of a table that are out of sight, and the height of its highest row."""
    region = page.get_by_role("region", name=table)
    hidden = region.evaluate(
        """box => [...box.querySelectorAll('th')].filter(each => each.offsetWidth).filter(
             each => each.getBoundingClientRect().right > box.getBoundingClientRect().right + 1
           ).map(each => each.textContent)"""
    )
    return hidden, region.evaluate(
        "box => Math.max(...[...box.querySelectorAll('tr')].map(each => each.offsetHeight))"
    )


def test_the_longest_name_leaves_room_for_everything_else(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker("audit.enabled=true")
    call(broker, "PUT", f"/v1/queues/{LONG}")
    call(broker, "POST", f"/v1/queues/{LONG}/messages", [{"message": "m"}] * 30)
    with opened(browser, (1440, 900)) as page:
        show(page, broker, "")
        expect(page.get_by_role("region", name="Queues that need you")).to_contain_text(LONG)
        hidden, highest = sizes(page, "Queues that need you")
        assert (hidden, highest < 80) == ([], True)
        expect(page.get_by_role("link", name=LONG)).to_have_attribute("title", LONG)
        show(page, broker, "queues")
        assert sizes(page, "Queues")[0] == []
        show(page, broker, "audit")
        expect(page.get_by_role("region", name="Records")).to_contain_text(LONG)
        hidden, highest = sizes(page, "Records")
        assert (hidden, highest < 80) == ([], True)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_that_acts_is_out_of_sight_at_any_width(browser: Browser, shop: Broker, width: int) -> None:
    with opened(browser, (width, WIDTHS[width])) as page:
        for address, table in (("schedules", "Recurring schedules"), ("dead-letters/orders.failed", "Groups")):
            show(page, shop, address)
            rows = page.get_by_role("region", name=table).locator("tbody tr")
            for button in rows.first.get_by_role("button").all():
                button.scroll_into_view_if_needed()
                expect(button).to_be_in_viewport(ratio=1)
                box = button.bounding_box()
                assert box
                assert box["x"] + box["width"] <= width
        show(page, shop, "queues?name=orders")
        assert sizes(page, "Queues")[0] == []
        badge = page.get_by_role("row").filter(has_text="orders.failed").locator(".badge.bad")
        expect(badge).to_be_visible()


def test_all_pages_are_behind_a_button_on_a_phone(browser: Browser, shop: Broker) -> None:
    with opened(browser, (390, 844)) as page:
        show(page, shop, "")
        menu = page.get_by_role("button", name="Pages")
        expect(page.get_by_role("link", name="Settings")).to_be_hidden()
        menu.click()
        expect(menu).to_have_attribute("aria-expanded", "true")
        expect(page.get_by_role("navigation").get_by_role("heading")).to_have_text(["Work", "Messages", "Broker"])
        page.keyboard.press("Escape")
        expect(page.get_by_role("link", name="Settings")).to_be_hidden()
        menu.click()
        page.get_by_role("link", name="Settings").click()
        expect(page.locator("h1")).to_have_text("Settings")
        expect(page.get_by_role("link", name="Audit")).to_be_hidden()


def test_the_theme_is_chosen_and_kept(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "settings")
        back = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(back)
        page.get_by_label("Theme").select_option("dark")
        dark = page.evaluate(back)
        page.reload()
        expect(page.locator("h1")).to_have_text("Settings")
        assert page.evaluate(back) == dark != light
        page.get_by_label("Theme").select_option("auto")
        assert (page.evaluate(back), page.evaluate("localStorage.length")) == (light, 0)


def test_a_wrong_token_is_called_wrong(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=sesame")
    with opened(browser) as page:
        page.goto(broker.url)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("This broker needs a token")
        page.get_by_role("textbox", name="Token").fill("mistyped")
        page.get_by_role("button", name="Use it").click()
        expect(dialog.get_by_role("alert").first).to_contain_text("The token of this tab was refused")
        page.get_by_role("textbox", name="Token").fill("sesame")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_text("There are no queues yet.")).to_be_visible()


def test_every_delivery_says_when_it_ended_how_long_it_took_and_what_became_of_the_message(
    browser: Browser, shop: Broker
) -> None:
    work, lost = new_queue(shop), new_queue(shop)
    failed = failed_in(shop, work, lost, "no route")
    with opened(browser) as page:
        show(page, shop, f"messages/{failed}")
        rows = page.get_by_role("region", name="Deliveries").locator("tbody tr")
        expect(rows).to_have_count(2)
        for row in rows.all():
            cells = row.locator("td").all_inner_texts()
            assert re.fullmatch(r"\d\d:\d\d:\d\d", cells[3]), cells
            assert re.fullmatch(r"[\d.]+ (ms|s)", cells[4]), cells
        expect(rows.first.locator("td").nth(5)).to_contain_text("to be repeated")
        expect(rows.last.locator("td").nth(5)).to_contain_text(f"dead letter → {lost}")


def test_an_effect_that_its_parent_has_ended_runs_no_more_and_one_that_fails_stops_no_other(
    browser: Browser, shop: Broker
) -> None:
    with opened(browser) as page:
        show(page, shop, "settings")
        runs, seen = page.evaluate(
            """async () => {
              const { effect, signal } = await import("/console/lib/reactive.js");
              const source = signal(0);
              let children = 0;
              effect(() => { source(); effect(() => { source(); children += 1; }); });
              const runs = [];
              for (let n = 1; n < 4; n += 1) {
                children = 0;
                source.set(n);
                await Promise.resolve();
                runs.push(children);
              }
              const other = signal(0), seen = [];
              addEventListener("error", (event) => event.preventDefault(), { once: true });
              effect(() => { if (other()) throw new Error("wanted"); });
              effect(() => seen.push(other()));
              other.set(1);
              await Promise.resolve();
              return [runs, seen];
            }"""
        )
        assert (runs, seen) == ([1, 1, 1], [0, 1])


def test_an_address_that_is_no_page_says_so(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        page.goto(f"{shop.url}/#/queus/orders")
        expect(page.get_by_role("alert").filter(has_text="Not found")).to_contain_text("no page “queus/orders”")
        expect(page.locator("#nav [aria-current]")).to_have_count(0)


def test_a_body_that_only_begins_like_json_is_questioned(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    with opened(browser) as page:
        show(page, shop, f"publish?queue={name}")
        page.locator("[name=message]").fill('{"broken":')
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text("The body looks like JSON, but is not")
        page.get_by_role("button", name="Correct it").click()
        page.locator("[name=message]").fill('{"broken": false}')
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(page.get_by_role("dialog")).not_to_contain_text("looks like JSON")
        page.get_by_role("dialog").get_by_role("button", name="Publish").click()
        expect(page.locator("#notes")).to_contain_text("Published")
    [sent] = call(shop, "GET", f"/v1/search?queue={name}")["messages"]
    assert sent["message"] == {"broken": False}


def test_two_lines_of_a_chart_can_be_told_apart_and_its_axis_has_three_times(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "")
        chart = page.locator(".chart").filter(has_text="Messages a second").first
        strokes = [
            chart.locator(f".line.{kind}").evaluate("each => getComputedStyle(each).stroke")
            for kind in ("one", "two")
        ]
        assert strokes[0] != strokes[1]
        assert chart.locator(".line.two").evaluate("each => getComputedStyle(each).strokeDasharray") != "none"
        expect(chart.locator(".axis span")).to_have_count(3)


def test_what_to_do_about_a_disk_that_fills_depends_on_what_fills_it(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        marker = secrets.token_hex(4)

        def fill(route: object) -> None:
            document = route.fetch().json()  # type: ignore[attr-defined]
            document["disk"] |= {"warning": "other files fill the disk", "advice": f"Find them: {marker}."}
            route.fulfill(json=document)  # type: ignore[attr-defined]

        page.route("**/v1/stats?*", fill)
        page.route("**/v1/stats/stream*", lambda route: route.abort())
        show(page, shop, "")
        expect(page.locator(".trouble")).to_contain_text(marker)
        expect(page.locator(".trouble")).not_to_contain_text("retention")


def test_a_schedule_is_created_and_changed_and_each_can_be_copied(browser: Browser, shop: Broker) -> None:
    name, queue = f"plan-{secrets.token_hex(4)}", new_queue(shop)
    with opened(browser) as page:
        show(page, shop, "schedules")
        page.get_by_role("button", name="Create a schedule").click()
        dialog = page.get_by_role("dialog")
        dialog.locator("input").first.fill(name)
        create = dialog.get_by_role("button", name="Create", exact=True)
        create.click()  # It does not say when.
        expect(dialog.locator("[name=cron]")).to_be_focused()
        dialog.locator("[name=cron]").fill("30 2 * * mon-fri")
        dialog.locator("[name=time_zone]").fill("Europe/Berlin")
        create.click()  # Nor where to.
        expect(dialog.locator("[name=queue]")).to_be_focused()
        dialog.locator("[name=queue]").fill(queue)
        dialog.locator("[name=message]").fill('{"report":')
        create.click()
        expect(dialog.locator("[name=message]")).to_be_focused()
        dialog.locator("[name=message]").fill('{"report": "sales"}')
        dialog.get_by_text("Copy as …").click()
        expect(dialog.locator("pre").first).to_contain_text(f"penstock schedules create {name}")
        create.click()
        expect(page.locator("#notes")).to_contain_text(f"{name} is created")
        made = call(shop, "GET", f"/v1/schedules/{name}")
        assert (made["cron"], made["time_zone"], made["queue"]) == ("30 2 * * mon-fri", "Europe/Berlin", queue)
        assert made["message"] == {"report": "sales"}
        row = page.get_by_role("region", name="Recurring schedules").get_by_role("row").filter(has_text=name)
        row.get_by_role("button", name="Change").click()
        expect(dialog.locator("[name=message]")).to_have_value(re.compile('"report": "sales"'))
        dialog.locator("[name=cron]").fill("")
        dialog.locator("[name=every]").fill("600")
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(row).to_contain_text("every 10 min")
    changed = call(shop, "GET", f"/v1/schedules/{name}")
    assert (changed["every"], changed["queue"], changed["message"]) == (600, queue, {"report": "sales"})
    call(shop, "DELETE", f"/v1/schedules/{name}")


def test_a_token_is_told_who_it_is_and_offered_only_what_it_may_see(
    browser: Browser, start_broker: StartBroker
) -> None:
    broker = start_broker("auth.tokens=sesame")
    asked = {"Authorization": "Bearer sesame"}
    made = broker.request("PUT", "/v1/tokens/shop", asked, b'{"scopes": ["read:orders*"]}').json()
    with opened(browser) as page:
        page.goto(broker.url)
        page.get_by_role("textbox", name="Token").fill(made["token"])
        page.get_by_role("button", name="Use it").click()
        links = page.locator("#nav a")
        expect(links.filter(has_text="Search")).to_be_visible()
        expect(links.filter(has_text="Settings")).to_have_count(0)
        for name in ("Publish", "Cluster", "Audit"):
            expect(links.filter(has_text=name)).to_have_count(0)
        page.get_by_role("button", name="shop").click()
        expect(page.get_by_role("dialog")).to_contain_text("shop, by a token. It allows:read:orders*")
        page.get_by_role("button", name="Close").click()
        page.goto(f"{broker.url}/#/settings")
        expect(page.locator("main h1")).to_have_text("Your token does not allow this")
        page.get_by_role("button", name="shop").click()
        page.get_by_role("button", name="Forget this token").click()
        page.get_by_role("textbox", name="Token").fill("sesame")
        page.get_by_role("button", name="Use it").click()
        expect(links.filter(has_text="Settings")).to_be_visible()
