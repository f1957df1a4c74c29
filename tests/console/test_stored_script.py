"""A message that is a page with a script, in a real browser: the script never runs as one of the broker."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from tests.support.broker import Broker, StartBroker
from tests.support.browser import ELSEWHERE, needs_browser, opened

pytestmark = needs_browser
SCRIPT = "document.title = 'it ran'; fetch('/v1/queues/taken', {method: 'PUT', body: '{}'});"
SHOWN = {
    "document": f"<!doctype html><title>shown</title><h1>harmless</h1><script>{SCRIPT}</script>",
    "image/svg+xml": f'<svg xmlns="http://www.w3.org/2000/svg"><script>{SCRIPT}</script></svg>',
}


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    broker = start_broker(f"http.hosts={ELSEWHERE}")
    broker.create_queue("pages")
    return broker


def publish(broker: Broker, body: str, content_type: str) -> None:
    answer = broker.request("POST", "/messages/pages", {"Content-Type": content_type}, body.encode())
    assert answer.status == 201


def did_run(page: Page, broker: Broker) -> bool:
    page.wait_for_load_state("networkidle")
    return page.title() == "it ran" or broker.request("GET", "/v1/queues/taken").status == 200


def test_a_browser_that_would_show_a_message_does_not_get_it(broker: Broker, browser: Browser) -> None:
    publish(broker, SHOWN["document"], "text/html")
    with opened(browser) as page:
        refused = page.goto(f"http://localhost:{broker.http[1]}/messages/pages")
        assert refused is not None
        assert (refused.status, refused.json()["code"]) == (403, "forbidden_use")
        assert not did_run(page, broker)
    assert broker.request("GET", "/messages/pages").body == SHOWN["document"].encode(), "it is still in the queue"


@pytest.mark.parametrize("element", ["iframe", "embed", "object", "script"])
def test_no_element_of_a_page_of_the_broker_gets_one(broker: Broker, browser: Browser, element: str) -> None:
    publish(broker, SCRIPT, "text/javascript")
    with browser.new_context() as context:
        page = context.new_page()
        # A page of the broker without a policy of its own, as a defect of the console would be.
        page.goto(f"http://localhost:{broker.http[1]}/openapi.json")
        page.evaluate(
            """([name, address]) => new Promise((done) => {
                const made = document.createElement(name);
                made.onload = made.onerror = done;
                made[name === "object" ? "data" : "src"] = address;
                document.body.append(made);
            })""",
            [element, "/messages/pages"],
        )
        assert not did_run(page, broker)
    assert broker.request("GET", "/messages/pages").body == SCRIPT.encode(), "it is still in the queue"


@pytest.mark.parametrize("content_type", ["text/html", "image/svg+xml", "application/xhtml+xml"])
def test_a_browser_that_does_not_say_what_it_wants_runs_nothing(
    broker: Broker, browser: Browser, content_type: str
) -> None:
    body = SHOWN["image/svg+xml" if "svg" in content_type else "document"]
    publish(broker, body.replace("<!doctype html>", ""), content_type)
    with browser.new_context() as context:  # That it blocks the script is an error on the page's console.
        page = context.new_page()
        shown = page.goto(f"http://{ELSEWHERE}:{broker.http[1]}/messages/pages")
        assert shown is not None
        assert shown.status == 200
        assert shown.headers["content-type"] == content_type
        assert not did_run(page, broker)
        origin = page.evaluate("self.origin")
        assert origin == "null", "it has not the broker's origin"


def test_a_script_of_the_broker_may_fetch_one(broker: Broker, browser: Browser) -> None:
    publish(broker, "hello", "text/plain")
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://localhost:{broker.http[1]}/openapi.json")
        assert page.evaluate("fetch('/messages/pages').then((answer) => answer.text())") == "hello"
