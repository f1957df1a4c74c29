"""Every page in a real browser, on a broker with traffic: it shows what is true, and does what it says."""

from __future__ import annotations

import base64
import re
import secrets

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.console.conftest import call
from tests.support.broker import Broker, StartBroker
from tests.support.browser import PHONE, WIDE, faults, needs_browser, opened
from tests.support.waiting import wait_until

pytestmark = needs_browser

SLOW_MS = 30_000  # The lake is read by a process that has to start first.
PAGES = (
    *(
        "",
        "queues",
        "queues/orders.failed",
        "search?all=true",
        "publish",
        "dead-letters",
        "dead-letters/orders.failed",
    ),
    *(
        "consumers",
        "schedules",
        "topics",
        "objects/customer/ada",
        "events",
        "connections",
        "cluster",
        "lake",
        "audit",
        "settings",
        "tokens",
    ),
)


def show(page: Page, broker: Broker, name: str) -> None:
    page.goto(f"{broker.url}/#/{name}")
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("main")).not_to_have_attribute("aria-busy", "true")
    expect(page.locator(".skeleton")).to_have_count(0, timeout=SLOW_MS)


def new_queue(broker: Broker, *messages: object) -> str:
    name = f"q-{secrets.token_hex(4)}"
    call(broker, "PUT", f"/v1/queues/{name}")
    for message in messages:
        call(broker, "POST", f"/v1/queues/{name}/messages", {"message": message})
    return name


@pytest.mark.parametrize(
    ("size", "dark"),
    [(WIDE, False), ((1024, 768), True), ((768, 1024), False), (PHONE, True)],
    ids=["wide", "1024-dark", "768", "phone-dark"],
)
def test_every_page_can_be_used_by_everybody(
    browser: Browser, shop: Broker, size: tuple[int, int], dark: bool
) -> None:
    with opened(browser, size, dark=dark) as page:
        found = call(shop, "GET", "/v1/search?queue=orders.failed&limit=1")["messages"]
        for name in (*PAGES, f"messages/{found[0]['id']}"):
            show(page, shop, name)
            assert faults(page) == [], name
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{name} is {wide} pixels too wide"


def test_the_overview_says_which_queues_need_a_person(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "")
        expect(page.get_by_text("Broker healthy")).to_be_visible()
        expect(page.locator(".health.soon")).to_contain_text(re.compile(r"\d+ queues? needs? you"))
        row = page.get_by_role("row").filter(has_text="orders.failed")
        expect(row).to_contain_text("4 messages · waiting for a decision")
        row.get_by_role("link", name="Look and redrive").click()
        expect(page.locator("h1")).to_have_text("orders.failed")


def test_the_overview_says_how_busy_the_disk_is_and_has_no_word_of_shards_if_there_is_one(
    browser: Browser, shop: Broker
) -> None:
    with opened(browser) as page:
        show(page, shop, "")
        new_queue(shop, "to be written")
        disk = page.locator("dl.facts")
        verdict = disk.get_by_text(re.compile(r"^\d+ % busy: (not|it)"))
        expect(verdict).to_have_attribute("title", re.compile(r"99 of 100 commits took up to [\d.]+ ms until"))
        expect(disk).not_to_contain_text("shard")
        expect(disk).to_contain_text(re.compile(r"[\d.]+ [KM]iB in 1 file"))
        expect(disk).to_contain_text(re.compile(r"Disk: [\d.]+ .iB of [\d.]+ .iB free"))


