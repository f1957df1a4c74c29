"""Whose accounts there are, what a refusal says, and what is logged."""

from __future__ import annotations

import logging

import pytest

from penstock.broker.quotas.account import Account
from penstock.broker.quotas.quotas import NAMES, Quotas, checked_limits, network_of
from penstock.config.quotas import QuotaConfig, QuotaLimits
from penstock.errors import ProtocolError
from penstock.limits import OFFENDERS_LOG_SECONDS, OFFENDERS_MAX


def quotas_of(**limits: int) -> Quotas:
    return Quotas(QuotaConfig(address=QuotaLimits(**limits)), lambda _: True)


def account_of(quotas: Quotas, host: str) -> Account:
    account = quotas.of_address(network_of(host))
    assert account is not None
    return account


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::2", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_ipv6_client_is_counted_by_its_network(host: str, counted: str) -> None:
    assert network_of(host) == counted


def test_without_quotas_nobody_has_an_account() -> None:
    quotas = quotas_of()
    assert quotas.of_address("192.0.2.7") is None
    assert quotas.of_identity("worker", {}) is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"wait": 1}, "unknown limit 'wait'; the limits are connections, connections_per_second, "),
        ({"waiting": 0.5}, "limits: Expected `int`, got `float` - at `$.waiting`"),
        ({"connections": 1e9}, "limits: Expected `int` <= 1000000 - at `$.connections`"),
    ],
)
def test_limits_that_no_quota_has_are_refused(given: dict[str, float], sentence: str) -> None:
    with pytest.raises(ProtocolError) as error:
        checked_limits(given)
    assert str(error.value).startswith(sentence)
    assert checked_limits(dict.fromkeys(NAMES, 1.0)) == dict.fromkeys(NAMES, 1.0)


def test_the_limits_of_a_token_replace_those_of_the_settings_one_by_one() -> None:
    config = QuotaConfig(identity=QuotaLimits(connections=5, waiting=7))
    own = Quotas(config, lambda _: True).of_identity("worker", {"connections": 50.0, "unknown": 1})
    assert own is not None
    assert (own.limits.connections, own.limits.waiting) == (50, 7)


def test_a_refusal_names_the_quota_its_value_and_where_it_is_set() -> None:
    quotas = quotas_of(published_per_second=100)
    refused = quotas.refuse(account_of(quotas, "192.0.2.7"), "published_per_second", 2.5)
    assert refused.sentence == ("quota exceeded (quota.address.published_per_second = 100); send less, or raise it")
    assert refused.retry_seconds == 2.5
    token = quotas.of_identity("worker", {"waiting": 3})
    assert token is not None
    assert quotas.refuse(token, "waiting").detail == "waiting = 3 in the limits of token worker"


def test_refusals_are_counted_by_quota_and_not_by_client() -> None:
    quotas = quotas_of(waiting=1)
    for number in range(100):
        quotas.refuse(account_of(quotas, f"192.0.2.{number}"), "waiting")
    samples = dict(quotas.state())["penstock_quota_refused_total"]
    assert len(samples) == len(NAMES)
    assert dict(samples)[("waiting",)] == 100


def test_the_log_has_one_line_a_minute_with_those_who_exceed_most(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    quotas = Quotas(QuotaConfig(address=QuotaLimits(waiting=1)), lambda _: True, lambda: now)
    with caplog.at_level(logging.WARNING):
        for number in range(2 * OFFENDERS_MAX):
            quotas.refuse(account_of(quotas, f"2001:db8:0:{number:x}::1"), "waiting")
        for _ in range(10):
            quotas.refuse(account_of(quotas, "192.0.2.7"), "waiting")
        assert len(caplog.records) == 1
        for _ in range(10):
            quotas.refuse(account_of(quotas, "2001:db8:0:1::1"), "waiting")
        now = OFFENDERS_LOG_SECONDS
        quotas.refuse(account_of(quotas, "2001:db8:0:1::1"), "waiting")
    assert len(caplog.records) == 2
    most = caplog.records[1].most  # type: ignore[attr-defined]
    assert most["address 2001:db8:0:1::/64"] >= 11
    assert len(most) == 5
