"""TLS of the Python client: whom it trusts, what it shows, and what people read when either fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from penstock.client import AsyncClient, Client
from penstock.client.errors import Unavailable
from penstock.client.trust import Trust
from penstock.errors import ConfigError
from tests.support.broker import Broker
from tests.support.certificates import Pair
from tests.support.http_client import Connection


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Pair:
    return Pair(folder, "authority")


@pytest.fixture(scope="module")
def pair(folder: Path, authority: Pair) -> Pair:
    return Pair(folder, "broker", issuer=authority)


@pytest.fixture(scope="module")
def secure(folder: Path, pair: Pair, authority: Pair) -> Iterator[Broker]:
    broker = Broker(folder / "data", *pair.settings, trust=authority.trusting()).start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def strict(folder: Path, pair: Pair, authority: Pair) -> Iterator[Broker]:
    """A broker that asks its clients for a certificate."""
    settings = (*pair.settings, f"tls.client_ca={authority.certificate}", "tls.client_required=true")
    broker = Broker(folder / "strict", *settings)
    broker.spawn()
    broker.wait_until_listening()
    yield broker
    broker.stop()


def https(broker: Broker) -> str:
    return "https://{}:{}".format(*broker.http)


def failure(client: Client) -> str:
    began = time.monotonic()
    with client, pytest.raises(Unavailable) as caught:
        client.health()
    assert time.monotonic() - began < 10, "another attempt would not help"
    return str(caught.value)


def test_the_authority_is_given_and_messages_flow(secure: Broker, authority: Pair) -> None:
    with Client(https(secure), ca=authority.certificate) as client:
        client.queues.create("trusted")
        client.publish_many("trusted", ["x" * 100_000] * 20)
        received = [message.confirm() for message in client.receive("trusted", max=20)]
        assert len(received) == 20


def test_the_certificate_of_the_broker_itself_may_be_given(secure: Broker, pair: Pair) -> None:
    with Client(https(secure), ca=pair.certificate) as client:
        assert client.health().color == "green"


def test_the_authority_may_be_in_the_environment(
    secure: Broker, authority: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CA", str(authority.certificate))
    with Client(https(secure)) as client:
        assert client.health().color == "green"


async def _health(url: str, ca: Path) -> str:
    async with AsyncClient(url, ca=ca) as client:
        return (await client.health()).color


def test_asyncio_clients_use_tls_too(secure: Broker, authority: Pair) -> None:
    import asyncio

    assert asyncio.run(_health(https(secure), authority.certificate)) == "green"


def test_an_unknown_authority_is_refused_at_once_with_the_remedy(secure: Broker) -> None:
    said = failure(Client(https(secure)))
    assert said.startswith("the certificate of 127.0.0.1 is not trusted: ")
    assert "--ca FILE" in said
    assert "PENSTOCK_CA" in said


def test_another_name_is_refused(secure: Broker, authority: Pair) -> None:
    url = https(secure).replace("127.0.0.1", "localhost")
    assert "is for other names" in failure(Client(url, ca=authority.certificate))


def test_a_broker_without_tls_is_named_as_such(broker: Broker) -> None:
    assert "does not use TLS at this port: use http://127.0.0.1" in failure(Client(https(broker)))


def test_a_plain_url_at_a_broker_with_tls_is_explained(secure: Broker) -> None:
    with Client("http://{}:{}".format(*secure.http)) as client, pytest.raises(Exception, match="requires TLS"):
        client.queues.list()


def test_a_client_shows_its_certificate(strict: Broker, folder: Path, authority: Pair) -> None:
    own = Pair(folder, "reports", issuer=authority, alternatives=())
    with Client(
        https(strict), ca=authority.certificate, certificate=own.certificate, certificate_key=own.key
    ) as client:
        assert client.health().color == "green"
    both = folder / "both.pem"
    both.write_bytes(own.certificate.read_bytes() + own.key.read_bytes())
    with Client(https(strict), ca=authority.certificate, certificate=both) as client:
        assert client.health().color == "green"


def test_a_client_without_a_certificate_reads_that_it_needs_one(strict: Broker, authority: Pair) -> None:
    said = failure(Client(https(strict), ca=authority.certificate))
    assert "requires a certificate of the client. Pass --certificate" in said


def test_a_client_with_a_certificate_of_others_reads_that_it_is_not_accepted(
    strict: Broker, folder: Path, authority: Pair
) -> None:
    own = Pair(folder, "stranger", alternatives=(x509.DNSName("stranger"),))
    client = Client(https(strict), ca=authority.certificate, certificate=own.certificate, certificate_key=own.key)
    assert "does not accept the certificate of this client" in failure(client)


def test_files_that_cannot_be_used_are_named(folder: Path) -> None:
    nothing = folder / "nothing.pem"
    nothing.write_text("nothing")
    with pytest.raises(ConfigError, match=r"ca = .*missing.* cannot be used: No such file"):
        Client("https://localhost", ca=folder / "missing.pem")
    with pytest.raises(ConfigError, match=r"ca = .* cannot be used"):
        Trust(ca=nothing).context()
    with pytest.raises(ConfigError, match=r"certificate = .* cannot be used"):
        Trust(certificate=nothing).context()


def test_a_broken_handshake_is_no_reason_to_give_up(secure: Broker, authority: Pair) -> None:
    """Somebody else's failed handshake leaves the broker as it was."""
    with Connection(secure.http) as rude:
        rude.send(b"\x16\x03\x01\x00\x05hello")
        rude.ended_within(5)
    with Client(https(secure), ca=authority.certificate) as client:
        assert client.health().color == "green"
