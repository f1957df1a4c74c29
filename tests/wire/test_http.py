"""What the HTTP server promises on the wire, whatever the dialect: framing, limits, timeouts."""

from __future__ import annotations

import contextlib
import json
import secrets

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Connection, Response, encode_request
from tests.support.waiting import wait_until

HOST = b"Host: penstock.localhost\r\n"
REQUEST_HEADERS_BYTES_MAX = 32 << 10
BODY_BYTES_MAX = 1 << 20
REQUEST_BODY_BYTES_MAX = 16 << 20


@pytest.fixture
def queue(broker: Broker) -> str:
    name = f"wire-{secrets.token_hex(6)}"
    broker.create_queue(name)
    return name


def error_of(response: Response) -> str:
    """The text of an error body; failing if the body is anything else."""
    assert response.header("Content-Type") == "application/json"
    body = response.json()
    assert body.keys() == {"error", "code"}
    assert isinstance(body["error"], str)
    return body["error"]


# Connections


def test_a_connection_serves_many_requests(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        for number in range(50):
            assert connection.request("POST", f"/messages/{queue}", body=str(number).encode()).status == 201
        for number in range(50):
            assert connection.request("GET", f"/messages/{queue}").body == str(number).encode()


def test_a_connection_stays_usable_after_every_kind_of_refusal(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        assert connection.request("GET", "/nowhere").status == 404
        assert connection.request("PATCH", f"/queues/{queue}", body=b"{}").status == 405
        assert connection.request("PUT", f"/queues/{queue}-2", body=b"not json").status == 400
        assert connection.request("PUT", f"/queues/{queue}", body=b"{}").status == 409
        assert connection.request("GET", "/health").status == 200


def test_connection_close_is_honoured(broker: Broker) -> None:
    with broker.connect() as connection:
        response = connection.request("GET", "/health", {"Connection": "close"})
        assert response.body == b"green"
        assert (response.header("Connection") or "").lower() == "close"
        assert connection.read_to_end() == b""


def test_http_1_0_is_answered_and_closed(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert connection.read_response().body == b"green"
        assert connection.read_to_end() == b""


def test_a_client_that_only_closes_its_sending_side_still_gets_its_answer(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send_request("GET", "/health")
        connection.shut_down_sending()
        assert connection.read_response().body == b"green"
        assert connection.read_to_end() == b""


def test_one_connection_over_the_limit_gets_503_and_is_closed(start_broker: StartBroker) -> None:
    broker = start_broker("http.connections_max=2")
    # The connection of the health check at the start counts until the broker has seen it close.
    with open_when_there_is_room(broker) as first, open_when_there_is_room(broker) as second:
        with broker.connect() as third:
            assert third.read_response().status == 503
            assert third.read_to_end() == b""
        assert first.request("GET", "/health").status == 200
        assert second.request("GET", "/health").status == 200
    with open_when_there_is_room(broker) as later:
        assert later.request("GET", "/health").status == 200


def open_when_there_is_room(broker: Broker) -> Connection:
    return wait_until(lambda: open_if_there_is_room(broker), "room for a connection")


def open_if_there_is_room(broker: Broker) -> Connection | None:
    connection = broker.connect()
    try:
        if connection.request("GET", "/health").status == 200:
            return connection
    except OSError:
        pass  # Refused and closed before the request was read.
    connection.close()
    return None


# Framing


def test_ten_requests_in_one_write_are_answered_in_order(broker: Broker, queue: str) -> None:
    requests = b"".join(encode_request("POST", f"/messages/{queue}", body=b"%d" % n) for n in range(5))
    requests += b"".join(encode_request("GET", f"/messages/{queue}") for _ in range(5))
    with broker.connect() as connection:
        connection.send(requests)
        answers = [connection.read_response() for _ in range(10)]
    assert [answer.status for answer in answers] == [201] * 5 + [200] * 5
    assert [answer.body for answer in answers[5:]] == [b"0", b"1", b"2", b"3", b"4"]


def test_answers_keep_their_order_when_an_earlier_request_waits(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        connection.send(
            encode_request("GET", f"/messages/{queue}", {"X-MQS-MAX-WAIT-TIME": "1"})
            + encode_request("GET", "/health")
        )
        assert connection.read_response().status == 204
        assert connection.read_response().body == b"green"


def test_pipelined_requests_are_carried_out_in_the_order_they_were_sent(broker: Broker, queue: str) -> None:
    receive, publish = (
        encode_request("GET", f"/messages/{queue}"),
        encode_request("POST", f"/messages/{queue}", body=b"x"),
    )
    with broker.connect() as connection:
        connection.send(receive + publish + receive + receive + publish)
        assert [connection.read_response().status for _ in range(5)] == [204, 201, 200, 204, 201]


def test_a_thousand_requests_in_one_write_are_all_answered(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send(encode_request("GET", "/health") * 1000)
        assert {connection.read_response().body for _ in range(1000)} == {b"green"}


def test_bytes_sent_one_at_a_time_mean_the_same_as_sent_whole(broker: Broker, queue: str) -> None:
    settings = json.dumps({"retention_timeout": 60, "visibility_timeout": 5, "message_deduplication": True})
    requests = [
        encode_request("PUT", f"/queues/{queue}-SIDE", {"Content-Type": "application/json"}, settings.encode()),
        encode_request("POST", f"/messages/{queue}-SIDE", {"Content-Type": "text/plain"}, b"\r\n\r\nbody"),
        chunked("POST", f"/messages/{queue}-SIDE", b"\r\n\r\nbo", b"dy"),
        encode_request("GET", f"/queues?limit=0&offset=0&limit={'1' * 20}x"),
        encode_request("GET", f"/messages/{queue}-SIDE"),
        encode_request("DELETE", f"/queues/{queue}-SIDE"),
    ]
    with broker.connect() as whole, broker.connect() as dripping:
        for request in requests:
            whole.send(request.replace(b"SIDE", b"left"))
            expected = whole.read_response()
            for byte in request.replace(b"SIDE", b"rght"):
                dripping.send(bytes([byte]))
            assert lasting(dripping.read_response()) == lasting(expected)


def lasting(response: Response) -> tuple[int, set[str], bytes]:
    """What of a response does not change from one time to the next."""
    return response.status, {name for name, _ in response.headers}, response.body.replace(b"rght", b"left")


def chunked(method: str, target: str, *chunks: bytes, trailer: bytes = b"") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: penstock.localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n" + trailer + b"\r\n"


def test_a_chunked_body_is_one_message(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        connection.send(chunked("POST", f"/messages/{queue}", b"one ", b"body", b" in\r\nchunks"))
        assert connection.read_response().status == 201
        assert connection.request("GET", f"/messages/{queue}").body == b"one body in\r\nchunks"


def test_chunk_extensions_and_trailers_are_not_content(broker: Broker, queue: str) -> None:
    request = chunked("POST", f"/messages/{queue}", b"body", trailer=b"X-Checksum: 1\r\n")
    with broker.connect() as connection:
        connection.send(request.replace(b"4\r\nbody", b"4;name=value\r\nbody"))
        assert connection.read_response().status == 201
        assert connection.request("GET", f"/messages/{queue}").body == b"body"


def test_a_chunked_body_over_the_limit_is_cut_as_any_other(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        connection.send(chunked("POST", f"/messages/{queue}", *[b"x" * 65536] * 17))
        assert connection.read_response().status == 201
        assert connection.request("GET", f"/messages/{queue}").body == b"x" * BODY_BYTES_MAX


def test_expect_100_continue_is_answered_before_the_body_comes(broker: Broker, queue: str) -> None:
    head = encode_request("POST", f"/messages/{queue}", {"Expect": "100-continue", "Content-Length": "4"})
    with broker.connect() as connection:
        connection.send(head)
        assert connection.read_interim() == 100
        connection.send(b"body")
        assert connection.read_response().status == 201
        assert connection.request("GET", f"/messages/{queue}").body == b"body"


def test_a_body_that_comes_before_the_100_is_taken_all_the_same(broker: Broker, queue: str) -> None:
    request = encode_request("POST", f"/messages/{queue}", {"Expect": "100-continue"}, b"body")
    with broker.connect() as connection:
        connection.send(request)
        assert connection.read_response().status == 201
        assert connection.request("GET", f"/messages/{queue}").body == b"body"


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/1.1 more\r\n\r\n",
        b"GET /health HTPT/1.1\r\n\r\n",
        b"G\x01T /health HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_a_malformed_request_line_is_400_and_closes(broker: Broker, line: bytes) -> None:
    with broker.connect() as connection:
        connection.send(line)
        response = connection.read_response()
        assert response.status == 400
        assert error_of(response)
        assert connection.read_to_end() == b""


@pytest.mark.parametrize(
    "headers",
    [
        b"no colon here",
        b"Bad Name: value",
        b"Content-Length: ten",
        b"Content-Length: -1",
        b"Content-Length: 4\r\nContent-Length: 5",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: gzip",
    ],
)
def test_malformed_headers_are_400_and_close(broker: Broker, queue: str, headers: bytes) -> None:
    with broker.connect() as connection:
        connection.send(b"POST /messages/%b HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % (queue.encode(), headers))
        response = connection.read_response()
        assert response.status == 400
        assert error_of(response)
        assert connection.read_to_end() == b""
    assert broker.request("GET", f"/messages/{queue}").status == 204


def test_a_malformed_chunk_is_400_and_nothing_is_stored(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        connection.send(chunked("POST", f"/messages/{queue}", b"body").replace(b"4\r\nbody", b"zz\r\nbody"))
        assert connection.read_response().status == 400
        assert connection.read_to_end() == b""
    assert broker.request("GET", f"/messages/{queue}").status == 204


def test_a_body_cut_off_by_a_closed_connection_is_not_a_message(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        connection.send(encode_request("POST", f"/messages/{queue}", {"Content-Length": "10"}) + b"half")
        connection.shut_down_sending()
        connection.read_to_end()
    assert broker.request("GET", f"/messages/{queue}").status == 204


# Limits


def test_a_head_within_the_limit_is_read(broker: Broker) -> None:
    padding = "x" * (REQUEST_HEADERS_BYTES_MAX // 2)
    assert broker.request("GET", "/health", {"X-Padding": padding}).status == 200


@pytest.mark.parametrize("headers", [{"X-Padding": "x" * 40_000}, {f"X-{n}": "x" * 100 for n in range(400)}])
def test_a_head_over_the_limit_is_431_and_closes(broker: Broker, headers: dict[str, str]) -> None:
    with broker.connect() as connection:
        connection.send_request("GET", "/health", headers)
        response = connection.read_response()
        assert response.status == 431
        assert error_of(response)
        assert connection.ended_within(30)


@pytest.mark.parametrize(
    "trailer", [b"X-Padding: " + b"x" * 40_000 + b"\r\n", b"X: y\r\n" * 10_000, b"X-Padding: " + b"x" * 400_000]
)
@pytest.mark.parametrize("pieces", [1, 20])
def test_trailers_over_the_limit_of_the_head_are_431(broker: Broker, queue: str, trailer: bytes, pieces: int) -> None:
    request = chunked("POST", f"/messages/{queue}", b"body", trailer=trailer)
    with broker.connect() as connection:
        size = len(request) // pieces
        with contextlib.suppress(ConnectionError):  # It is closed before everything is sent.
            for start in range(0, len(request), size):
                connection.send(request[start : start + size])
        assert read_status(connection) in (431, None)
    assert broker.request("GET", f"/messages/{queue}").status == 204


def read_status(connection: Connection) -> int | None:
    """None if the answer was lost because the broker had closed, with more on its way."""
    try:
        return connection.read_response().status
    except ConnectionError:
        return None


def test_an_endless_trailer_takes_no_memory(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("trailers")
    before = broker.resident_bytes()
    with broker.connect() as connection:
        connection.send(chunked("POST", "/messages/trailers", b"body").removesuffix(b"\r\n") + b"X-Padding: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.send(b"x" * (1 << 20))
    assert broker.request("GET", "/health").status == 200
    assert broker.resident_bytes() - before < 20 << 20


def test_an_endless_size_of_a_chunk_is_431(broker: Broker, queue: str) -> None:
    begun = chunked("POST", f"/messages/{queue}", b"body").removesuffix(b"\r\n\r\n")
    with broker.connect() as connection, contextlib.suppress(ConnectionError):
        for _ in range(64):
            connection.send(begun)
            begun = b";x=" + b"x" * 10_000
        assert read_status(connection) in (431, None)


def test_a_body_in_many_small_chunks_is_no_long_head(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        connection.send(chunked("POST", f"/messages/{queue}", *[b"%d" % (each % 10) for each in range(20_000)]))
        assert connection.read_response().status == 201


def test_what_is_in_a_trailer_does_not_count(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=hush")
    trailer = b"Authorization: Bearer hush\r\nHost: localhost\r\n"
    with broker.connect() as connection:
        connection.send(chunked("POST", "/messages/q", b"body", trailer=trailer))
        assert connection.read_response().status == 401
    with broker.connect() as connection:
        connection.send(chunked("POST", "/messages/q", b"body", trailer=trailer).replace(HOST, b"", 1))
        assert connection.read_response().status == 400


def test_an_endless_head_is_431_before_it_ends(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send(b"GET /health HTTP/1.1\r\nX-Padding: " + b"x" * (REQUEST_HEADERS_BYTES_MAX + 1024))
        assert connection.read_response().status == 431


def test_a_target_over_the_limit_is_414_and_closes(broker: Broker) -> None:
    with broker.connect() as connection:
        connection.send_request("GET", "/queues/" + "x" * (9 << 10))
        assert connection.read_response().status == 414
        assert connection.ended_within(30)


def test_a_request_body_over_the_limit_of_a_batch_is_413(broker: Broker, queue: str) -> None:
    head = encode_request(
        "POST",
        f"/messages/{queue}",
        {
            "Content-Length": str(REQUEST_BODY_BYTES_MAX + 1),
            "Content-Type": "multipart/mixed; boundary=b",
            "Expect": "100-continue",
        },
    )
    with broker.connect() as connection:
        connection.send(head)
        response = connection.read_response()
        assert response.status == 413
        assert response.interim == []
        assert error_of(response)


def test_a_client_gets_the_refusal_of_a_body_that_it_is_still_sending(broker: Broker) -> None:
    with broker.connect() as connection:
        assert connection.refused_early("PUT /queues/large HTTP/1.1", 4 << 20).status == 413
        assert connection.read_to_end() == b""


def test_a_refused_body_leaves_the_connection_usable_or_closes_it(start_broker: StartBroker) -> None:
    broker = start_broker("mqs.oversize=reject")
    broker.create_queue("small")
    with broker.connect() as connection:
        response = connection.request("POST", "/messages/small", body=b"x" * (BODY_BYTES_MAX + 1))
        assert response.status == 413
        assert error_of(response)
        if (response.header("Connection") or "").lower() == "close":
            assert connection.ended_within(30)
        else:
            assert connection.request("GET", "/health").body == b"green"
    assert broker.request("GET", "/messages/small").status == 204


# Timeouts


def test_an_idle_connection_is_closed(start_broker: StartBroker) -> None:
    broker = start_broker("http.idle_seconds=4")
    with broker.connect() as fresh, broker.connect() as used:
        assert used.request("GET", "/health").status == 200
        assert fresh.ended_within(30)
        assert used.ended_within(30)


def test_a_waiting_receive_is_not_idle(start_broker: StartBroker) -> None:
    broker = start_broker("http.idle_seconds=4", "http.slow_client_seconds=4")
    broker.create_queue("quiet")
    with broker.connect() as connection:
        assert connection.request("GET", "/messages/quiet", {"X-MQS-MAX-WAIT-TIME": "6"}).status == 204
        assert connection.request("GET", "/health").body == b"green"


@pytest.mark.parametrize(
    "start",
    [b"GET /health HT", encode_request("POST", "/messages/slow", {"Content-Length": "1000"})],
    ids=["head", "body"],
)
def test_a_client_that_drips_is_closed_though_it_is_never_silent_for_long(
    start_broker: StartBroker, start: bytes
) -> None:
    broker = start_broker("http.slow_client_seconds=1")
    broker.create_queue("slow")
    with broker.connect() as connection:
        connection.send(start)
        for _ in range(100):
            if connection.ended_within(0.1):
                break
            try:
                connection.send(b"x")
            except OSError:
                break
        else:
            raise AssertionError("still open after ten seconds of dripping")
    assert broker.request("GET", "/messages/slow").status == 204


def test_a_client_that_does_not_read_holds_up_nobody(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("big", visibility_timeout=0)
    assert broker.request("POST", "/messages/big", body=b"x" * BODY_BYTES_MAX).status == 201
    with broker.connect() as deaf, broker.connect() as lively:
        deaf.send(encode_request("GET", "/messages/big") * 60)
        for _ in range(20):
            assert lively.request("GET", "/health").body == b"green"


def test_a_client_that_does_not_read_is_not_answered_into_memory_without_end(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("big", visibility_timeout=0)
    assert broker.request("POST", "/messages/big", body=b"x" * BODY_BYTES_MAX).status == 201
    before = broker.resident_bytes()
    with broker.connect() as deaf, broker.connect() as lively:
        deaf.send(encode_request("GET", "/messages/big") * 2000)
        for _ in range(20):
            assert lively.request("GET", "/messages/big").status == 200
        assert broker.resident_bytes() - before < 300 << 20


def test_a_client_that_never_reads_loses_its_place(start_broker: StartBroker) -> None:
    broker = start_broker("http.connections_max=2", "http.slow_client_seconds=4")
    with open_when_there_is_room(broker) as connection:
        settings = {"retention_timeout": 60, "visibility_timeout": 0, "message_deduplication": False}
        assert connection.request("PUT", "/queues/big", body=json.dumps(settings).encode()).status == 201
        assert connection.request("POST", "/messages/big", body=b"x" * BODY_BYTES_MAX).status == 201
    with open_when_there_is_room(broker) as deaf:
        deaf.send(encode_request("GET", "/messages/big") * 30)
        with open_when_there_is_room(broker) as lively:
            nothing = b"\npenstock_unread_bytes 0.0\n"
            wait_until(lambda: nothing not in lively.request("GET", "/metrics").body, "it has left something unread")
            assert lively.request("DELETE", "/queues/big").status == 200
            with open_when_there_is_room(broker) as other:  # Once the deaf client is gone.
                assert other.request("GET", "/health").body == b"green"


# Metrics


def test_the_metrics_parse_and_count_what_happened(start_broker: StartBroker) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    broker = start_broker()
    broker.create_queue("counted")
    for number in range(3):
        assert broker.request("POST", "/messages/counted", body=b"%d" % number).status == 201
    exposition = broker.request("GET", "/metrics").body.decode()
    families = {family.name: family for family in parser.text_string_to_metric_families(exposition)}
    ours = {name: family for name, family in families.items() if name.startswith("penstock_")}
    assert ours, f"no metric of ours in {sorted(families)}"
    assert all(family.documentation for family in ours.values())
    assert any(sample.value == 3 for family in ours.values() for sample in family.samples)


def test_the_metrics_keep_their_size_however_many_queues_are_asked_for(start_broker: StartBroker) -> None:
    broker = start_broker()
    with broker.connect() as connection:
        before = len(connection.request("GET", "/metrics").body.splitlines())
        for number in range(200):
            assert connection.request("GET", f"/queues/unknown-{number}").status == 404
        after = len(connection.request("GET", "/metrics").body.splitlines())
    assert after - before < 50


# Pieces


def test_a_request_inside_a_body_is_a_body_wherever_the_reads_end(broker: Broker, queue: str) -> None:
    """The fields are known, and what has come up to the last field's CR is as long as a whole request would be."""
    other = f"inner-{secrets.token_hex(6)}"
    broker.create_queue(other)
    inner = encode_request("POST", f"/messages/{other}", {}, b"executed")
    head = f"POST /messages/{queue} HTTP/1.1\r\nHost: localhost\r\nX-Padding: {{}}\r\nContent-Length: 500\r\n\r\n"
    padding = 500 + 3 - len(head.format("")) + 3
    request = head.format("p" * padding).encode()
    cut = len(request) - 3
    assert cut == 500 + 3, "as long as the rest of a read would be behind a head that ends before its first byte"
    body = inner + b"." * (500 - len(inner))
    with broker.connect() as connection:
        connection.send(request + body)  # Whole: so its fields are remembered.
        assert connection.read_response().status == 201
        connection.send(request[:cut])
        assert broker.request("GET", "/health").status == 200  # It was read before this one.
        connection.send(request[cut:] + body)
        assert connection.read_response().status == 201
        for _ in range(2):
            assert connection.request("GET", f"/messages/{queue}").body == body
        assert connection.request("GET", f"/messages/{queue}").status == 204
        assert connection.request("GET", f"/messages/{other}").status == 204


@pytest.mark.parametrize("second", [b"Host: penstock.localhost", b"hOST: evil.example", b"Host:"])
def test_two_hosts_are_400(broker: Broker, queue: str, second: bytes) -> None:
    request = encode_request("POST", f"/messages/{queue}", {}, b"hello").replace(HOST, HOST + second + b"\r\n")
    with broker.connect() as connection:
        connection.send(request)
        response = connection.read_response()
        assert response.status == 400
        assert "Host" in error_of(response)
        assert connection.ended_within(30)
    assert broker.request("GET", f"/messages/{queue}").status == 204