def test_a_disk_that_gets_tight_is_among_what_needs_a_person(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:

        def tighten(route: Route) -> None:
            document = route.fetch().json()
            document["disk"] |= {"warning": "the disk is full in 5 hours at the rate of the last hour"}
            document["disk"] |= {"written_per_day": 1 << 30, "measured_seconds": 780}
            document["disk"] |= {"advice": "Lower log.retention_seconds or log.retention_bytes, or make room."}
            route.fulfill(json=document)

        page.route("**/v1/stats?*", tighten)
        page.route("**/v1/stats/stream*", lambda route: route.abort())
        show(page, shop, "")
        expect(page.locator(".trouble")).to_contain_text("the disk is full in 5 hours")
        expect(page.locator(".trouble")).to_contain_text("Lower log.retention_seconds")
        expect(page.locator("dl.facts")).to_contain_text("1.0 GiB a day at the rate since start, 13 min")


def test_a_queue_that_grows_is_named_with_the_reason_in_the_overview_the_list_and_on_its_page(
    browser: Browser, start_broker: StartBroker
) -> None:
    broker = start_broker()
    for name in ("rush", "calm"):
        call(broker, "PUT", f"/v1/queues/{name}", {"lease": 600})
    call(broker, "POST", "/v1/queues/calm/messages", {"message": "alone"})
    call(broker, "GET", "/v1/queues/calm/messages")
    with opened(browser) as page:
        show(page, broker, "")
        expect(page.locator("main")).to_contain_text("None of 2 queues")
        call(broker, "POST", "/v1/queues/rush/messages", [{"message": n} for n in range(41)])
        call(broker, "GET", "/v1/queues/rush/messages")
        row = page.get_by_role("row").filter(has_text="rush")
        expect(row).to_contain_text("Growing")
        expect(row).to_contain_text("grew by 40 in the last minute: more are published")
        show(page, broker, "queues?sort=growth&order=descending")
        first = page.locator("tbody tr:not(.spacer)").first
        expect(first).to_contain_text("rush")
        expect(first).to_contain_text("Growing")
        expect(first).to_contain_text("+40")
        expect(page.get_by_role("row").filter(has_text="calm")).not_to_contain_text("Growing")
        first.get_by_role("link", name="rush").click()
        expect(page.locator(".trouble")).to_contain_text("grew by 40 in the last minute: more are published")
        expect(page.locator(".tile").filter(has_text="Ready")).to_contain_text("+40 in the last minute")


def test_figures_are_live(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    with opened(browser) as page:
        show(page, shop, f"queues?name={name}")
        row = page.get_by_role("row").filter(has_text=name)
        expect(row.locator("td").nth(1)).to_have_text("0")
        call(shop, "POST", f"/v1/queues/{name}/messages", [{"message": "x"}] * 7)
        expect(row.locator("td").nth(1)).to_have_text("7")


def test_a_page_that_is_left_asks_for_nothing_more(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "")
        with page.expect_event("requestfailed", lambda request: "/v1/stats/stream" in request.url):
            show(page, shop, "settings")


def test_queues_are_filtered_and_sorted_and_the_view_has_an_address(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "queues")
        page.get_by_label("Filter by name").fill("FAILED")
        expect(page.locator("tbody tr:not(.spacer)")).to_have_count(1)
        assert "name=FAILED" in page.url
        page.reload()
        expect(page.locator("tbody tr:not(.spacer)")).to_have_count(1)
        page.get_by_label("Filter by name").fill("")
        page.get_by_role("button", name="Ready", exact=True).click()
        expect(page.locator("th[aria-sort=descending]")).to_have_text("Ready ↓")
        page.get_by_role("button", name="Ready ↓").click()
        expect(page.locator("th[aria-sort=ascending]")).to_have_text("Ready ↑")
        page.go_back()
        page.go_back()
        expect(page.locator("th[aria-sort=ascending]")).to_have_text("Queue ↑")


def test_ten_thousand_queues_are_scrolled_in_a_window(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker()
    with broker.connect() as connection:
        for number in range(1200):
            assert connection.request("PUT", f"/v1/queues/many-{number:05}").status == 201
    with opened(browser) as page:
        show(page, broker, "queues")
        expect(page.get_by_role("link", name="many-00000")).to_be_visible()
        assert page.locator("tbody tr").count() < 100
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(page.get_by_role("link", name="many-01199")).to_be_visible()


def test_a_queue_is_created_changed_purged_and_deleted_and_each_is_asked_first(
    browser: Browser, shop: Broker
) -> None:
    name = f"made-{secrets.token_hex(3)}"
    with opened(browser) as page:
        show(page, shop, "queues")
        page.get_by_role("button", name="Create a queue").click()
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.locator("h1")).to_have_text(name)
        page.get_by_role("button", name="Edit").click()
        page.locator("[name=lease]").fill("99")
        page.get_by_role("button", name="Review").click()
        expect(page.get_by_role("dialog")).to_contain_text("lease: 30 → 99")
        page.get_by_role("button", name="Change").click()
        expect(page.locator("#notes")).to_contain_text("The settings are changed")
        assert call(shop, "GET", f"/v1/queues/{name}")["lease"] == 99
        call(shop, "POST", f"/v1/queues/{name}/messages", [{"message": "x"}] * 3)
        page.get_by_role("button", name="Purge").click()
        remove = page.get_by_role("button", name="Delete messages")
        expect(remove).to_be_disabled()
        page.get_by_label(f"Type {name} to go on").fill(name)
        remove.click()
        expect(page.locator("#notes")).to_contain_text("3 messages deleted")
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_label(f"Type {name} to go on").fill(name)
        page.get_by_role("button", name="Delete the queue").click()
        expect(page.locator("h1")).to_have_text("Queues")
        assert shop.request("GET", f"/v1/queues/{name}").status == 404


def test_a_queue_shows_who_takes_its_messages_how_long_they_waited_and_which_channels_get_copies(
    browser: Browser, shop: Broker
) -> None:
    name = new_queue(shop, *range(3))
    call(shop, "PUT", f"/v1/channels/copies-{name}", {"topics": [f"{name}.*"]})
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        expect(page.get_by_role("region", name="Consumers")).to_contain_text("Nobody has taken a message")
        call(shop, "GET", f"/v1/queues/{name}/messages?max=2&consumer=ada")
        row = page.get_by_role("region", name="Consumers").get_by_role("row").filter(has_text="ada")
        expect(row.locator("td").nth(3)).to_have_text("2")
        waits = page.locator(".chart").filter(has_text="Wait before delivery")
        expect(waits.locator("b").first).to_have_text(re.compile("s$"))
        expect(page.get_by_role("region", name="Channels")).to_contain_text(f"copies-{name}")


def test_consumers_are_measured_before_they_are_ranked_and_one_that_holds_a_message_for_long_is_marked(
    browser: Browser, shop: Broker
) -> None:
    one, other = new_queue(shop, *range(9)), new_queue(shop, *range(9))
    for name in (one, other):
        call(shop, "PATCH", f"/v1/queues/{name}", {"lease": 600})
    call(shop, "GET", f"/v1/queues/{one}/messages?consumer=tortoise-{one}")
    with opened(browser) as page:
        show(page, shop, "")
        page.get_by_role("link", name="Slowest consumers").click()
        expect(page.locator("h1")).to_have_text("Consumers")
        page.get_by_label("Filter by consumer or queue").fill(one)
        tortoise = page.get_by_role("row").filter(has_text=f"tortoise-{one}")
        expect(tortoise).to_contain_text("measuring …")
        expect(tortoise).to_contain_text(re.compile(r"[2-9]\.\d s|\d\d s"))  # It has held a message for some seconds.
        for _ in range(3):
            [taken] = call(shop, "GET", f"/v1/queues/{one}/messages?consumer=hare-{one}")
            call(shop, "POST", "/v1/confirm", {"id": taken["id"], "consumer": f"hare-{one}"})
        hare = page.get_by_role("row").filter(has_text=f"hare-{one}")
        expect(hare).to_contain_text(" ms")
        rows = page.locator("tbody tr")
        expect(rows.first).to_contain_text("hare")
        expect(tortoise).to_contain_text("slow")
        expect(tortoise).to_contain_text("measuring …")
        expect(hare).not_to_contain_text("slow")
        expect(hare).not_to_contain_text("measuring")
        page.get_by_role("button", name="Longest held").click()
        expect(rows.first).to_contain_text("tortoise")
        rows.first.get_by_role("link", name=one).click()
        page.get_by_role("link", name="Sort them, the slowest first").click()
        expect(page.locator("h1")).to_have_text("Consumers")
        expect(rows.first).to_contain_text(f"hare-{one}")


def test_markup_in_a_body_is_text(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, "<img src=x onerror=alert(1)><script>alert(2)</script>")
    with opened(browser) as page:
        page.on("dialog", lambda _: pytest.fail("a body was run"))
        show(page, shop, f"queues/{name}")
        expect(page.locator(".preview")).to_contain_text("<script>alert(2)</script>")
        page.locator("td a.id").click()
        expect(page.locator(".body pre")).to_contain_text("<script>alert(2)</script>")
        expect(page.locator("main img")).to_have_count(0)


def test_a_body_is_shown_as_a_tree_as_text_as_a_picture_and_in_hex(browser: Browser, shop: Broker) -> None:
    picture = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
    name = new_queue(shop, {"order": {"number": 17}})
    sent = {"message_base64": base64.b64encode(picture).decode(), "mimeType": "image/gif"}
    shown = call(shop, "POST", f"/v1/queues/{name}/messages", sent)["id"]
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        page.locator("td a.id").first.click()
        expect(page.locator(".tree")).to_contain_text("number: 17")
        page.get_by_role("tab", name="Text").click()
        expect(page.locator(".body pre")).to_contain_text('"number": 17')
        page.get_by_role("tab", name="Hex").click()
        expect(page.locator(".body pre")).to_contain_text("7b 0a 20 20")
        show(page, shop, f"messages/{shown}")
        expect(page.locator(".body img")).to_have_attribute("src", re.compile("^blob:"))


def test_the_life_of_a_message_is_a_timeline_and_it_can_be_given_back(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, "once")
    [taken] = call(shop, "GET", f"/v1/queues/{name}/messages?consumer=ada")
    with opened(browser) as page:
        show(page, shop, f"messages/{taken['id']}")
        expect(page.locator(".timeline")).to_contain_text("Delivered by ada")
        page.get_by_role("button", name="Extend the lease").click()
        page.get_by_role("button", name="Extend", exact=True).click()
        expect(page.locator("#notes")).to_contain_text("The lease is extended")
        page.get_by_role("button", name="Give back").click()
        page.get_by_role("dialog").get_by_role("button", name="Give back").click()
        expect(page.locator(".timeline")).to_contain_text("Given back by ada")
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.locator(".timeline")).to_contain_text("Deleted")


def test_a_message_shows_what_it_follows_from_and_what_it_led_to(browser: Browser, shop: Broker) -> None:
    name, next_queue = new_queue(shop, "order"), new_queue(shop)
    [order] = call(shop, "GET", f"/v1/queues/{name}/messages?consumer=ada")
    caused = {"message": "parcel", "headers": {"caused-by": order["id"]}}
    parcel = call(shop, "POST", f"/v1/queues/{next_queue}/messages", caused)["id"]
    call(shop, "POST", f"/v1/queues/{next_queue}/messages", {"message": "another"})
    call(shop, "POST", "/v1/confirm", {"id": order["id"]})
    [taken, *_] = call(shop, "GET", f"/v1/queues/{next_queue}/messages")
    call(shop, "POST", "/v1/confirm", {"id": taken["id"]})
    with opened(browser) as page:
        show(page, shop, f"messages/{order['id']}")
        led_to = page.get_by_role("region", name="Messages that follow from it")
        expect(led_to.locator("a.id")).to_have_text([parcel])
        led_to.locator("a.id").click()
        expect(page.locator(".facts")).to_contain_text("follows from")
        expect(page.locator("main")).to_contain_text("No message that was published while it was worked on names it")
        page.locator(".facts a.id").filter(has_text=order["id"]).click()
        expect(page.locator(".body pre")).to_have_text("order")


def test_a_page_that_takes_long_shows_at_once_that_it_loads(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, "slow")
    [found] = call(shop, "GET", f"/v1/search?queue={name}")["messages"]
    with opened(browser) as page:
        show(page, shop, "settings")
        held: list[Route] = []
        page.route("**/v1/messages/*", lambda route: held.append(route))
        with page.expect_request("**/v1/messages/*"):
            page.evaluate("id => { location.hash = `/messages/${id}`; }", found["id"])
        expect(page.locator("main h1")).to_have_text("Message")
        expect(page.locator("main .skeleton").first).to_be_visible()
        expect(page.locator("main")).to_have_attribute("aria-busy", "true")
        held[0].continue_()
        expect(page.locator(".timeline")).to_contain_text("Received and stored")
        expect(page.locator(".skeleton")).to_have_count(0)


def test_a_message_is_found_by_its_text_and_by_its_id(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, "a needle", "hay")
    with opened(browser) as page:
        show(page, shop, "search")
        page.get_by_label("Text in the body").fill("needle")
        page.get_by_label("Queue", exact=True).fill(name)
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("td a.id")).to_have_count(1)
        wanted = page.locator("td a.id").inner_text()
        page.get_by_label("Text in the body").fill(wanted)
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("h1")).to_have_text("Message")


