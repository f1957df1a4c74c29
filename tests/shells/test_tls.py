"""Which certificate and key a broker accepts, and when it takes new ones."""

from __future__ import annotations

import os
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

from penstock.config.config import TlsConfig
from penstock.config.types import FileName
from penstock.errors import ConfigError
from penstock.shells.tls import Tls, load
from tests.support.certificates import Pair


def config_of(pair: Pair, client_ca: Path | str = "", *, required: bool = False) -> TlsConfig:
    return TlsConfig(
        certificate=FileName(pair.certificate),
        key=FileName(pair.key),
        client_ca=FileName(client_ca),
        client_required=required,
    )


def reason(config: TlsConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        load(config)
    return str(caught.value)


def metric(tls: Tls, name: str) -> float:
    return dict(tls.state())[name][0][1]


def test_a_pair_is_loaded_for_tls_1_2_and_later(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "broker")
    loaded = load(config_of(pair))
    assert loaded.certificate.names == ("127.0.0.1",)
    assert loaded.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert loaded.context.verify_mode is ssl.CERT_NONE
    assert all("GCM" in each["name"] or "CHACHA20" in each["name"] for each in loaded.context.get_ciphers())


def test_an_expired_certificate_is_refused_with_its_date(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "old", begins=timedelta(days=-3), ends=timedelta(days=-1))
    assert f"expired on {pair.x509.not_valid_after_utc:%Y-%m-%d}" in reason(config_of(pair))


def test_a_certificate_of_tomorrow_is_refused(tmp_path: Path) -> None:
    assert "not valid before" in reason(config_of(Pair(tmp_path, "new", begins=timedelta(days=1))))


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    pair, other = Pair(tmp_path, "one"), Pair(tmp_path, "other")
    pair.key.write_bytes(other.key.read_bytes())
    assert "does not belong to tls.certificate" in reason(config_of(pair))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "locked")
    pair.write_key(BestAvailableEncryption(b"secret"))
    assert "protected by a password" in reason(config_of(pair))


def test_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "broker")
    swapped = TlsConfig(certificate=FileName(pair.key), key=FileName(pair.certificate))
    assert "holds no certificate" in reason(swapped)
    pair.key.write_text("nothing")
    assert "holds no private key" in reason(config_of(pair))
    pair.key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert "cannot be used" in reason(config_of(pair))
    assert "tls.client_ca" in reason(config_of(Pair(tmp_path, "again"), pair.key))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "broker")
    pair.key.unlink()
    assert f"tls.key = {pair.key}: there is no such file" in reason(config_of(pair))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_that_this_user_cannot_read_is_named(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "broker")
    pair.key.chmod(0)
    assert "cannot be read by the user" in reason(config_of(pair))


def test_new_files_are_loaded_once_they_have_settled(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "broker")
    tls = Tls(config_of(pair))
    first = tls.context
    tls.reload_if_changed()
    assert tls.context is first
    Pair(tmp_path, "broker", ends=timedelta(days=5))
    tls.reload_if_changed()
    assert tls.context is first, "one file may be new and the other old"
    tls.reload_if_changed()
    assert tls.context is not first
    assert metric(tls, "penstock_tls_reloads_total") == 1
    assert metric(tls, "penstock_tls_certificate_expires_timestamp_seconds") == tls.certificate.ends.timestamp()


def test_a_broken_new_pair_is_counted_once_and_the_old_one_stays(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "broker")
    tls = Tls(config_of(pair))
    first = tls.context
    pair.key.write_bytes(Pair(tmp_path, "other").key.read_bytes())
    for _ in range(4):
        tls.reload_if_changed()
    assert tls.context is first
    assert metric(tls, "penstock_tls_reloads_failed_total") == 1
    Pair(tmp_path, "broker")
    for _ in range(2):
        tls.reload_if_changed()
    assert tls.context is not first


def test_clients_may_or_must_show_a_certificate(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "broker")
    authority = Pair(tmp_path, "authority").certificate
    assert load(config_of(pair, authority)).context.verify_mode is ssl.CERT_OPTIONAL
    assert load(config_of(pair, authority, required=True)).context.verify_mode is ssl.CERT_REQUIRED
