"""How fast messages are found: `python -m bench.search`.

A queue has five million waiting messages with topics. The run measures how long the first page takes, by topic and by
topic prefix; how long a search takes that checks every message; how long other clients wait meanwhile; and how long
it takes to get the whole document of a message.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine, report
from bench.driver import HOST
from bench.penstock import Broker
from bench.servers import scratch_directory
from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS
from penstock.model.events import Event, LoggedRun, NameDefined, QueueCreated
from penstock.model.settings import QueueSettings
from penstock.storage.directory import DataDirectory
from penstock.storage.log.segments import SegmentLog

MESSAGES = 5_000_000
ROUNDS = 20
RUN = 500  # Messages logged at once, all with the same topics.
BODY = b'{"order": 17, "state": "new", "note": "' + b"x" * 160 + b'"}'
RARE_EVERY = 100  # One run in this many has the rare topic.
TOPICS = ("fruit.sweet", "fruit.sour", "fruit.sweet\nfood.healthy", "stone.hard", "wood")
RARE = "rare.earth"

SEARCHES = {
    "a beginning that most have": "topic=fruit.*",
    "a beginning that few have": "topic=rare.*",
    "a topic": "topic=food.healthy",
    "a beginning, far into the queue": "topic=fruit.*&since={late}",
    "no topic at all": "",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--scratch", type=machine.scratch, default=Path(__file__).parent / "scratch")
    asked = parser.parse_args()
    asked.scratch.mkdir(parents=True, exist_ok=True)
    with scratch_directory(asked.scratch) as folder:
        found = measure(folder, asked.messages)
        facts = {"machine": machine.facts(folder), "messages": asked.messages, **found}
    tell(found)
    name = "search" if asked.messages == MESSAGES else "search-partial"
    report.write_json(Path(__file__).parent / f"{name}.json", facts)


def measure(folder: Path, messages: int) -> dict[str, float]:
    late = prepare(folder / "data", messages)
    broker = Broker(folder)
    started = time.monotonic()
    broker.start()
    found = {"start_seconds": time.monotonic() - started}
    try:
        with_client = http.client.HTTPConnection(HOST, broker.port, timeout=60)
        for name, query in SEARCHES.items():
            target = f"/v1/search?queue=orders&{query.format(late=late)}"
            found |= first_pages(with_client, name, target)
        found |= long_search(with_client, broker, messages)
        seconds = look_through(with_client, "/v1/search?queue=orders&text=needle")[0]
        found["every message read, a second"] = messages / seconds
        found |= documents(with_client)
        found["rss_bytes"] = machine.resident_bytes(broker.pid)
    finally:
        broker.end()
    return found


def prepare(path: Path, messages: int) -> int:
    """Write the log that publishing would have written, and a snapshot. Return the time of the last tenth."""
    path.mkdir(parents=True)
    directory = DataDirectory(path)
    directory.open()
    log = SegmentLog(directory, segment_bytes=16 << 20)
    assert not list(log.recover().events)
    engine = Engine()
    now = time.time_ns()
    texts = [*TOPICS, RARE]
    events: list[Event] = [QueueCreated(now, 1, "orders", QueueSettings())]
    events += [NameDefined(now, number, text) for number, text in enumerate(texts, start=1)]
    for event in events:
        engine.evolve(event, log.append(event))
    late = 0
    for number in range(messages // RUN):
        topics = len(texts) if number % RARE_EVERY == RARE_EVERY - 1 else 1 + number % len(TOPICS)
        now += 1_000_000
        late = late or (now // 1_000_000_000 if number > messages // RUN * 9 // 10 else 0)
        first = engine.queues[1].last_sequence + 1
        run = LoggedRun(now, 1, first, now, NEVER_NS, 0, 0, 0, 0, topics, 0, [BODY] * RUN)
        engine.evolve(run, log.append(run))
        commit(log, now)
    log.write_snapshot(engine.sections(), log.appended, now)
    log.publish_snapshot(log.appended.offset)
    log.close()
    directory.close()
    return late


def commit(log: SegmentLog, now: int) -> None:
    done = threading.Event()
    log.commit(now, lambda stage: done.set() if stage == 2 else None)
    done.wait()


def ask(client: http.client.HTTPConnection, target: str) -> dict[str, Any]:
    client.request("GET", target)
    answer = client.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def first_pages(client: http.client.HTTPConnection, name: str, target: str) -> dict[str, float]:
    """The time of the first request, and the median of all."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        page = ask(client, target)
        while not page["messages"]:  # It reached its time limit and returned a cursor to continue.
            page = ask(client, f"{target}&cursor={page['next']}")
        times.append((time.perf_counter() - began) * 1000)
    return {f"{name}: first, ms": times[0], f"{name}: median, ms": statistics.median(times)}


def long_search(client: http.client.HTTPConnection, broker: Broker, messages: int) -> dict[str, float]:
    """Search all messages and find none, while another client sends other requests."""
    waits: list[float] = []
    over = threading.Event()

    def look_on() -> None:
        other = http.client.HTTPConnection(HOST, broker.port, timeout=60)
        while not over.is_set():
            began = time.perf_counter()
            other.request("GET", "/health")
            other.getresponse().read()
            waits.append((time.perf_counter() - began) * 1000)

    watcher = threading.Thread(target=look_on)
    watcher.start()
    seconds, pages = look_through(client, "/v1/search?queue=orders&state=leased,kept&bodies=false")
    over.set()
    watcher.join()
    waits.sort()
    return {
        "everything looked at, rows a second": messages / seconds,
        "everything looked at, pages": pages,
        "others wait meanwhile, median, ms": waits[len(waits) // 2],
        "others wait meanwhile, 99 %, ms": waits[len(waits) * 99 // 100],
        "others wait meanwhile, longest, ms": waits[-1],
    }


def look_through(client: http.client.HTTPConnection, target: str) -> tuple[float, int]:
    """Read all pages of a search; return the seconds it took and the number of pages."""
    began = time.perf_counter()
    page, pages = ask(client, target), 1
    while page["next"]:
        page, pages = ask(client, f"{target}&cursor={page['next']}"), pages + 1
    return time.perf_counter() - began, pages


def documents(client: http.client.HTTPConnection) -> dict[str, float]:
    """The document of one of the first messages, which reads the whole log; then those of others."""
    (first,) = ask(client, "/v1/search?queue=orders&limit=1&bodies=false")["messages"]
    began = time.perf_counter()
    ask(client, f"/v1/messages/{first['id']}")
    found = {"a document, the first one: ms": (time.perf_counter() - began) * 1000}
    times = []
    for message in ask(client, "/v1/search?queue=orders&limit=20&topic=rare.*&bodies=false")["messages"]:
        began = time.perf_counter()
        ask(client, f"/v1/messages/{message['id']}")
        times.append((time.perf_counter() - began) * 1000)
    return found | {"a document, later ones: median, ms": statistics.median(times)}


def tell(found: dict[str, float]) -> None:
    table = Table("what", "")
    for name, value in found.items():
        table.add_row(name, f"{value:,.1f}" if value < 1000 else f"{value:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