def test_a_finished_message_is_found_by_its_text_with_what_became_of_it(browser: Browser, shop: Broker) -> None:
    name, customer = new_queue(shop), f"cust-{secrets.token_hex(4)}"
    policy = {"max_receives": 1, "dead_letter_queue": "orders.failed"}
    call(shop, "PATCH", f"/v1/queues/{name}", {"lease": 600, "redrive_policy": policy})
    for word in ("done", "failed", "deleted", "waiting"):
        call(shop, "POST", f"/v1/queues/{name}/messages", {"message": f"{customer} {word}"})
    outcomes = {"done": {}, "failed": {"outcome": "retry", "reason": "no such customer"}}
    taken = call(shop, "GET", f"/v1/queues/{name}/messages?consumer=ada&max=3")
    ids = {message["message"].split()[1]: message["id"] for message in taken}
    for word, outcome in outcomes.items():
        call(shop, "POST", "/v1/confirm", {"id": ids[word], "consumer": "ada", **outcome})
    call(shop, "POST", "/v1/confirm", {"id": ids["deleted"], "outcome": "invalid", "reason": "not a customer"})
    with opened(browser) as page:
        show(page, shop, f"search?text={customer}&queue={name}")
        found = page.get_by_role("region", name="Finished messages")
        expect(found.locator("tbody tr")).to_have_count(3)
        expect(page.locator("main")).to_contain_text(
            "3 messages. The Event Log was looked through back to its first event"
        )
        done = found.get_by_role("row").filter(has_text=f"{customer} done")
        expect(done).to_contain_text("completed")
        expect(done).to_contain_text("ada")
        expect(done).to_contain_text(re.compile(r"\d\d:\d\d:\d\d.*\d\d:\d\d:\d\d"))
        failed = found.get_by_role("row").filter(has_text=f"{customer} failed")
        expect(failed).to_contain_text("dead-lettered → orders.failed")
        expect(failed).to_contain_text("no such customer")
        expect(found.get_by_role("row").filter(has_text=f"{customer} deleted")).to_contain_text("invalid")
        expect(page.get_by_role("region", name="Messages", exact=True).locator("tbody tr")).to_have_count(1)
        done.locator("a.id").click()
        expect(page.locator("h1")).to_have_text("Message")


