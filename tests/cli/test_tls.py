"""`penstock tls`, and verbs that use TLS."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.cli.child_broker import listening
from penstock.cli.profiles import target
from penstock.shells.certificate import from_pem
from tests.support.broker import Broker, StartBroker
from tests.support.certificates import Pair
from tests.support.command_line import penstock
from tests.support.documentation import ROOT


@pytest.fixture
def made(tmp_path: Path) -> Path:
    ended = penstock("tls", "self-signed", str(tmp_path / "tls"), "--name", "broker.lan", "--days", "10")
    assert ended.returncode == 0, ended
    assert f"--tls-certificate {tmp_path}/tls/penstock.pem --tls-key {tmp_path}/tls/penstock.key" in ended.stdout
    for line in ("curl --cacert", "Client(", ".option(", "penstock doctor"):
        assert line in ended.stdout
    return tmp_path / "tls"


def start(start_broker: StartBroker, made: Path) -> Broker:
    """A broker with the certificate, checked as strictly as Python can."""
    trust = ssl.create_default_context(cafile=made / "penstock.pem")
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    flags = ("--tls-certificate", str(made / "penstock.pem"), "--tls-key", str(made / "penstock.key"))
    return start_broker(flags=flags, trust=trust)


def test_a_pair_is_made_that_a_broker_serves_and_clients_trust(start_broker: StartBroker, made: Path) -> None:
    assert stat.S_IMODE((made / "penstock.key").stat().st_mode) == 0o600
    certificate = from_pem((made / "penstock.pem").read_bytes())
    assert certificate.names == ("broker.lan", "localhost", "127.0.0.1", "::1")
    broker = start(start_broker, made)
    assert broker.request("GET", "/health").status == 200
    ca = str(made / "penstock.pem")
    ended = penstock("queues", "list", "--url", broker.url, "--ca", ca)
    assert ended.returncode == 0, ended
    shown = penstock("tls", "show", "--url", broker.url, "--json")
    assert json.loads(shown.stdout)["names"] == list(certificate.names)


def test_files_are_not_replaced_unless_asked(made: Path) -> None:
    before = (made / "penstock.pem").read_bytes()
    ended = penstock("tls", "self-signed", str(made))
    assert (ended.returncode, (made / "penstock.pem").read_bytes()) == (3, before)
    assert penstock("tls", "self-signed", str(made), "--force").returncode == 0
    assert (made / "penstock.pem").read_bytes() != before


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    ended = penstock("tls", "self-signed", str(tmp_path), "--name", "zürich")
    assert (ended.returncode, ended.stderr) == (2, "penstock: zürich is neither a host name nor an address\n")


def test_without_cryptography_the_line_to_install_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli import main

    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setattr(sys, "argv", ["penstock", "tls", "self-signed", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "pip install 'penstock[tls]'" in capsys.readouterr().err


def test_a_verb_names_the_flag_that_is_missing(start_broker: StartBroker, made: Path) -> None:
    broker = start(start_broker, made)
    ended = penstock("queues", "list", "--url", broker.url)
    assert ended.returncode == 6
    assert "the certificate of 127.0.0.1 is not trusted" in ended.stderr
    assert "--ca FILE" in ended.stderr


def test_the_doctor_looks_at_the_certificate(start_broker: StartBroker, tmp_path: Path) -> None:
    pair = Pair(tmp_path, "short", ends=timedelta(days=20, hours=1))
    broker = start_broker(*pair.settings, trust=pair.trusting())

    def found(*flags: str) -> dict[str, dict[str, str]]:
        ended = penstock("doctor", "--json", "--url", broker.url, *flags)
        return {finding["check"]: finding for finding in json.loads(ended.stdout)}

    trusted = found("--ca", str(pair.certificate))
    assert (trusted["certificate"]["state"], trusted["broker"]["state"]) == ("warn", "ok")
    assert "good for 20 days" in trusted["certificate"]["found"]
    untrusted = found()
    assert untrusted["certificate"]["state"] == "warn"
    assert (untrusted["broker"]["state"], "--ca FILE" in untrusted["broker"]["found"]) == ("fail", True)


def test_a_file_is_shown_to_people_and_what_is_none_is_refused(made: Path) -> None:
    shown = penstock("tls", "show", str(made / "penstock.pem"))
    assert "broker.lan, localhost, 127.0.0.1, ::1" in shown.stdout
    assert "no certificate" in penstock("tls", "show", str(made / "penstock.key")).stderr
    assert penstock("tls", "show", "--url", "http://127.0.0.1:1").returncode == 1


def test_files_of_tls_come_from_flags_the_environment_or_the_profile_of_the_broker(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'default = "a"\n[profiles.a]\nurl = "https://a"\nca = "profile.pem"\ncertificate_key = "own.key"\n'
    )
    assert target({}, {}, file).options["ca"] == "profile.pem"
    assert target({}, {}, file).options["certificate_key"] == "own.key"
    assert target({}, {"PENSTOCK_CA": "environment.pem"}, file).options["ca"] == "environment.pem"
    assert target({"ca": "flag.pem"}, {"PENSTOCK_CA": "environment.pem"}, file).options["ca"] == "flag.pem"
    assert target({"url": "https://b"}, {}, file).options["ca"] == ""


def test_the_first_try_of_the_manual_works_as_it_is_written(tmp_path: Path) -> None:
    page = (ROOT / "docs/tls.md").read_text()
    first, serve, curl = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1].splitlines()  # type: ignore[index]
    assert shutil.which("curl")
    subprocess.run(first, shell=True, cwd=tmp_path, env=with_penstock(), check=True, capture_output=True)
    here = {"PENSTOCK_HTTP_ADDRESS": "localhost:0", "PENSTOCK_LINES_ADDRESS": "localhost:0"}
    command = ["sh", "-c", f"exec {serve.removesuffix(' &')}"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=with_penstock() | here, stderr=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stderr
        port = next(found["http"].rpartition(":")[2] for line in broker.stderr if (found := listening(line)))
        line = curl.replace("7843", port)
        published = subprocess.run(line, shell=True, cwd=tmp_path, check=True, capture_output=True, text=True)
        assert json.loads(published.stdout)["queues"] == ["greetings"]
        broker.terminate()
        broker.communicate()


def with_penstock() -> dict[str, str]:
    """An environment in which `penstock` is found."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
