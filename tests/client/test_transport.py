"""Requests whose answers are lost, refused for now, or never come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock import AsyncClient, Client
from penstock.client import errors
from penstock.errors import SecretInUrlError
from tests.support.broker import Broker
from tests.support.certificates import self_signed
from tests.support.endpoint import Endpoint, HangUp, Pushed, answer

Forward = Callable[[Pushed], bytes]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def base(endpoint: Endpoint) -> str:
    return f"http://{urlsplit(endpoint.url).netloc}"


def to(broker: Broker, *, losing: int) -> Forward:
    """Carries requests to a broker. Of the first ones, the answers are lost on the way."""
    lost = 0

    def forward(pushed: Pushed) -> bytes:
        nonlocal lost
        method, target, _ = pushed.line.split()
        headers = {
            name: value for name, value in pushed.headers if name.lower() in ("idempotency-key", "content-type")
        }
        response = broker.request(method, target, headers, pushed.body or None)
        if lost < losing:
            lost += 1
            raise HangUp
        return answer(response.status, "", response.body)

    return forward


@pytest.mark.parametrize("url", ["http://ann:hush@host", "http://hush@host:7843/x", "ann:hush@host", "//ann:hush@h"])
def test_an_address_with_a_password_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SecretInUrlError) as refused:
        Client(url)
    assert "hush" not in str(refused.value)


def test_a_publish_whose_answer_is_lost_is_stored_once(broker: Broker, endpoint: Endpoint) -> None:
    with Client(broker.url) as direct, Client(base(endpoint), timeout=60) as client:
        direct.queues.create("answer-lost")
        endpoint.answer = to(broker, losing=3)
        sent = client.publish("answer-lost", "once")
        keys = {endpoint.next().header("Idempotency-Key") for _ in range(4)}
        assert len(keys) == 1
        assert [message.id for message in direct.receive("answer-lost", 10)] == [sent.id]


def test_a_confirmation_whose_answer_is_lost_is_ours(broker: Broker, endpoint: Endpoint) -> None:
    with Client(broker.url) as direct, Client(base(endpoint), timeout=60) as client:
        direct.queues.create("confirmation-lost")
        direct.publish_many("confirmation-lost", ["confirmed", "given back"])
        endpoint.answer = to(broker, losing=0)
        first, second = client.receive("confirmation-lost", 2)
        endpoint.answer = to(broker, losing=1)
        assert not first.confirm().discarded
        endpoint.answer = to(broker, losing=1)
        assert not second.retry().discarded
        assert [message.receives for message in direct.receive("confirmation-lost", 10)] == [2]


def test_what_an_earlier_attempt_has_deleted_is_no_error(broker: Broker, endpoint: Endpoint) -> None:
    with Client(broker.url) as direct, Client(base(endpoint), timeout=60) as client:
        direct.queues.create("deletion-lost")
        endpoint.answer = to(broker, losing=1)
        client.queues.delete("deletion-lost")
        with pytest.raises(errors.QueueNotFound):
            client.queues.delete("deletion-lost")


def test_a_broker_that_asks_to_wait_is_asked_again(endpoint: Endpoint) -> None:
    refusals = iter([answer(503, "Retry-After: 0\r\n", b'{"error": "not now", "code": "unavailable"}')] * 2)
    endpoint.answer = lambda _: next(refusals, answer(201, "", b'[{"id": "7", "state": "Q"}]'))
    with Client(base(endpoint)) as client:
        assert client.publish("q", "x").id == "7"


def test_a_broker_that_asks_to_wait_for_too_long_is_reported(endpoint: Endpoint) -> None:
    endpoint.answer = answer(503, "Retry-After: 60\r\n", b'{"error": "queues are full", "code": "queue_limit"}')
    with Client(base(endpoint), timeout=5) as client:
        with pytest.raises(errors.LimitReached, match="queues are full") as raised:
            client.publish("q", "x")
        assert (raised.value.retry_after, raised.value.code, raised.value.status) == (60, "queue_limit", 503)


def test_an_answer_that_never_comes_leaves_the_outcome_unknown(endpoint: Endpoint) -> None:
    endpoint.answer = _hang_up
    with Client(base(endpoint), timeout=0.5) as client:
        with pytest.raises(errors.Timeout, match="The outcome is unknown") as raised:
            client.publish("q", "x")
        assert raised.value.outcome_unknown
        assert isinstance(raised.value, TimeoutError)


def test_a_connection_that_has_gone_silent_is_replaced(endpoint: Endpoint) -> None:
    ending = threading.Event()

    def silent_at_first(pushed: Pushed) -> bytes:
        if pushed.connection == 1:
            ending.wait(20)
        return answer(201, "", b'[{"id": "7", "state": "Q"}]')

    endpoint.answer = silent_at_first
    with Client(base(endpoint)) as client:
        with pytest.raises(errors.Timeout):
            client.publish("q", "x", timeout=0.3)
        assert client.publish("q", "x").id == "7"
    ending.set()


def test_an_answer_of_something_else_is_named(endpoint: Endpoint) -> None:
    endpoint.answer = answer(200, "", b"<html>")
    with Client(base(endpoint)) as client, pytest.raises(errors.BrokerFailed, match="a Penstock broker"):
        client.queues.list()


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(errors.BadRequest, match="use http://HOST:PORT"):
        Client("localhost:7843")


def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, certificate = self_signed(tmp_path)
    with Endpoint(answer(200, "", b"green"), tls=context) as endpoint:
        url = f"https://127.0.0.1:{endpoint.port}"
        with Client(url) as client, pytest.raises(errors.Unavailable, match=r"is not trusted"):
            client.health()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Client(url) as client:
            assert client.health().color == "green"


def test_one_connection_carries_all_publishes_and_idle_ones_are_used_again(endpoint: Endpoint) -> None:
    endpoint.answer = lambda pushed: answer(201, "", b'[{"id": "1", "state": "Q"}]') if pushed.body else answer(200)
    with Client(base(endpoint)) as client:
        for _ in range(5):
            client.publish("q", "x")
            client.metrics()
    assert endpoint.connections == 2


def test_a_publish_that_is_cancelled_before_it_is_sent_is_not_sent(broker: Broker) -> None:
    async def publish() -> int:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("client-cancelled")
            tasks = [asyncio.create_task(client.publish("client-cancelled", str(number))) for number in range(10)]
            await asyncio.sleep(0)
            for task in tasks[5:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return (await client.queues.get("client-cancelled")).status.messages

    assert asyncio.run(publish()) == 5


def test_a_closed_client_says_so(broker: Broker) -> None:
    async def use() -> None:
        client = AsyncClient(broker.url)
        await client.close()
        with pytest.raises(errors.ClientError, match="is closed; make a new one"):
            await client.publish("q", "x")

    asyncio.run(use())


def _hang_up(_: Pushed) -> bytes:
    raise HangUp
