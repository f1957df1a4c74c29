"""The documentation as a site: it builds without a warning, no link is dead, every page is two clicks from home."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import expect

from penstock.model.metrics import FAMILIES
from tests.support.broker import StartBroker
from tests.support.browser import needs_browser, opened, started
from tests.support.documentation import ROOT

CLICKS_MAX = 2
DEPLOY = ROOT / "deploy"


class Links(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.sources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = {name: value or "" for name, value in attrs}
        if "id" in facts:
            self.anchors.add(facts["id"])
        if tag == "a" and "href" in facts:
            self.hrefs.append(facts["href"])
        if "src" in facts or (tag == "link" and facts.get("rel") != "canonical"):
            self.sources.append(facts.get("src") or facts.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_no_link_is_dead(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    dead = []
    for page, links in pages.items():
        for href in links.hrefs:
            target, _, anchor = href.partition("#")
            if "://" in href or href.startswith("mailto:"):
                continue
            found = (page.parent / unquote(target)).resolve() if target else page
            if not found.exists() or (anchor and found in pages and unquote(anchor) not in pages[found].anchors):
                dead.append(f"{page.relative_to(site)}: {href}")
    assert not dead


def test_every_page_is_reached_in_two_clicks(site: Path) -> None:
    reached, edge = {site / "index.html"}, {site / "index.html"}
    for _ in range(CLICKS_MAX):
        edge = {target for page in edge for target in _pages_linked(page)} - reached
        reached |= edge
    assert not {page for page in site.rglob("*.html") if page.name != "404.html"} - reached


def _pages_linked(page: Path) -> set[Path]:
    targets = {unquote(href.partition("#")[0]) for href in Links(page).hrefs if "://" not in href}
    found = {(page.parent / target).resolve() for target in targets if target}
    return {target for target in found if target.suffix == ".html" and target.exists()}


def test_nothing_comes_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [source for source in Links(page).sources if "://" in source], page


@needs_browser
def test_the_site_is_searched_without_a_web_server(site: Path) -> None:
    with started() as browser, opened(browser, (1440, 900)) as page:
        page.goto(site.joinpath("index.html").as_uri())
        page.get_by_role("textbox", name="Search").click()
        page.get_by_role("textbox", name="Search").press_sequentially("redrive")
        page.locator(".md-search-result__item a").filter(has_text="redrive").first.click()
        expect(page).to_have_url(re.compile(r"^file://.*\.html"))
        expect(page.locator("main h1").first).to_be_visible()


def test_dashboard_and_alerts_use_metrics_that_the_broker_has(start_broker: StartBroker) -> None:
    scraped = start_broker().request("GET", "/metrics").body.decode()
    families = {family.name for family in FAMILIES} | set(re.findall(r"^# TYPE (process_\w+)", scraped, re.M))
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    queries += re.findall(r"expr: (.*)", (DEPLOY / "alerts.yaml").read_text())
    used = {name for query in queries for name in re.findall(r"\b(?:penstock|process)_\w+", query)}
    assert len(used) > 15
    assert not {name.removesuffix("_bucket") for name in used} - families
