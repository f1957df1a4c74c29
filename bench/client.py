"""What the Python client costs: durable publishes a second from one process, beside the raw HTTP load in one run.

`AsyncClient` is shared by tasks and `Client` by threads, each of which publishes one message after the other, so all
batches are those that the client makes. A publish alone is timed too: it must not wait for a batch to fill.
"""

import asyncio
import threading
import time
from pathlib import Path

import uvloop
from rich.progress import Progress

from bench.cores import on_load_core
from bench.driver import HOST
from bench.load import BODY, CONNECTIONS, QUEUE, publish_rate
from bench.penstock import broker
from penstock import AsyncClient, Client

MESSAGES = 300_000
TASKS = 2_000
THREADS = 128
ALONE = 1_000
WARM_SECONDS, SECONDS = 1.0, 4.0

Found = dict[str, float]


def client(progress: Progress, scratch: Path, messages: int) -> Found:
    task = progress.add_task("clients", total=5)
    found: Found = {"messages": messages}
    with broker(scratch) as penstock:
        penstock.make_queue(QUEUE)
        url = f"http://{HOST}:{penstock.port}"
        raw = on_load_core(publish_rate, penstock.port, CONNECTIONS, WARM_SECONDS, SECONDS)
        found["raw_http_per_second"] = raw.per_second
        progress.advance(task)
        found["async_client_per_second"] = on_load_core(async_rate, url, messages)
        progress.advance(task)
        found["async_client_uvloop_per_second"] = on_load_core(uvloop_rate, url, messages)
        progress.advance(task)
        found["client_threads_per_second"] = on_load_core(thread_rate, url, messages // 5)
        progress.advance(task)
        found["publish_alone_us"] = on_load_core(alone_us, url)
        progress.advance(task)
    return found


def async_rate(url: str, messages: int) -> float:
    return asyncio.run(_async_rate(url, messages))


def uvloop_rate(url: str, messages: int) -> float:
    return uvloop.run(_async_rate(url, messages))


async def _async_rate(url: str, messages: int) -> float:
    text = BODY.decode()

    async def work() -> None:
        for _ in range(messages // TASKS):
            await publisher.publish(QUEUE, text)

    async with AsyncClient(url) as publisher:
        started = time.perf_counter()
        await asyncio.gather(*[work() for _ in range(TASKS)])
        return messages // TASKS * TASKS / (time.perf_counter() - started)


def thread_rate(url: str, messages: int) -> float:
    text = BODY.decode()

    def work() -> None:
        for _ in range(messages // THREADS):
            publisher.publish(QUEUE, text)

    with Client(url) as publisher:
        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return messages // THREADS * THREADS / (time.perf_counter() - started)


def alone_us(url: str) -> float:
    text = BODY.decode()
    with Client(url) as publisher:
        started = time.perf_counter()
        for _ in range(ALONE):
            publisher.publish(QUEUE, text)
        return (time.perf_counter() - started) / ALONE * 1e6
