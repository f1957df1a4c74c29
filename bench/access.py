"""What authorisation costs: publishes without tokens, and with a scoped token of 10,000: `python -m bench access`.

Both brokers run all the time and take turns. The server's processor time for one message depends less on what else
runs on the machine than rates do.
"""

import asyncio
import statistics
from collections import defaultdict
from pathlib import Path

from rich.progress import Progress

from bench import machine
from bench.cores import on_load_core
from bench.driver import Count, closed_loop
from bench.load import BODY, CONNECTIONS, QUEUE, Publish, request
from bench.penstock import Broker, broker
from penstock import AsyncClient

ROUNDS = 7
TOKENS = 10_000
AT_ONCE = 200
WARM_SECONDS, SECONDS = 0.5, 2.0

Found = dict[str, float]


def access(progress: Progress, scratch: Path, rounds: int) -> Found:
    samples: dict[str, list[float]] = defaultdict(list)
    task = progress.add_task("access", total=2 * rounds)
    with broker(scratch) as plain, broker(scratch) as guarded:
        for each in (plain, guarded):
            each.make_queue(QUEUE)
        token = asyncio.run(_make_tokens(f"http://127.0.0.1:{guarded.port}"))
        for _ in range(rounds):
            for name, server, secret in (("anonymous", plain, ""), ("token", guarded, token)):
                _measure(samples, name, server, secret)
                progress.advance(task)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    cost = medians["token_microseconds_per_message"] / medians["anonymous_microseconds_per_message"]
    rate = medians["token_messages_per_second"] / medians["anonymous_messages_per_second"]
    return {"rounds": rounds, "tokens": TOKENS} | medians | {"cost_of_a_token": cost, "rate_with_a_token": rate}


def _measure(samples: dict[str, list[float]], name: str, server: Broker, token: str) -> None:
    before = machine.cpu_seconds(server.pid)
    count = on_load_core(publish_rate, server.port, token)
    used = machine.cpu_seconds(server.pid) - before
    assert not count.errors, count.complaint
    samples[f"{name}_messages_per_second"].append(count.per_second)
    samples[f"{name}_microseconds_per_message"].append(used / count.with_warm_up * 1e6)


async def _make_tokens(url: str) -> str:
    """As many tokens as there shall be; the secret of one that may publish to one queue."""
    async with AsyncClient(url) as anonymous:
        boss = await anonymous.tokens.create("boss", ["admin"])
    async with AsyncClient(url, token=boss.token) as client:
        for first in range(0, TOKENS - 2, AT_ONCE):
            names = [f"token-{number}" for number in range(first, min(first + AT_ONCE, TOKENS - 2))]
            await asyncio.gather(*[client.tokens.create(name, [f"publish,consume:{name}*"]) for name in names])
        return (await client.tokens.create("publisher", [f"publish:{QUEUE}*", "read:reports"])).token


# On the core of the load


def publish_rate(port: int, token: str) -> Count:
    headers = {"Content-Type": "application/octet-stream"} | ({"Authorization": f"Bearer {token}"} if token else {})
    post = request("POST", f"/messages/{QUEUE}", BODY, headers)
    return closed_loop(port, [Publish(post) for _ in range(CONNECTIONS)], warm_seconds=WARM_SECONDS, seconds=SECONDS)
