"""What a program does wrong is an error of the client, in words that name it."""

from __future__ import annotations

import asyncio
from typing import TypedDict

import msgspec
import pytest

from penstock import AsyncClient, Client
from penstock.client.errors import BadRequest, ClientError, OfAnotherType, TooLarge
from tests.support.broker import Broker


class Order(TypedDict):
    id: int


@pytest.mark.parametrize("url", ["http://host:99999", "http://host:port", "http://[::1", "host:7843", "http://", "x"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(BadRequest, match=r"not the address of a broker: .*; use http://HOST:PORT"):
        Client(url)


def test_a_message_of_another_type_is_an_error_of_the_client_and_of_the_decoder(broker: Broker) -> None:
    with Client(broker.url) as client:
        client.queues.create("mistakes-type")
        client.publish_many("mistakes-type", [{"id": "x"}, "no json"])
        first, second = client.receive("mistakes-type", 2)
        with pytest.raises(
            OfAnotherType, match=r"Message\(id=.*\) is no JSON of the type Order: Expected `int`"
        ) as told:
            first.decode(Order)
        assert isinstance(told.value, ClientError)
        assert isinstance(told.value, msgspec.ValidationError)
        with pytest.raises(OfAnotherType, match="is no JSON: "):
            second.json()


def test_a_message_that_is_a_byte_too_long_is_too_large(broker: Broker) -> None:
    with Client(broker.url) as client:
        client.queues.create("mistakes-size")
        with pytest.raises(TooLarge, match="a message has at most 1048576 bytes, got 1048577"):
            client.publish("mistakes-size", "x" * ((1 << 20) + 1))


def test_a_client_of_one_event_loop_is_refused_to_another(broker: Broker) -> None:
    async def use(client: AsyncClient) -> None:
        await client.health()

    async def run() -> None:
        async with AsyncClient(broker.url) as client:
            await use(client)
            with pytest.raises(ClientError, match="belongs to another event loop; make one in each"):
                await asyncio.to_thread(asyncio.run, use(client))
            await use(client)

    asyncio.run(run())


def test_a_publish_to_nowhere_makes_no_queue(broker: Broker) -> None:
    with Client(broker.url) as client:
        with pytest.raises(TypeError, match="publish needs the name of a queue; publish_to publishes to topics"):
            client.publish(None, "x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="publish_many needs the name of a queue"):
            client.publish_many(None, ["x"])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="publish_to needs a topic"):
            client.publish_to([], "x")
        with pytest.raises(TypeError, match="publish_to needs a topic"):
            client.publish_many_to([], ["x"])
