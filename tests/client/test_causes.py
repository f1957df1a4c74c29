"""What is published because of another message says so, and nothing else does."""

from __future__ import annotations

import asyncio

from penstock.client import AsyncClient, Client, caused_by
from penstock.client.causes import HEADER
from tests.support.broker import Broker


def test_what_is_published_because_of_a_message_names_it(broker: Broker) -> None:
    broker.create_queue("causes-a")
    with Client(broker.url) as client:
        order = client.publish("causes-a", "order")
        with caused_by(order.id):
            parcel = client.publish("causes-a", "parcel", headers={"trace": "7f"})
            [many] = client.publish_many("causes-a", ["letter"])
            own = client.publish("causes-a", "own", headers={HEADER: "mine"})
        after = client.publish("causes-a", "after")
        headers = [client.message(sent.id).get("headers", {}) for sent in (order, parcel, many, own, after)]
    cause = {HEADER: order.id}
    assert headers == [{}, {**cause, "trace": "7f"}, cause, {HEADER: "mine"}, {}]


def test_tasks_beside_each_other_have_causes_of_their_own(broker: Broker) -> None:
    broker.create_queue("causes-b")

    async def publish(client: AsyncClient, cause: str) -> str:
        with caused_by(cause):
            await asyncio.sleep(0)
            sent = await client.publish("causes-b", cause)
        return str((await client.message(sent.id))["headers"][HEADER])

    async def story() -> list[str]:
        async with AsyncClient(broker.url) as client:
            return list(await asyncio.gather(*[publish(client, f"cause {number}") for number in range(5)]))

    assert asyncio.run(story()) == [f"cause {number}" for number in range(5)]
