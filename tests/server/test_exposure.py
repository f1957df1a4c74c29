"""Where a broker may listen, and with what."""

from __future__ import annotations

import re

import pytest

from penstock.config.config import Config, HttpConfig, LinesConfig, TlsConfig, parse_address
from penstock.config.types import FileName
from penstock.errors import ConfigError
from penstock.server.exposure import check_exposure


def listening_on(http: str, lines: str = "127.0.0.1:0", certificate: str = "") -> Config:
    return Config(
        http=HttpConfig(address=parse_address(http)),
        lines=LinesConfig(address=parse_address(lines)),
        tls=TlsConfig(certificate=FileName(certificate)),
    )


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.9.10:1", "[::1]:0", "localhost:0", "[::ffff:127.0.0.1]:0"])
def test_this_machine_alone_needs_no_token(address: str) -> None:
    check_exposure(listening_on(address, address), has_tokens=False, insecure=False)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "[2001:db8::1]:80", "0:80", "[fe80::1]:1"]
)
def test_an_address_that_others_can_reach_needs_tokens_and_tls_or_a_clear_word(address: str) -> None:
    for key, config in (
        ("http.address", listening_on(address)),
        ("lines.address", listening_on("127.0.0.1:0", address)),
    ):
        with pytest.raises(
            ConfigError, match=rf"^{key} = {re.escape(address)} .*tokens create.*auth\.tokens.*--insecure"
        ):
            check_exposure(config, has_tokens=False, insecure=False)
        check_exposure(config, has_tokens=False, insecure=True)
    with pytest.raises(ConfigError, match=r"tls\.certificate is empty.*--insecure"):
        check_exposure(listening_on(address), has_tokens=True, insecure=False)
    check_exposure(listening_on(address, address, "a.pem"), has_tokens=True, insecure=False)


def test_a_name_that_stands_for_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"http\.address = nowhere\.invalid:80: the host cannot be resolved"):
        check_exposure(listening_on("nowhere.invalid:80"), has_tokens=False, insecure=False)
