"""Names that every object of JavaScript has, and addresses that no page has made, are names and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.conftest import call
from tests.console.test_files import SCRIPTS, STATIC
from tests.console.test_pages import PAGES, show
from tests.support.broker import Broker
from tests.support.browser import needs_browser, opened

NAMES = ("__proto__", "constructor", "%E0%A4%A")
FIELDS = (
    "within",
    "span",
    "state",
    "sort",
    "order",
    "by",
    "queue",
    "name",
    "text",
    "topic",
    "act",
    "outcome",
    "from",
)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker where everything is called like this."""
    broker = Broker(tmp_path_factory.mktemp("odd")).start()
    for name in NAMES:
        call(broker, "PUT", f"/v1/queues/{quote(name, safe='')}", {"detect_unchanged": True})
        message = {"message": {name: 1}, "object": name, "key": name, "sender": name, "mimeType": name}
        call(broker, "POST", f"/v1/queues/{quote(name, safe='')}/messages", [message, message | {"message": 2}])
        taken = call(broker, "GET", f"/v1/queues/{quote(name, safe='')}/messages?{urlencode({'consumer': name})}")
        assert taken
    yield broker
    broker.stop()


def fine(page: Page) -> None:
    """The page is there: it has not failed, whatever the broker says to it."""
    assert page.get_by_text("This page failed").count() == 0


@needs_browser
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_name(browser: Browser, odd: Broker, name: str) -> None:
    quoted = quote(name, safe="")
    found = call(odd, "GET", f"/v1/search?{urlencode({'queue': name})}")["messages"]
    with opened(browser) as page:
        for path in ("queues", "consumers", f"objects/{quoted}/{quoted}", f"messages/{found[0]['id']}"):
            show(page, odd, path)
            fine(page)
        show(page, odd, f"queues/{quoted}")
        fine(page)
        expect(page.locator("main h1")).to_contain_text(name)
        page.evaluate("location.hash = '#/queues'")  # And from page to page.
        page.get_by_role("link", name=name, exact=True).first.click()
        expect(page.locator("main h1")).to_contain_text(name)
        fine(page)


@needs_browser
@pytest.mark.parametrize("value", NAMES[1:])
def test_an_address_may_say_anything(browser: Browser, odd: Broker, value: str) -> None:
    query = "&".join(f"{field}={value}" for field in FIELDS)
    with opened(browser) as page:
        for name in PAGES:
            show(page, odd, f"{name}?{query}")
            fine(page)


@needs_browser
@pytest.mark.parametrize("path", ["%", "queues/%E0%A4%A", "objects/%/%"])
def test_an_address_that_is_no_address_is_answered(browser: Browser, odd: Broker, path: str) -> None:
    with opened(browser) as page:
        show(page, odd, "queues")
        page.evaluate("(hash) => { location.hash = hash; }", f"#/{path}")
        show(page, odd, path)
        fine(page)
        expect(page.locator("main")).not_to_contain_text("malformed")


def test_what_is_looked_up_has_no_members_but_its_own() -> None:
    """A table with those of `Object.prototype` has a tone, a picture and a span of time called `constructor`."""
    texts = [(STATIC / name).read_text() for name in SCRIPTS]
    plain = {
        found for text in texts for found in re.findall(r"^(?:export )?const ([A-Z_]+) = \{", text, re.MULTILINE)
    }
    looked_up = {name for name in plain for text in texts if re.search(rf"\b{name}\)?\[| in {name}\b", text)}
    assert looked_up == set()
