"""The console's files arrive whole, small and guarded, from a clone and from a wheel alike."""

from __future__ import annotations

import gzip
import re
from importlib import resources
from pathlib import Path

import pytest

from tests.support.broker import Broker, StartBroker

STATIC = Path(str(resources.files("penstock.console").joinpath("static")))
FILES = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())
SCRIPTS = [name for name in FILES if name.endswith(".js")]


def address(name: str) -> str:
    return "/" if name == "index.html" else f"/console/{name}"


FOREIGN = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("name", sorted({*FILES} - {"door.html"}))
def test_a_file_is_served_with_its_type_and_a_policy_that_lets_nothing_else_run(broker: Broker, name: str) -> None:
    answer = broker.request("GET", address(name))
    assert answer.status == 200
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert (answer.header("Content-Type") or "").startswith(kinds[name.rpartition(".")[2]])
    policy = answer.header("Content-Security-Policy") or ""
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.header("X-Content-Type-Options") == "nosniff"


def test_a_file_that_did_not_change_is_not_sent_again(broker: Broker) -> None:
    first = broker.request("GET", "/console/app.js")
    again = broker.request("GET", "/console/app.js", {"If-None-Match": first.header("ETag") or ""})
    assert (again.status, again.body) == (304, b"")


def test_a_browser_gets_a_file_compressed(broker: Broker) -> None:
    plain = broker.request("GET", "/console/style.css")
    packed = broker.request("GET", "/console/style.css", {"Accept-Encoding": "gzip, deflate, br"})
    assert packed.header("Content-Encoding") == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2


@pytest.mark.parametrize(
    "path", ["/console/nothing.js", "/console/../files.py", "/console/%2e%2e/files.py", "/console/lib", "/console/"]
)
def test_nothing_but_these_files_is_served(broker: Broker, path: str) -> None:
    assert broker.request("GET", path).status == 404


def test_the_console_can_be_turned_off(start_broker: StartBroker) -> None:
    broker = start_broker("console.enabled=false")
    assert broker.request("GET", "/").status == 404
    assert broker.request("GET", "/console/app.js").status == 404


def test_the_page_knows_whether_it_may_only_read(start_broker: StartBroker) -> None:
    broker = start_broker("console.read_only=true")
    assert b"&quot;readOnly&quot;:true" in broker.request("GET", "/").body


def test_the_files_need_no_token_and_what_they_show_does(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret")
    assert broker.request("GET", "/").status == 200
    assert broker.request("GET", "/console/app.js").status == 200
    assert broker.request("GET", "/v1/stats").status == 401


def test_a_link_on_another_site_leads_to_the_console_and_nowhere_else(broker: Broker) -> None:
    broker.create_queue("linked")
    broker.request("POST", "/messages/linked", body=b"not for strangers")
    for path in ("/", "/messages/linked", "/v1/search?queue=linked"):
        answer = broker.request("GET", path, FOREIGN)
        assert (answer.status, b"Open the console" in answer.body) == (403, True)
        assert "default-src 'self'" in (answer.header("Content-Security-Policy") or "")
    framed = broker.request("GET", "/", FOREIGN | {"Sec-Fetch-Dest": "iframe"})
    assert (framed.status, framed.json()["code"]) == (403, "forbidden_origin")
    assert broker.request("GET", "/v1/queues/linked").json()["status"]["leased"] == 0


def test_all_files_together_are_small() -> None:
    assert sum((STATIC / name).stat().st_size for name in FILES) < 300 * 1024


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_says_what_it_is_for(name: str) -> None:
    text = (STATIC / name).read_text()
    assert text.startswith("/**")
    assert len(text.splitlines()) <= 400


@pytest.mark.parametrize("name", FILES)
def test_nothing_comes_from_another_host_and_no_text_becomes_markup(name: str) -> None:
    text = (STATIC / name).read_text().replace("http://www.w3.org/", "")
    assert not re.search(r"(src|href|import|from)\W{1,4}https?://", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_import_is_there_and_used(name: str) -> None:
    text = (STATIC / name).read_text()
    for names, target in re.findall(r"^import \{([^}]+)\} from \"([^\"]+)\";", text, re.MULTILINE):
        assert (STATIC / name).parent.joinpath(target).resolve().is_file(), target
        for each in names.split(","):
            used = each.split(" as ")[-1].strip()
            assert not used or len(re.findall(rf"\b{used}\b", text)) > 1, f"{used} of {target}"


def test_the_reactive_helper_stays_small() -> None:
    assert len((STATIC / "lib/reactive.js").read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_line_is_longer_than_others_can_read_side_by_side(name: str) -> None:
    long = [number for number, line in enumerate((STATIC / name).read_text().splitlines(), 1) if len(line) > 120]
    assert long == []