def test_many_finished_messages_come_a_page_at_a_time_the_newest_first(browser: Browser, shop: Broker) -> None:
    name, word = new_queue(shop), secrets.token_hex(4)
    for number in range(60):
        call(shop, "POST", f"/v1/queues/{name}/messages", {"message": f"{word} {number:02}"})
    for taken in call(shop, "GET", f"/v1/queues/{name}/messages?max=60"):
        call(shop, "POST", "/v1/confirm", {"id": taken["id"]})
    with opened(browser) as page:
        show(page, shop, f"search?text={word}")
        rows = page.get_by_role("region", name="Finished messages").locator("tbody tr")
        page.get_by_role("button", name="Look for more").click()
        expect(rows).to_have_count(60)
        assert [row.split()[-1] for row in rows.locator(".preview").all_inner_texts()] == [
            f"{number:02}" for number in reversed(range(60))
        ]


def test_a_search_of_the_event_log_can_be_stopped_and_continued(browser: Browser, shop: Broker) -> None:
    name, word = new_queue(shop), secrets.token_hex(4)
    call(shop, "POST", f"/v1/queues/{name}/messages", {"message": word})
    [taken] = call(shop, "GET", f"/v1/queues/{name}/messages")
    call(shop, "POST", "/v1/confirm", {"id": taken["id"]})
    with opened(browser) as page:
        page.route("**/v1/events?text=*", lambda route: None)  # The broker takes its time.
        show(page, shop, f"search?text={word}")
        log = page.locator("section").filter(has=page.get_by_role("heading", name="Finished messages"))
        expect(log).to_contain_text("Searching the Event Log back to")
        log.get_by_role("button", name="Stop").click()
        expect(log).to_contain_text("Looked through the Event Log back to")
        page.unroute("**/v1/events?text=*")
        log.get_by_role("button", name="Go on").click()
        expect(log.locator("td a.id")).to_have_count(1)


