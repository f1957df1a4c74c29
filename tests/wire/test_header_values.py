"""What a client says and gets back as a header: nothing in it can end a line, and it is bounded."""

from __future__ import annotations

import secrets

import pytest

from tests.support.broker import Broker
from tests.support.http_client import Response

BAD = ["\x01", "\x08", "\x0b", "\x0c", "\x1b", "\x1f", "\x7f", "\x00", "\n", "\r"]


@pytest.fixture
def queue(broker: Broker) -> str:
    name = f"header-values-{secrets.token_hex(6)}"
    broker.create_queue(name)
    return name


def publish_part(broker: Broker, queue: str, header: bytes) -> Response:
    body = b"--b\r\n" + header + b"\r\n\r\nhello\r\n--b--\r\n"
    return broker.request("POST", f"/messages/{queue}", {"Content-Type": "multipart/mixed; boundary=b"}, body)


@pytest.mark.parametrize("name", ["Content-Type", "Content-Encoding", "X-Other"])
@pytest.mark.parametrize("bad", BAD)
def test_a_part_with_a_control_character_in_a_header_is_refused(
    broker: Broker, queue: str, name: str, bad: str
) -> None:
    answer = publish_part(broker, queue, f"{name}: text/pl{bad}ain".encode())
    assert (answer.status, "control character" in answer.json()["error"]) == (400, True)
    assert broker.request("GET", f"/messages/{queue}").status == 204


def test_a_part_may_have_a_tab_where_http_allows_one(broker: Broker, queue: str) -> None:
    assert publish_part(broker, queue, b"Content-Type: text/plain;\tcharset=utf-8").status == 201
    assert broker.request("GET", f"/messages/{queue}").header("Content-Type") == "text/plain;\tcharset=utf-8"


@pytest.mark.parametrize("name", ["Content-Type", "Content-Encoding"])
def test_a_header_that_comes_back_has_at_most_255_bytes(broker: Broker, queue: str, name: str) -> None:
    longest = "x/" + "y" * 253

    def publish(value: str) -> list[Response]:
        return [
            broker.request("POST", f"/messages/{queue}", {name: value}, b"hello"),
            publish_part(broker, queue, f"{name}: {value}".encode()),
        ]

    for refused in publish(longest + "y"):
        assert refused.status == 400
        assert refused.json()["error"] == f"{name} has at most 255 bytes, got 256"
    for stored in publish(longest):
        assert stored.status == 201
        assert broker.request("GET", f"/messages/{queue}").header(name) == longest


def test_a_media_type_of_a_topic_publish_has_at_most_255_bytes(broker: Broker) -> None:
    topic = f"types-{secrets.token_hex(6)}"
    long = "x/" + "y" * 254
    as_document = b'{"topics":["%b"],"message":"a","mimeType":"%b"}' % (topic.encode(), long.encode())
    answers = [
        broker.request("POST", "/v1/publish", body=as_document),
        broker.request("POST", f"/v1/publish?topic={topic}", {"Content-Type": long}, b"a"),
    ]
    assert [answer.status for answer in answers] == [400, 400]
    assert answers[0].json()["error"] == "mimeType has at most 255 bytes, got 256"
    assert answers[1].json()["error"] == "Content-Type has at most 255 bytes, got 256"
    assert broker.request("POST", "/v1/publish", body=as_document.replace(b"yy", b"y", 1)).status == 201


@pytest.mark.parametrize("bad", BAD)
def test_a_media_type_of_a_topic_publish_has_no_control_characters(broker: Broker, bad: str) -> None:
    body = b'{"topics":["types"],"message":"a","mimeType":"text/\\u%04x"}' % ord(bad)
    answer = broker.request("POST", "/v1/publish", body=body)
    assert (answer.status, answer.json()["error"]) == (400, "mimeType must not have control characters")
