"""TLS over real sockets: every shell, bad clients, slow clients, new certificates."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker, StartBroker, refused_start
from tests.support.certificates import Pair
from tests.support.command_line import penstock
from tests.support.http_client import Connection, encode_request
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient

BODY = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("certificates"), "broker")


@pytest.fixture(scope="module")
def secure(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with TLS that tests share: use queue names of your own."""
    folder = tmp_path_factory.mktemp("secure-broker")
    settings = (*pair.settings, "http.slow_client_seconds=4", "lines.slow_client_seconds=4")
    broker = Broker(folder / "data", *settings, trust=pair.trusting()).start()
    yield broker
    broker.stop()


def metric(broker: Broker, name: str) -> float:
    lines = broker.request("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


# What passes through


def test_large_bodies_arrive_whole_in_both_directions(secure: Broker) -> None:
    secure.create_queue("large")
    with secure.connect() as connection:
        connection.send(encode_request("POST", "/messages/large", body=BODY) * 3)
        assert [connection.read_response(to="POST").status for _ in range(3)] == [201] * 3
        received = connection.request("GET", "/messages/large", {"X-MQS-MAX-MESSAGES": "3"})
    assert [each.body for each in received.messages()] == [BODY] * 3


def test_requests_may_arrive_in_any_pieces(secure: Broker) -> None:
    with secure.connect() as connection:
        for number in encode_request("GET", "/health"):
            connection.send(bytes([number]))
        assert connection.read_response().body == b"green"


def test_requests_may_arrive_in_very_many_records_at_once(secure: Broker, pair: Pair) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    link = pair.trusting().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    count = 100
    with socket.create_connection(secure.http, timeout=60) as raw:
        shake_hands(link, raw, incoming, outgoing)
        for number in encode_request("GET", "/health") * count:
            link.write(bytes([number]))
        raw.sendall(outgoing.read())
        answers = b""
        while answers.count(b"green") < count:
            incoming.write(raw.recv(65536))
            answers += decrypted(link)


def test_a_client_that_does_not_read_is_not_read_from_and_gets_all_in_the_end(secure: Broker) -> None:
    secure.create_queue("pressure", visibility_timeout=0)
    with secure.connect() as connection:
        assert connection.request("POST", "/messages/pressure", body=BODY).status == 201
        count = 40
        connection.send(encode_request("GET", "/messages/pressure") * count)
        with secure.connect() as other:
            assert other.request("GET", "/health").status == 200
        assert [connection.read_response().body == BODY for _ in range(count)] == [True] * count


def test_a_client_that_closes_its_side_still_gets_its_answers(secure: Broker) -> None:
    with secure.connect() as connection:
        connection.send(encode_request("GET", "/health") * 2)
        connection.shut_down_sending()
        assert [connection.read_response().status for _ in range(2)] == [200, 200]
        assert connection.read_to_end() == b""


def test_the_event_log_is_followed_over_tls(secure: Broker) -> None:
    secure.create_queue("followed")
    with secure.connect() as reader:
        assert reader.begin("/v1/events?queue=followed&follow=true").status == 200
        secure.request("POST", "/messages/followed", body=b"x")
        seen = b""
        while b'"L"' not in seen:
            seen += reader.read_chunk()


def test_a_websocket_upgrades_talks_and_closes(secure: Broker, pair: Pair) -> None:
    secure.create_queue("talked")
    with WsClient(secure.http, "/connect/", pair.trusting()) as client:
        assert client.hear()["type"] == "hello"
        post = {"type": "post", "queue": "talked", "priority": 0, "notify": ["sync"], "label": 1}
        assert client.ask(**post, message="x" * 300_000)["notice"] == "sync"
        fetched = client.ask(type="fetch", queue="talked", label=2, block_timeout=1, work_timeout=5, sync="sync")
        assert fetched["body"] == "x" * 300_000


def test_a_websocket_that_breaks_the_rules_hears_why(secure: Broker, pair: Pair) -> None:
    with WsClient(secure.http, "/connect/", pair.trusting()) as client:
        client.hear()
        client.send(b"\x70\x80\x00\x00\x00\x00")  # A frame with reserved bits.
        assert client.closed()[0] == 1002


def test_the_end_of_tls_is_the_end_of_what_a_client_sends(secure: Broker, pair: Pair) -> None:
    """A client may end its side with an alert alone, and leave the socket open."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    link = pair.trusting().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection(secure.http, timeout=60) as raw:
        shake_hands(link, raw, incoming, outgoing)
        link.write(encode_request("GET", "/health") * 2)
        with pytest.raises(ssl.SSLWantReadError):
            link.unwrap()
        raw.sendall(outgoing.read())
        while data := raw.recv(65536):
            incoming.write(data)
        # The answers came, and then the same alert.
        assert decrypted(link).count(b"green") == 2


def shake_hands(link: ssl.SSLObject, raw: socket.socket, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
    while True:
        try:
            link.do_handshake()
            break
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(65536))
    raw.sendall(outgoing.read())


def decrypted(link: ssl.SSLObject) -> bytes:
    """All that can be read for now."""
    whole = b""
    try:
        while piece := link.read(65536):
            whole += piece
    except (ssl.SSLZeroReturnError, ssl.SSLWantReadError):
        pass
    return whole


def test_lines_end_with_the_last_reply_and_a_proper_end(secure: Broker, pair: Pair) -> None:
    with LineClient(secure.lines, tls=pair.trusting()) as client:
        assert client.ask(cmd="PUB", qname="lined", msg="x" * 500_000)["cmd"] == "ok"
        client.say({"cmd": "FET", "qname": "lined"}, {"cmd": "FET", "qname": "lined"})
        client.shut_down_sending()
        first, second = (json.loads(line) for line in client.read_to_end().splitlines())
        assert (len(first["msg"]), second["cmd"]) == (500_000, "nomsg")


def test_a_line_that_is_not_complete_in_time_is_refused_and_the_client_hears_why(secure: Broker, pair: Pair) -> None:
    with LineClient(secure.lines, tls=pair.trusting()) as client:
        client.send(b'{"cmd":')
        assert client.hear() == {"cmd": "nok", "err": "TIMEOUT"}
        assert client.read_to_end() == b"", "the end is announced, as TLS asks for"


# Clients that do not belong here


def test_plain_http_on_a_port_with_tls_gets_a_plain_answer(secure: Broker) -> None:
    with Connection(secure.http) as connection:
        answer = connection.request("GET", "/health")
        assert (answer.status, answer.json()["code"]) == (400, "tls_required")
        assert connection.ended_within(30)


def test_plain_lines_on_a_port_with_tls_get_a_plain_reply(secure: Broker) -> None:
    with LineClient(secure.lines) as client:
        assert client.ask(cmd="PUB", qname="plain", msg="x") == {"cmd": "nok", "err": "TLS_REQUIRED"}
        assert client.ended_within(30)


def test_tls_on_a_port_without_it_fails_and_is_logged(start_broker: StartBroker, pair: Pair) -> None:
    broker = start_broker()
    for address in (broker.http, broker.lines):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Connection(address, tls=pair.trusting())
        assert "uses TLS on a port without TLS" in broker.wait_until_logged("misdirected")["reason"]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_1_1_is_refused(secure: Broker, pair: Pair) -> None:
    old = pair.trusting()
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    failed = metric(secure, "penstock_tls_handshakes_failed_total")
    with pytest.raises(ssl.SSLError, match=r"(?i)version"):
        Connection(secure.http, tls=old)
    assert metric(secure, "penstock_tls_handshakes_failed_total") == failed + 1


def test_tls_1_2_works(secure: Broker, pair: Pair) -> None:
    context = pair.trusting()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Connection(secure.http, tls=context) as connection:
        assert connection.request("GET", "/health").status == 200


def test_http_1_1_is_chosen_and_a_client_of_http_2_alone_is_served_without_it(secure: Broker, pair: Pair) -> None:
    for offered, chosen in ((["h2", "http/1.1"], "http/1.1"), (["h2"], None)):
        context = pair.trusting()
        context.set_alpn_protocols(offered)
        with context.wrap_socket(socket.create_connection(secure.http), server_hostname="127.0.0.1") as link:
            assert link.selected_alpn_protocol() == chosen


# Handshakes that take too long, or say too much


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01"], ids=["silent", "half a hello"])
def test_a_handshake_that_is_not_complete_in_time_is_cut_off(secure: Broker, start: bytes) -> None:
    for address in (secure.http, secure.lines):
        with Connection(address) as connection:
            connection.send(start)
            assert connection.ended_within(30)


def test_a_handshake_that_is_too_long_is_cut_off(secure: Broker) -> None:
    with Connection(secure.http) as connection:
        try:
            for _ in range(64):
                connection.send(b"\x16\x03\x01\x40\x00" + b"\x01\x03\xff\xff" + bytes(16380))
        except ConnectionError:
            return
        assert connection.ended_within(30)


def test_connections_count_from_the_moment_they_are_accepted(start_broker: StartBroker, pair: Pair) -> None:
    broker = start_broker(*pair.settings, "http.connections_max=2", trust=pair.trusting())
    with Connection(broker.http), Connection(broker.http), pytest.raises(OSError, match=r".*"):
        broker.connect().request("GET", "/health")


def test_a_broker_stops_while_a_handshake_is_under_way(start_broker: StartBroker, pair: Pair) -> None:
    broker = start_broker(*pair.settings, trust=pair.trusting())
    with Connection(broker.http) as silent, broker.connect() as idle:
        assert idle.request("GET", "/health").status == 200
        broker.stop()
        assert silent.ended_within(30)
        assert idle.read_to_end() == b"", "an idle connection ends as TLS asks for"


# The certificate


def test_a_new_certificate_is_used_for_new_connections_and_open_ones_go_on(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    old = Pair(tmp_path, "renewed")
    broker = start_broker(*old.settings, trust=old.trusting())
    with broker.connect() as open_before:
        new = Pair(tmp_path, "renewed")  # The same files.
        broker.wait_until_logged("certificate_loaded")
        with pytest.raises(ssl.SSLCertVerificationError):
            broker.connect()
        broker.trust = new.trusting()
        assert broker.request("GET", "/health").status == 200
        assert open_before.request("GET", "/health").status == 200
    assert metric(broker, "penstock_tls_reloads_total") == 1


def test_a_broken_new_pair_is_logged_and_the_old_one_is_used(start_broker: StartBroker, tmp_path: Path) -> None:
    pair = Pair(tmp_path, "broken")
    broker = start_broker(*pair.settings, trust=pair.trusting())
    pair.key.write_bytes(Pair(tmp_path, "other").key.read_bytes())
    refused = broker.wait_until_logged("certificate_refused")
    assert "does not belong to tls.certificate" in refused["reason"]
    assert broker.request("GET", "/health").status == 200
    assert metric(broker, "penstock_tls_reloads_failed_total") == 1


def test_a_broker_with_a_wrong_pair_does_not_start(tmp_path: Path) -> None:
    pair, other = Pair(tmp_path, "one"), Pair(tmp_path, "other")
    settings = f"tls.certificate={pair.certificate}", f"tls.key={other.key}"
    code, said = refused_start(tmp_path / "data", *settings)
    assert code == 2
    assert "does not belong to tls.certificate" in said
    code, said = refused_start(tmp_path / "data", settings[0])
    assert code == 2
    assert "tls.certificate has no effect without tls.key" in said


# Clients with a certificate


def test_clients_must_show_a_certificate_of_the_authority(start_broker: StartBroker, tmp_path: Path) -> None:
    pair, authority = Pair(tmp_path, "broker"), Pair(tmp_path, "authority")
    known = pair.trusting()
    client = Pair(tmp_path, "client", issuer=authority, alternatives=())
    known.load_cert_chain(client.certificate, client.key)
    settings = (*pair.settings, f"tls.client_ca={authority.certificate}", "tls.client_required=true")
    broker = start_broker(*settings, trust=known)
    assert broker.request("GET", "/health").status == 200
    stranger = pair.trusting()
    other = Pair(tmp_path, "stranger")
    stranger.load_cert_chain(other.certificate, other.key)
    for context in (pair.trusting(), stranger):
        with pytest.raises(OSError, match=r".*"), Connection(broker.http, tls=context) as connection:
            connection.request("GET", "/health")


def test_a_certificate_that_no_token_names_gives_no_access(start_broker: StartBroker, tmp_path: Path) -> None:
    pair, authority = Pair(tmp_path, "broker"), Pair(tmp_path, "authority")
    client = Pair(tmp_path, "client", issuer=authority, alternatives=())
    trust = pair.trusting()
    trust.load_cert_chain(client.certificate, client.key)
    settings = (*pair.settings, f"tls.client_ca={authority.certificate}", "auth.tokens=secret")
    broker = start_broker(*settings, trust=trust)
    known = {"Authorization": "Bearer secret"}
    assert broker.request("GET", "/v1/queues").status == 401
    with broker.connect() as connection:
        for _ in range(5):
            assert connection.request("GET", "/v1/queues", known).status == 200
    assert broker.request("GET", "/v1/queues").status == 401
    with LineClient(broker.lines, tls=trust) as lines:
        assert lines.ask(cmd="FET", qname="x") == {"cmd": "nok", "err": "DENIED"}


def test_a_client_with_a_certificate_has_the_access_of_its_token(start_broker: StartBroker, tmp_path: Path) -> None:
    pair, authority = Pair(tmp_path, "broker"), Pair(tmp_path, "authority")
    settings = (*pair.settings, f"tls.client_ca={authority.certificate}", "auth.tokens=secret")
    broker = start_broker(*settings, trust=pair.trusting())
    admin = {"Authorization": "Bearer secret"}

    def showing(name: str) -> ssl.SSLContext:
        own = Pair(tmp_path, name, issuer=authority, alternatives=())
        context = pair.trusting()
        context.load_cert_chain(own.certificate, own.key)
        return context

    def status(trust: ssl.SSLContext, method: str, target: str, body: bytes | None = None) -> list[int]:
        """The same request twice on one connection: what is remembered of the first must not change the second."""
        with Connection(broker.http, tls=trust) as connection:
            return [connection.request(method, target, body=body).status for _ in range(2)]

    create = ("tokens", "create", "reports", "--scope", "publish:orders", "--subject", "reports")
    made = penstock(*create, "--url", broker.url, "--token", "secret", "--ca", str(pair.certificate))
    assert made.returncode == 0, made
    assert broker.request("PUT", "/v1/queues/orders", admin, b"{}").status == 201
    reports, other = showing("reports"), showing("other")
    assert status(reports, "POST", "/messages/orders", b"x") == [201, 201]
    assert status(reports, "GET", "/messages/orders") == [403, 403]
    for stranger in (other, pair.trusting()):
        with Connection(broker.http, tls=stranger) as connection:
            assert connection.request("POST", "/messages/orders", body=b"x").status == 401
    with LineClient(broker.lines, tls=reports) as lines:
        assert lines.ask(cmd="PUB", qname="orders", msg="x")["cmd"] == "ok"
        assert lines.ask(cmd="FET", qname="orders")["cmd"] == "nok"
    with WsClient(broker.http, "/connect/", reports) as client:
        assert client.hear()["type"] == "hello"
    assert broker.request("DELETE", "/v1/tokens/reports", admin).status in (200, 204)
    with Connection(broker.http, tls=reports) as connection:
        assert connection.request("POST", "/messages/orders", body=b"x").status == 401