def test_a_search_without_a_text_says_what_was_looked_through_and_where_finished_messages_are(
    browser: Browser, shop: Broker
) -> None:
    name = new_queue(shop, "gone")
    [taken] = call(shop, "GET", f"/v1/queues/{name}/messages")
    call(shop, "POST", "/v1/confirm", {"id": taken["id"]})
    with opened(browser) as page:
        show(page, shop, f"search?queue={name}")
        expect(page.locator("main")).to_contain_text(f"No message that is in the queue {name} now matches")
        page.locator("main").get_by_role("link", name="Event Log").click()
        page.locator("td a.id").filter(has_text=taken["id"]).click()
        expect(page.locator("h1")).to_have_text("Message")


def test_events_are_chosen_by_the_text_of_their_bodies(browser: Browser, shop: Broker) -> None:
    word = secrets.token_hex(4)
    new_queue(shop, f"the {word}", "hay")
    with opened(browser) as page:
        show(page, shop, "events?state=L&since=2026-01-01T00:00:00Z")
        page.get_by_label("Text in the body").fill(word)
        page.get_by_role("button", name="Follow").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text(f"the {word}")


def test_a_search_that_takes_long_goes_on_by_itself_until_it_is_stopped(browser: Browser, shop: Broker) -> None:
    """The broker answers with an empty page and a cursor when its time is over: here, by a page that says so."""
    name = new_queue(shop, "a needle")
    with opened(browser) as page:
        empty, asked = '{"messages": [], "next": "MC4w"}', list[str]()

        def answer(route: Route) -> None:
            """Without an answer to the last one the page waits, instead of asking as fast as it can."""
            asked.append(route.request.url)
            if len(asked) <= 5:
                route.fulfill(body=empty, content_type="application/json")

        begun = "**/v1/search*"
        page.route(begun, answer)
        page.goto(f"{shop.url}/#/search?queue={name}&state=ready&text=needle")
        expect(page.locator("main")).to_contain_text("Searching …")
        expect(page.locator(".empty")).to_have_count(0)
        wait_until(lambda: page.evaluate("1") and len(asked) > 5, "it goes on by itself")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("main")).to_contain_text("No message matches so far")
        page.unroute(begun)
        page.get_by_role("button", name="Go on").click()
        expect(page.locator("td a.id")).to_have_count(1)


def test_selected_messages_are_deleted_after_a_question(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop, *range(3))
    with opened(browser) as page:
        show(page, shop, f"queues/{name}")
        for box in page.locator("tbody").get_by_role("checkbox").all()[:2]:
            box.check()
        page.get_by_role("button", name="Delete 2").click()
        expect(page.get_by_role("dialog")).to_contain_text("Delete 2 messages?")
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.locator("#notes")).to_contain_text("2 messages deleted")
        expect(page.locator("td a.id")).to_have_count(1)


