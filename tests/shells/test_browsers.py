"""Which web pages may use the broker, and by which names it may be reached."""

from __future__ import annotations

import pytest

from penstock.config.config import Config
from penstock.server.settings import load
from penstock.shells.browsers import BrowserPolicy, policy_of


def a_policy(*settings: str) -> BrowserPolicy:
    config = load(None, {}, settings, {})
    return policy_of(config, lambda: bool(config.auth.tokens))


def refusal(policy: BrowserPolicy, **fields: str) -> str | None:
    refused = policy.refusal({name.replace("_", "-").encode(): value.encode() for name, value in fields.items()})
    return refused[0].explain(refused[1]) if refused else None


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:7843", "LocalHost:80", "localhost.", "penstock.localhost:1", "a.b.localhost"),
        *("127.0.0.1", "127.0.0.1:7843", "127.8.9.1:1", "[::1]", "[::1]:7843", "[::ffff:127.0.0.1]:1"),
    ],
)
def test_loopback_names_and_addresses_are_always_the_brokers(host: str) -> None:
    assert refusal(a_policy(), host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7843", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost"),
        *("", ":7843", "10.0.0.1", "[2001:db8::1]", "::1", "localhost:x", "localhost:1:2", "[::1", "user@localhost"),
        *("localhost evil.example", "127.1", "0x7f000001", "2130706433", "0.0.0.0", "[::]", "[fe80::1%lo]", "*"),
    ],
)
def test_other_names_are_refused_where_there_are_no_tokens(host: str) -> None:
    said = refusal(a_policy(), host=host)
    assert said is not None
    assert "http.hosts" in said
    assert "auth.tokens" in said
    assert refusal(a_policy("auth.tokens=hush"), host=host) is None
    assert refusal(a_policy("http.hosts=*"), host=host) is None


def test_a_program_that_sends_no_host_is_no_browser() -> None:
    assert refusal(a_policy()) is None


def test_more_names_can_be_added() -> None:
    policy = a_policy("http.hosts=Broker.lan, 192.0.2.7,2001:db8::7")
    for host in ("broker.lan", "BROKER.LAN:7843", "192.0.2.7:7843", "[2001:db8::7]:7843", "localhost"):
        assert refusal(policy, host=host) is None, host
    for host in ("other.lan", "x.broker.lan", "192.0.2.8"):
        assert refusal(policy, host=host), host


def test_the_address_that_is_listened_on_is_a_name_of_the_broker() -> None:
    policy = a_policy("http.address=broker.lan:7843")
    assert refusal(policy, host="broker.lan:7843") is None
    assert refusal(policy, host="10.0.0.1:7843")


@pytest.mark.parametrize("address", ["0.0.0.0:7843", "[::]:7843"])
def test_a_broker_on_all_addresses_is_reached_by_any_address_but_by_no_other_name(address: str) -> None:
    policy = a_policy(f"http.address={address}")
    assert refusal(policy, host="10.0.0.1:7843") is None
    assert refusal(policy, host="[2001:db8::1]:7843") is None
    assert refusal(policy, host="broker.lan:7843")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://127.0.0.1", "http://localhost:7843", "null", "file://", "", "*"]
)
@pytest.mark.parametrize("tokens", [(), ("auth.tokens=hush",)])
def test_pages_of_other_origins_are_refused_with_and_without_tokens(origin: str, tokens: tuple[str, ...]) -> None:
    said = refusal(a_policy(*tokens), host="127.0.0.1:7843", origin=origin)
    assert said is not None
    assert "http.origins" in said


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", ["127.0.0.1:7843", "localhost", "[::1]:7843"])
def test_the_brokers_own_pages_may_use_it(scheme: str, host: str) -> None:
    assert refusal(a_policy(), host=host, origin=f"{scheme}://{host}", sec_fetch_site="same-origin") is None


@pytest.mark.parametrize("key", ["http.origins", "ws.origins"])
def test_listed_origins_may_use_it_under_the_new_name_of_the_setting_and_the_old(key: str) -> None:
    policy = a_policy(f"{key}=https://app.example.org,null")
    for origin in ("https://app.example.org", "null"):
        assert refusal(policy, host="localhost", origin=origin, sec_fetch_site="cross-site") is None
    assert refusal(policy, host="localhost", origin="https://app.example.org.evil.example")
    assert refusal(a_policy(f"{key}=*"), host="localhost", origin="https://anywhere.example") is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "Same-Origin", "anything"])
def test_a_request_that_a_page_of_another_origin_has_caused_is_refused(site: str) -> None:
    assert refusal(a_policy(), host="localhost", sec_fetch_site=site)
    assert refusal(a_policy(), host="localhost", origin="http://localhost", sec_fetch_site=site)
    assert refusal(a_policy("http.origins=https://app.example.org"), host="localhost", sec_fetch_site=site)
    assert refusal(a_policy("http.origins=*"), host="localhost", sec_fetch_site=site) is None


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_what_the_user_typed_and_what_the_own_page_asks_for_is_served(site: str) -> None:
    assert refusal(a_policy(), host="localhost", sec_fetch_site=site) is None


def test_a_long_value_is_not_repeated_whole() -> None:
    assert len(refusal(a_policy(), host="x" * 10_000) or "") < 400


def test_the_defaults_name_nobody() -> None:
    assert (Config().http.hosts, Config().http.origins, Config().ws.origins) == ((), (), ())
