"""The tasks of the shop: paying, packing and writing to customers. Some of it fails, as in any shop."""

from __future__ import annotations

import asyncio
import random

from penstock.worker import App, Reject, current_job

app = App(name="shop")

_chance = random.Random(7)
_BANK_FAILS = 0.12  # Of all attempts; another attempt helps.
_MAIL_BOUNCES = 0.03


@app.task(
    queue="payments", max_attempts=4, retry_delay=1, retry_backoff="exponential", dead_letter_queue="payments-failed"
)
async def charge(order: int, cents: int, card: str) -> dict[str, int]:
    """A card that has expired fails each time, and ends among the dead letters."""
    await asyncio.sleep(_chance.uniform(0.005, 0.05))
    if card == "expired":
        raise RuntimeError("the card has expired")
    if _chance.random() < _BANK_FAILS:
        raise ConnectionError("the bank does not answer")
    return {"order": order, "cents": cents}


@app.task(queue="packing", max_attempts=6, lease=10)
async def pack(paid: dict[str, int], items: int) -> int:
    """The slowest step: at busy times parcels wait here."""
    for item in range(items):
        await asyncio.sleep(_chance.uniform(0.02, 0.12))
        current_job().progress((item + 1) / items, f"{item + 1} of {items} items")
    return paid["order"]


@app.task(queue="mail", max_attempts=3, retry_delay=5)
async def write(order: int, to: str) -> str:
    await asyncio.sleep(_chance.uniform(0.002, 0.02))
    if _chance.random() < _MAIL_BOUNCES:
        raise Reject(f"no such address: {to}")
    return f"order {order} is on its way to {to}"


@app.task(queue="reports", every=15)
async def report() -> str:
    await asyncio.sleep(0.2)
    return "written"


@app.task(queue="reports", schedule="0 2 * * *", time_zone="Europe/Berlin")
async def close_the_books() -> str:
    await asyncio.sleep(1)
    return "closed"
