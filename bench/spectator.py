"""What a spectator costs the publishers: `python -m bench spectator`.

A reader gets the whole Event Log as Arrow, alone and while publishers run at full rate. It decodes the events, on the
core of the publishers. Then how far behind readers of one queue of several shards are (`behind.py`).
"""

import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from rich.progress import Progress

from bench.behind import behind
from bench.cores import on_load_core
from bench.driver import HOST, SILENCE_SECONDS_MAX, StoppedError
from bench.load import CONNECTIONS, FILL_ROUND, QUEUE, fill, publish_rate
from bench.penstock import broker

Found = dict[str, float]

EVENTS = 5_000_000
EVENTS_PER_MESSAGE = 2  # L and Q.
WARM_SECONDS = 1.0
SECONDS = 4.0
SPARE_SECONDS = 1.0  # The reader starts before the publishers are measured, and stops after them.


def spectator(progress: Progress, scratch: Path, events: int) -> Found:
    messages = -(-events // EVENTS_PER_MESSAGE // FILL_ROUND) * FILL_ROUND
    with broker(scratch) as penstock:
        penstock.make_queue("past")
        penstock.make_queue(QUEUE)
        port = penstock.port
        task = progress.add_task("filling the log", total=None)
        on_load_core(fill, port, "past", messages)
        progress.update(task, description="a spectator alone")
        alone = on_load_core(replay_rate, port, events, 0.0)
        progress.update(task, description="publishers alone")
        before = on_load_core(publish_rate, port, CONNECTIONS, WARM_SECONDS, SECONDS)
        progress.update(task, description="both")
        with ThreadPoolExecutor(2) as both:
            least_seconds = WARM_SECONDS + SECONDS + SPARE_SECONDS
            reader = both.submit(on_load_core, replay_rate, port, events, least_seconds)
            publishers = both.submit(on_load_core, publish_rate, port, CONNECTIONS, WARM_SECONDS, SECONDS)
            beside, published = reader.result(), publishers.result()
        progress.update(task, description="publishers alone, again")
        after = on_load_core(publish_rate, port, CONNECTIONS, WARM_SECONDS, SECONDS)
        progress.remove_task(task)
    usual = (before.per_second + after.per_second) / 2
    return {
        "events": events,
        "alone_per_second": alone,
        "beside_publishers_per_second": beside,
        "publishers_alone_per_second": usual,
        "publishers_beside_per_second": published.per_second,
        "publishers_ratio": published.per_second / usual,
        **behind(progress, scratch),
    }


def replay_rate(port: int, events: int, least_seconds: float) -> float:
    """Events per second, over as many replays as fit into the time."""
    began = time.perf_counter()
    read = 0
    while not read or time.perf_counter() - began < least_seconds:
        read += replay(port, events)
    return read / (time.perf_counter() - began)


def replay(port: int, events: int) -> int:
    connection = http.client.HTTPConnection(HOST, port, timeout=SILENCE_SECONDS_MAX)
    try:
        accept = {"Accept": "application/vnd.apache.arrow.stream"}
        connection.request("GET", f"/v1/events?from=earliest&bodies=false&limit={events}", headers=accept)
        with pa.ipc.open_stream(pa.PythonFile(connection.getresponse(), "r")) as stream:
            read = sum(len(batch) for batch in stream)
    finally:
        connection.close()
    if read != events:
        raise StoppedError(f"{read} events came, not {events}")
    return read