def test_a_message_is_published_by_hand_and_sent_again(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    with opened(browser) as page:
        show(page, shop, f"publish?queue={name}")
        page.get_by_label("Body", exact=True).fill('{"by": "hand"}')
        page.get_by_role("button", name="Copy as …").click()
        expect(page.get_by_role("dialog")).to_contain_text(f'client.publish("{name}", {{"by": "hand"}})')
        page.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Publish").click()
        page.get_by_role("dialog").get_by_role("button", name="Publish").click()
        page.locator("#notes a").click()
        expect(page.locator(".tree")).to_contain_text('by: "hand"')
        page.get_by_role("link", name="Send again").click()
        expect(page.get_by_label("Body", exact=True)).to_have_value(re.compile('"by": "hand"'))
        page.get_by_role("button", name="Publish").click()
        page.get_by_role("dialog").get_by_role("button", name="Publish").click()
        while call(shop, "GET", f"/v1/queues/{name}")["status"]["ready"] < 2:
            page.wait_for_timeout(50)  # At most until the test's time is over.
    assert call(shop, "GET", f"/v1/queues/{name}")["status"]["ready"] == 2


def test_dead_letters_are_counted_before_they_are_moved(browser: Browser, shop: Broker) -> None:
    lost, work = new_queue(shop), new_queue(shop)
    policy = {"max_receives": 1, "dead_letter_queue": lost}
    call(shop, "PATCH", f"/v1/queues/{work}", {"lease": 0, "redrive_policy": policy})
    call(shop, "POST", f"/v1/queues/{work}/messages", [{"message": {"order": n}} for n in range(5)])
    call(shop, "GET", f"/v1/queues/{work}/messages?max=5")
    with opened(browser) as page:
        show(page, shop, f"dead-letters/{lost}")
        expect(page.get_by_role("region", name="Groups")).to_contain_text("{order}")
        page.get_by_role("button", name="Redrive …", exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text(f"Move 5 messages out of {lost}?")
        page.get_by_label("Messages a second").fill("100")
        page.get_by_role("button", name="Move 5").click()
        expect(page.locator("#notes")).to_contain_text("5 messages moved")
    assert call(shop, "GET", f"/v1/queues/{work}")["status"]["ready"] == 5


def test_dead_letters_are_grouped_by_where_they_came_from_and_a_group_is_moved_alone(
    browser: Browser, shop: Broker
) -> None:
    lost, one, other = new_queue(shop), new_queue(shop), new_queue(shop)
    policy = {"max_receives": 1, "dead_letter_queue": lost}
    for name, number in ((one, 3), (other, 2)):
        call(shop, "PATCH", f"/v1/queues/{name}", {"lease": 0, "redrive_policy": policy})
        call(shop, "POST", f"/v1/queues/{name}/messages", [{"message": "m"}] * number)
        call(shop, "GET", f"/v1/queues/{name}/messages?max=5")
    with opened(browser) as page:
        show(page, shop, f"dead-letters/{lost}?ready_since=2020-01-01T00:00:00Z")
        groups = page.get_by_role("region", name="Groups")
        expect(groups.get_by_role("row")).to_have_count(3)
        groups.get_by_role("row").filter(has_text=other).get_by_role("button", name="Redrive 2 messages").click()
        expect(page.get_by_role("dialog")).to_contain_text(f"Move 2 messages out of {lost}?")
        page.get_by_role("button", name="Move 2").click()
        expect(page.locator("#notes")).to_contain_text("2 messages moved")
        show(page, shop, f"dead-letters/{lost}?ready_until=2020-01-01T00:00:00Z")
        expect(groups).to_have_count(0)
    assert [call(shop, "GET", f"/v1/queues/{name}")["status"]["ready"] for name in (lost, one, other)] == [3, 0, 2]


def test_dead_letters_show_why_they_failed_and_those_with_one_reason_are_moved_alone(
    browser: Browser, shop: Broker
) -> None:
    lost, work = new_queue(shop), new_queue(shop)
    policy = {"max_receives": 1, "dead_letter_queue": lost}
    call(shop, "PATCH", f"/v1/queues/{work}", {"redrive_policy": policy})
    call(shop, "POST", f"/v1/queues/{work}/messages", [{"message": n} for n in range(5)])
    taken = call(shop, "GET", f"/v1/queues/{work}/messages?max=5&consumer=ada")
    reasons = [f"order {10_000 + n} is unknown" for n in range(3)] + ["HTTP 503", ""]
    for message, reason in zip(taken, reasons, strict=True):
        given = {"id": message["id"], "outcome": "retry", "consumer": "ada", "reason": reason}
        call(shop, "POST", "/v1/confirm", given)
    with opened(browser) as page:
        show(page, shop, f"messages/{taken[3]['id']}")
        expect(page.get_by_role("region", name="Deliveries")).to_contain_text("HTTP 503")
        show(page, shop, f"dead-letters/{lost}")
        groups = page.get_by_role("region", name="Groups")
        expect(groups.get_by_role("row")).to_have_count(4)
        expect(groups).to_contain_text("none reported")
        row = groups.get_by_role("row").filter(has_text="order * is unknown")
        row.get_by_role("button", name="Redrive 3 messages").click()
        expect(page.get_by_role("dialog")).to_contain_text(f"Move 3 messages out of {lost}?")
        page.get_by_role("button", name="Move 3").click()
        expect(page.locator("#notes")).to_contain_text("3 messages moved")
    assert [call(shop, "GET", f"/v1/queues/{name}")["status"]["ready"] for name in (lost, work)] == [2, 3]


def test_the_audit_shows_who_deleted_a_queue_and_what_it_was(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker("audit.enabled=true")
    name = new_queue(broker)
    call(broker, "PATCH", f"/v1/queues/{name}", {"lease": 77})
    call(broker, "DELETE", f"/v1/queues/{name}")
    with opened(browser) as page:
        show(page, broker, "audit")
        page.get_by_label("Name, person, address or code").fill(name)
        page.get_by_label("Act").fill("queue.delete")
        page.get_by_role("button", name="Show").click()
        records = page.get_by_role("region", name="Records").get_by_role("row")
        expect(records).to_have_count(2)
        expect(records.last).to_contain_text("anonymous")
        expect(records.last).to_contain_text("lease 77")


def test_a_schedule_is_paused_and_run(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "schedules")
        row = page.get_by_role("region", name="Recurring schedules").get_by_role("row").filter(has_text="nightly")
        row.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(row).to_contain_text("paused")
        row.get_by_role("button", name="Run now").click()
        page.get_by_role("dialog").get_by_role("button", name="Run now").click()
        expect(page.locator("#notes")).to_contain_text("nightly has run")
        expect(page.get_by_role("region", name="Delayed messages")).to_contain_text("report 1")


def test_topics_show_where_messages_go_and_which_endpoint_fails(browser: Browser, shop: Broker) -> None:
    call(shop, "POST", "/v1/publish", [{"topics": ["hooks.new"], "message": n} for n in range(8)])
    with opened(browser) as page:
        show(page, shop, "topics")
        expect(page.locator(".flow").filter(has_text="customer.*")).to_contain_text("mail")
        endpoint = page.locator(".flow").filter(has_text="http://127.0.0.1:9/x")
        wait_until(lambda: call(shop, "GET", "/v1/channels/hook")["push"]["failing_since"], "a push failed")
        show(page, shop, "queues")
        show(page, shop, "topics")
        expect(endpoint).to_contain_text(", since ")


def test_versions_of_an_object_are_compared(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "objects/customer/ada")
        expect(page.locator(".diff .gone")).to_contain_text("London")
        expect(page.locator(".diff .added")).to_contain_text("Paris")


def test_events_arrive_as_they_happen_and_can_be_paused(browser: Browser, shop: Broker) -> None:
    name = new_queue(shop)
    with opened(browser) as page:
        show(page, shop, f"events?queue={name}&state=L")
        call(shop, "POST", f"/v1/queues/{name}/messages", {"message": "x"})
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Continue")).to_be_visible()


def test_connections_and_settings_are_shown(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "connections")
        expect(page.get_by_role("region", name="Connections")).to_contain_text("127.0.0.1:")
        show(page, shop, "settings")
        page.get_by_label("Filter").fill("push.private")
        rows = page.get_by_role("region", name="Settings").locator("tbody tr")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("--set")
        page.get_by_role("link", name="Tokens").click()
        expect(page.get_by_text("the first one must be an administrator")).to_be_visible()


def test_the_keyboard_reaches_every_page(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "")
        page.keyboard.press("g")
        page.keyboard.press("q")
        expect(page.locator("h1")).to_have_text("Queues")
        expect(page.get_by_label("Filter by name")).to_be_visible()
        page.keyboard.press("/")
        expect(page.get_by_label("Filter by name")).to_be_focused()
        page.get_by_label("Filter by name").press("Control+k")
        page.get_by_role("dialog").get_by_role("combobox").fill("orders.fai")
        page.keyboard.press("Enter")  # Also before the broker has named a queue.
        expect(page.locator("h1")).to_have_text("orders.failed")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("find a queue, a message or a page")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_broker_with_tokens_is_asked_for_one(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=sesame")
    with opened(browser) as page:
        page.goto(broker.url)
        page.get_by_role("textbox", name="Token").fill("sesame")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_text("There are no queues yet.")).to_be_visible()
        assert page.evaluate("sessionStorage.getItem('penstock.token')") == "sesame"
        assert page.evaluate("localStorage.length") == 0


def test_a_token_is_created_rotated_changed_and_deleted(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker()
    with opened(browser) as page:
        show(page, broker, "tokens")
        tokens = page.get_by_role("region", name="Tokens")
        page.get_by_role("button", name="Create a token").click()
        page.get_by_label("Name", exact=True).fill("boss")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text("The secret of boss")
        secret = page.get_by_role("dialog").locator("pre").inner_text()
        page.get_by_role("button", name="I have copied it").click()
        expect(tokens).to_contain_text("boss")
        assert broker.request("GET", "/v1/tokens").status == 401
        assert broker.request("GET", "/v1/tokens", {"Authorization": f"Bearer {secret}"}).status == 200
        page.get_by_role("button", name="Create a token").click()
        page.get_by_label("Name", exact=True).fill("shop")
        page.get_by_label("Scopes").fill("publish:orders* read:*")
        page.get_by_role("button", name="Create", exact=True).click()
        page.get_by_role("button", name="I have copied it").click()
        row = tokens.get_by_role("row").filter(has_text="shop")
        expect(row).to_contain_text("publish:orders* read:*")
        page.get_by_role("button", name="Change shop").click()
        page.get_by_label("Scopes").fill("consume:orders")
        page.get_by_role("button", name="Change", exact=True).click()
        expect(row).to_contain_text("consume:orders")
        page.get_by_role("button", name="Rotate shop").click()
        page.get_by_role("button", name="Rotate", exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text("The secret of shop")
        page.get_by_role("button", name="I have copied it").click()
        page.get_by_role("button", name="Delete shop").click()
        page.get_by_label("Type shop to go on").fill("shop")
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(row).to_have_count(0)


def test_a_broker_that_does_not_answer_is_noticed(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker()
    with opened(browser) as page:
        show(page, broker, "")
        expect(page.locator(".connection")).to_have_text("Live")
        broker.kill()
        banner = page.locator(".banner")
        expect(banner).to_contain_text("The broker does not answer. Is it running?")
        expect(banner).to_contain_text(re.compile(r"What is shown is as of \d\d:\d\d:\d\d"))
        expect(page.locator(".health")).to_have_text("The broker does not answer. Is it running?")
        expect(page.locator(".health")).to_have_class(re.compile("bad"))
        expect(page.locator(".connection")).to_have_text("")
        page.evaluate("location.hash = '#/topics'")  # A page that was not loaded yet.
        expect(page.locator("main h1")).to_have_text("No answer")
        expect(page.locator("main")).not_to_contain_text("module")
        again = start_broker(data=broker.data, http="{}:{}".format(*broker.http))
        expect(page.locator("main h1")).to_have_text("Topics")  # By itself.
        expect(banner).to_be_empty()
        again.stop()


def test_a_console_that_only_reads_has_no_actions(browser: Browser, start_broker: StartBroker) -> None:
    broker = start_broker("console.read_only=true")
    call(broker, "PUT", "/v1/queues/work")
    call(broker, "POST", "/v1/queues/work/messages", {"message": "x"})
    with opened(browser) as page:
        show(page, broker, "queues/work")
        for name in ("Purge", "Delete", "Edit"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        expect(page.get_by_role("checkbox")).to_have_count(0)


def test_the_lake_shows_more_than_an_hour(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "lake")
        expect(page.locator("figure")).to_have_count(3, timeout=SLOW_MS)
        page.get_by_label("Queue").fill("orders")
        page.get_by_label("Queue").press("Enter")
        expect(page.locator("figcaption").filter(has_text="Messages in the queue")).to_contain_text(
            "4,095", timeout=SLOW_MS
        )
        expect(page.locator("pre").first).to_contain_text("where queue = 'orders'")
        page.get_by_label("Last").select_option("week")
        expect(page).to_have_url(re.compile("span=week"))
        show(page, shop, "lake?queue=nobody")
        expect(page.get_by_text("The lake has nothing about this time")).to_be_visible(timeout=SLOW_MS)


def test_a_broker_that_knows_no_lake_says_what_to_do(browser: Browser, start_broker: StartBroker) -> None:
    with opened(browser) as page:
        show(page, start_broker(), "lake")
        expect(page.get_by_text("start it with penstock up")).to_be_visible()


def test_workers_are_listed_with_when_they_were_heard(browser: Browser, shop: Broker) -> None:
    worker = {"queues": ["orders"], "concurrency": 4, "running": 1, "seconds": 0.001}
    call(shop, "PUT", "/v1/workers/app%40host:7", worker)
    with opened(browser) as page:
        show(page, shop, "connections")
        row = page.get_by_role("region", name="Workers").get_by_role("row").filter(has_text="app@host:7")
        expect(row).to_contain_text("missing")
        expect(row).to_contain_text("1 of 4")


def test_the_cluster_of_one_process_says_what_the_page_is_for(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        show(page, shop, "cluster")
        expect(page.get_by_text("One process serves everything, in one shard.")).to_be_visible()


def test_a_link_on_another_site_opens_the_page_it_names(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        page.route(
            "http://elsewhere.example/",
            lambda route: route.fulfill(body=f"<a href='{shop.url}/#/topics'>go</a>", content_type="text/html"),
        )
        page.goto("http://elsewhere.example/")
        page.get_by_role("link").click()
        expect(page.locator("h1")).to_have_text("Topics")


def test_the_first_paint_comes_soon(browser: Browser, shop: Broker) -> None:
    with opened(browser) as page:
        page.goto(shop.url)
        expect(page.locator("h1")).to_be_visible()
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert painted < 1500  # Loopback takes about 100 ms on a quiet machine.
