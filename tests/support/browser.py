"""A real browser for tests: Debian's chromium, headless, driven by playwright.

What a page logs as an error, and what its security policy refuses, fails the test that opened it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

PROGRAM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
needs_browser = pytest.mark.skipif(
    not PROGRAM, reason="no chromium here; install it by make browser, or on Debian: apt-get install chromium"
)
ELSEWHERE = "penstock.test"  # A name of this machine. To it, a browser does not say what it wants an answer for.
# The tests may run as root in a container, where the sandbox of chromium does not work.
_ARGUMENTS = ["--no-sandbox", f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"]
WAIT_MS_MAX = 60_000  # However busy the machine is.
WIDE, PHONE = (1280, 800), (360, 740)


@contextmanager
def started() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_MS_MAX)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, args=_ARGUMENTS, timeout=WAIT_MS_MAX)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, size: tuple[int, int] = WIDE, *, dark: bool = False) -> Iterator[Page]:
    """A page in a profile of its own, without errors until it is closed."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(WAIT_MS_MAX)
    page = context.new_page()
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # A refused request is an answer like any other: the page shows it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            problems.append(message.text)

    def fail(error: Error) -> None:
        problems.append(f"{error.message}\n{error.stack}")

    page.on("console", note)
    page.on("pageerror", fail)
    yield page
    context.close()
    assert not problems, problems


def faults(page: Page) -> list[str]:
    """What a person with a screen reader, a keyboard or weak eyes would stumble over, as axe sees it."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
