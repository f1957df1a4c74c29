"""Everybody around the shop: customers who order, a price feed, a stock clerk who answers, an analyst who counts
orders and clicks, and a screen that shows the progress of parcels."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from penstock.client import AsyncClient
from penstock.demo import shop

_NAMES = ("ann", "bob", "cid", "dora", "eve", "fay", "gus", "hal")
_PAGES = ("/", "/apples", "/pears", "/cart", "/checkout")
_FRUIT = ("apple", "pear", "plum", "fig", "quince", "peach")
_EXPIRED = 0.01  # Of all cards.
_FEED_SECONDS = 2.0
_QUESTION_SECONDS = 1.0
_TIDE_SECONDS = 120.0  # From one rush of orders to the next.


@dataclass
class Street:
    """What goes on until it is cancelled. `rate`: orders a second, on average."""

    client: AsyncClient
    rate: float
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    orders: int = 0

    async def run(self) -> None:
        await self._prepare()
        async with asyncio.TaskGroup() as group:
            for life in (self._order, self._browse, self._feed, self._ask, self._answer):
                group.create_task(life())
            for queue in ("price-watch", "prices", "orders", "clicks", shop.app.broker.progress_queue):
                group.create_task(self._take(queue, 0.01))
            group.create_task(self._take("analytics", 0.5 / self.rate))

    async def _prepare(self) -> None:
        await shop.app.broker.create_progress_queue()
        for queue in ("stock", "orders", "clicks"):
            await self.client.queues.create(queue, lease=10)
        await self.client.queues.create("prices", lease=10, detect_unchanged=True)
        await self.client.channels.create("price-watch", ["prices.*"])
        await self.client.channels.create("analytics", ["orders.*"])

    async def _order(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            busy = 1 + (loop.time() % _TIDE_SECONDS < _TIDE_SECONDS / 4) * 2  # A rush: three times as many.
            await asyncio.sleep(self.chance.expovariate(self.rate * busy))
            self.orders += 1
            number, name = self.orders, self.chance.choice(_NAMES)
            items, cents = self.chance.randint(1, 4), self.chance.randint(100, 9999)
            card = "expired" if self.chance.random() < _EXPIRED else "valid"
            chain = shop.charge.then(shop.pack, items).then(shop.write, f"{name}@example.com")
            await chain.a.send(number, cents, card)
            placed = {"order": number, "customer": name, "items": items, "cents": cents}
            await self.client.publish_to("orders.placed", placed, sender="web")
            if self.chance.random() < 0.1:
                remind = shop.write.with_options(delay=self.chance.randint(60, 3600))
                await remind.a.send(number, f"{name}@example.com")

    async def _browse(self) -> None:
        while True:
            await asyncio.sleep(1 / self.rate)
            await self.client.publish_to("clicks.page", {"page": self.chance.choice(_PAGES)}, expires=3600)

    async def _feed(self) -> None:
        """All prices, again and again; most have not changed."""
        prices = dict.fromkeys(_FRUIT, 100)
        while True:
            fruit = self.chance.choice(_FRUIT)
            prices[fruit] += self.chance.randint(-5, 5)
            for name, price in prices.items():
                await self.client.publish_to("prices.fruit", {"price": price}, key=name)
            await asyncio.sleep(_FEED_SECONDS)

    async def _take(self, queue: str, seconds: float) -> None:
        async for _ in self.client.consume(queue, prefetch=4):
            await asyncio.sleep(seconds)

    async def _ask(self) -> None:
        """A question through a queue, and its answer."""
        while True:
            await asyncio.sleep(_QUESTION_SECONDS)
            question = await self.client.publish("stock", self.chance.choice(_FRUIT), expires=30)
            await question.result(timeout=30)

    async def _answer(self) -> None:
        async for question in self.client.consume("stock"):
            await question.confirm({"fruit": question.text, "left": self.chance.randint(0, 500)})
