"""`penstock bench`: how fast is the broker at the other end, from here?"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.session import Session, verb

if TYPE_CHECKING:
    from penstock.client import AsyncClient

_FETCH = 500
_FETCHERS = 4


@verb
def bench(
    session: Session,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="How many messages.")] = 20_000,
    size: Annotated[int, typer.Option(min=0, max=1 << 20, help="Bytes of each message.")] = 100,
    publishers: Annotated[int, typer.Option(min=1, help="Publishes that wait for their answer at once.")] = 200,
) -> None:
    """Publish messages to a queue of its own, take and confirm them all, and remove the queue."""
    session.check_reachable()
    phases = asyncio.run(_measure(session, messages, "x" * size, publishers))
    if session.as_json:
        output.emit({"messages": messages, "size": size, "publishers": publishers, **phases})
        return
    rows = [(name, *figures.values()) for name, figures in phases.items()]
    output.table(("", "messages/s", "seconds", "half within ms", "99 % within ms"), rows)


async def _measure(session: Session, count: int, message: str, publishers: int) -> dict[str, dict[str, float]]:
    from penstock.client import AsyncClient

    queue = f"penstock-bench-{secrets.token_hex(4)}"
    async with AsyncClient(**session.target.options) as client:
        await client.queues.create(queue)
        try:
            published = await _timed(_publish(client, queue, message, share) for share in shares(count, publishers))
            consumed = await _timed(_consume(client, queue) for _ in range(_FETCHERS))
        finally:
            await client.queues.delete(queue)
    return {"publish": figures(count, *published), "consume": figures(count, *consumed)}


def shares(count: int, workers: int) -> list[int]:
    """The same work for all, as far as it can be divided."""
    each, more = divmod(count, workers)
    return [each + (at < more) for at in range(workers)]


async def _timed(work: Any) -> tuple[float, list[float]]:
    began = time.perf_counter()
    waits = await asyncio.gather(*work)
    return time.perf_counter() - began, sorted(wait for some in waits for wait in some)


async def _publish(client: AsyncClient, queue: str, message: str, count: int) -> list[float]:
    waits = []
    for _ in range(count):
        began = time.perf_counter()
        await client.publish(queue, message)
        waits.append(time.perf_counter() - began)
    return waits


async def _consume(client: AsyncClient, queue: str) -> list[float]:
    """Until the queue is empty. A wait is from one fetch to its confirmation."""
    waits: list[float] = []
    while True:
        began = time.perf_counter()
        messages = await client.receive(queue, _FETCH, wait=0)
        if not messages:
            return waits
        await client.confirm_many(messages)
        waits.append(time.perf_counter() - began)


def figures(count: int, seconds: float, waits: list[float]) -> dict[str, float]:
    """What is told about a phase. `waits` are sorted."""
    return {
        "rate": round(count / seconds),
        "seconds": round(seconds, 3),
        "p50_ms": round(waits[len(waits) // 2] * 1000, 3),
        "p99_ms": round(waits[len(waits) * 99 // 100] * 1000, 3),
    }
