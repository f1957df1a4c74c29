"""What a scrape says of a broker that has done this and that, on a real log and a real socket."""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import __version__
from penstock.broker.figures.waits import Histogram
from penstock.broker.identities import Identities
from penstock.broker.metrics import Metrics
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.services.backups import Backups
from penstock.broker.services.history_writes import HistoryWrites
from penstock.broker.services.snapshots import Snapshots
from penstock.broker.shard_map import ShardMap
from penstock.broker.turns import Turns
from penstock.config.config import Config, HttpConfig, LinesConfig, LogConfig, TlsConfig
from penstock.config.quotas import QuotaConfig
from penstock.config.types import FileName
from penstock.dialects.etzel.codec import refusal
from penstock.dialects.etzel.conversation import Etzel
from penstock.dialects.wire.http import BodyRule, Headers, Request, Response
from penstock.ids import ID_KEY_BYTES, MessageIds
from penstock.limits import BODY_BYTES_UNASKED
from penstock.model.answers import Answer
from penstock.model.client import Client
from penstock.model.commands import Command, CreateQueue, Fetch, Finish, NewMessage, Publish
from penstock.model.metrics import FAMILIES, QUEUES_SHOWN_MAX
from penstock.model.metrics import Metrics as Scrape
from penstock.model.queries import Query
from penstock.model.settings import QueueSettings
from penstock.server.assembly import assemble
from penstock.server.exposition import exposition
from penstock.server.shard import FORMS
from penstock.shells.exchanges import Route
from penstock.shells.http_server import HttpServer
from penstock.shells.lines import LineServer
from penstock.shells.tls import Tls
from penstock.storage.directory import Identity
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.snapshot import snapshot_path
from penstock.storage.memory import MemoryLog
from tests.support.certificates import Pair
from tests.support.documented import metrics_table
from tests.support.live_loop import a_loop, ask

Scraped = dict[str, dict[tuple[str, ...], float]]


def to_the_end(steps: Generator[Any, Any, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def text_of(steps: Generator[Any, Any, Scrape]) -> str:
    return bytes(to_the_end(exposition(to_the_end(steps)))).decode()


def scrape(metrics: Metrics) -> Scraped:
    """The values by sample name, then by the values of the labels, sorted by label."""
    scraped: Scraped = {}
    for family in text_string_to_metric_families(text_of(metrics.scrape())):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            values = scraped.setdefault(sample.name, {})
            assert labels not in values, f"{sample.name}{labels} is there twice"
            values[labels] = sample.value
    return scraped


def test_a_queue_tells_its_traffic_its_oldest_message_and_its_idle_consumers(log: SegmentLog) -> None:
    async def story() -> Scraped:
        loop = a_loop(log)
        metrics = Metrics(loop)
        await ask(loop, CreateQueue("orders", QueueSettings()))
        await ask(loop, CreateQueue("idle", QueueSettings()))
        await ask(loop, CreateQueue("kept", QueueSettings(keep="all")))
        await ask(loop, Publish("kept", [NewMessage(b"x")]))
        await ask(loop, Publish("orders", [NewMessage(b"x")] * 5))
        delivered = await ask(loop, Fetch("orders", count=2))
        await ask(loop, Finish(delivered[0].queue, delivered[0].sequence))
        waiting = loop.submit(Fetch("idle", wait_ns=20_000_000_000), lambda _: None)
        loop.decide_collected()
        assert waiting is not None
        scraped = scrape(metrics)
        waiting.cancel()
        return scraped

    scraped = asyncio.run(story())
    assert scraped["penstock_queue_entered_total"] == {("orders",): 5, ("idle",): 0, ("kept",): 1}
    assert scraped["penstock_queue_left_total"] == {("orders",): 1, ("idle",): 0, ("kept",): 0}
    assert scraped["penstock_queue_waiting_receives"] == {("orders",): 0, ("idle",): 1, ("kept",): 0}
    assert scraped["penstock_queue_oldest_seconds"][("orders",)] > 0
    assert scraped["penstock_queue_oldest_seconds"][("idle",)] == 0
    assert scraped["penstock_queue_oldest_seconds"][("kept",)] == 0, "nobody has to consume it"


def test_events_and_messages_are_counted_where_they_are(log: SegmentLog) -> None:
    async def story() -> Scraped:
        loop = a_loop(log)
        metrics = Metrics(loop)
        await ask(loop, CreateQueue("orders", QueueSettings()))
        await ask(loop, CreateQueue('"odd"\\name', QueueSettings(delay_ns=3600_000_000_000)))
        await ask(loop, Publish("orders", [NewMessage(b"x")] * 5))
        await ask(loop, Publish('"odd"\\name', [NewMessage(b"x")]))
        delivered = await ask(loop, Fetch("orders", count=3))
        await ask(loop, Finish(delivered[0].queue, delivered[0].sequence))
        return scrape(metrics)

    scraped = asyncio.run(story())
    assert scraped["penstock_queues"] == {(): 2}
    assert scraped["penstock_queue_messages"] == {
        ("orders", "ready"): 2,
        ("orders", "leased"): 2,
        ("orders", "delayed"): 0,
        ("orders", "kept"): 0,
        ("orders", "damaged"): 0,
        ('"odd"\\name', "ready"): 0,
        ('"odd"\\name', "leased"): 0,
        ('"odd"\\name', "delayed"): 1,
        ('"odd"\\name', "kept"): 0,
        ('"odd"\\name', "damaged"): 0,
    }
    events = scraped["penstock_events_total"]
    assert {kind: events[kind,] for kind in ("queue_created", "logged", "fetched", "succeeded", "expired")} == {
        "queue_created": 2,
        "logged": 6,
        "fetched": 3,
        "succeeded": 1,
        "expired": 0,
    }
    assert scraped["penstock_commits_total"] == {(): 6}
    assert scraped["penstock_log_offset"] == {(): sum(events.values())}
    assert scraped["penstock_log_segments"] == {(): 1}
    assert 6 * 64 < scraped["penstock_log_bytes"][()] < 64 << 10
    assert scraped["penstock_log_collecting_bytes"] == {(): 0}


def test_waiting_clients_are_counted_until_they_have_their_message() -> None:
    async def story() -> list[float]:
        loop = a_loop(MemoryLog())
        metrics = Metrics(loop)
        await ask(loop, CreateQueue("quiet", QueueSettings()))
        waiting = asyncio.ensure_future(ask(loop, Fetch("quiet", wait_ns=20_000_000_000)))
        await asyncio.sleep(0)
        loop.decide_collected()
        seen = [scrape(metrics)["penstock_waiting_receives"][()]]
        await ask(loop, Publish("quiet", [NewMessage(b"x")]))
        assert [delivery.body for delivery in await waiting] == [b"x"]
        return [*seen, scrape(metrics)["penstock_waiting_receives"][()]]

    assert asyncio.run(story()) == [1, 0]


class Echo:
    """Answers every request with its body, and 404 to a request without one."""

    def refusal(self, headers: Headers) -> None:
        pass

    def head_refusal(self, request: Request) -> None:
        pass

    def failed(self, request: Request) -> Response:
        return Response(500)

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        return BodyRule(1 << 20)

    def route(self, request: Request) -> Route:
        return self.handle

    def handle(self, request: Request) -> Response:
        return Response(200 if request.body else 404, request.body, b"")

    def ask(self, client: Client, query: Query, reply: Callable[[Any], None], /) -> None:
        raise AssertionError("nothing here is a question")

    def submit(self, client: Client, command: Command, reply: Callable[[Answer], None]) -> None:
        raise AssertionError("there is nothing to be carried out")

    def decide_collected(self) -> None:
        raise AssertionError("there is nothing to be carried out")


def test_connections_and_responses_are_counted() -> None:
    async def story() -> list[Scraped]:
        metrics = Metrics(a_loop(MemoryLog()))
        http = HttpServer(Echo(), HttpConfig())
        metrics.parts.append(http)
        listener = await http.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        for request in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
        ) * 2:
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
        part = b"x" * (BODY_BYTES_UNASKED + 11)  # A little would not be counted.
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + part)
        while http.buffered_bytes < len(part):  # noqa: ASYNC110 - The server shares this event loop; each turn it reads on.
            await asyncio.sleep(0)
        seen = [scrape(metrics)]
        writer.close()
        while http.connections:  # noqa: ASYNC110 - As above.
            await asyncio.sleep(0)
        seen.append(scrape(metrics))
        listener.close()
        http.close()
        return seen

    open_, closed = asyncio.run(story())
    assert open_["penstock_http_connections"] == {(): 1}
    assert open_["penstock_http_buffered_bytes"] == {(): BODY_BYTES_UNASKED + 11}
    assert open_["penstock_http_responses_total"] == {("200",): 2, ("404",): 2}
    assert closed["penstock_http_connections"] == closed["penstock_http_buffered_bytes"] == {(): 0}


def test_a_snapshot_shows_its_age_and_size(log: SegmentLog) -> None:
    async def story() -> tuple[Scraped, Scraped]:
        loop = a_loop(log)
        metrics = Metrics(loop)
        snapshots = Snapshots(loop, LogConfig())
        metrics.parts += [snapshots, HistoryWrites(loop, ObjectHistory(log.directory.history))]
        await ask(loop, CreateQueue("orders", QueueSettings()))
        before = scrape(metrics)
        await snapshots.stop()
        snapshots._last_seconds = 0.25
        return before, scrape(metrics)

    before, after = asyncio.run(story())
    assert "penstock_snapshot_age_seconds" not in before
    assert "penstock_snapshot_bytes" not in before
    assert before["penstock_snapshot_seconds"] == {(): 0}
    assert after["penstock_snapshot_bytes"] == {
        (): snapshot_path(log.directory.snapshots, log.snapshots[0].offset).stat().st_size
    }
    assert 0 < after["penstock_snapshot_age_seconds"][()] < 60
    assert after["penstock_snapshot_seconds"] == {(): 0.25}


def test_a_log_that_cannot_be_written_is_not_healthy() -> None:
    async def story() -> list[float]:
        loop = a_loop(MemoryLog())
        metrics = Metrics(loop)
        seen = [scrape(metrics)["penstock_healthy"][()]]
        loop.commit.failure = "the log cannot be written: No space left on device"
        return [*seen, scrape(metrics)["penstock_healthy"][()]]

    assert asyncio.run(story()) == [1, 0]


@pytest.mark.parametrize("name", ["q1500", "(other)"])
def test_queues_beyond_the_limit_are_summed_up(name: str) -> None:
    queues = QUEUES_SHOWN_MAX + 10

    async def story() -> Scraped:
        loop = a_loop(MemoryLog())
        names = [name, *(f"q{number}" for number in range(queues - 1))]
        for queue in names:
            await ask(loop, CreateQueue(queue, QueueSettings()))
        for queue in (names[0], names[1], names[-1], names[-2]):
            await ask(loop, Publish(queue, [NewMessage(b"x")]))
        await ask(loop, Fetch(names[-1]))
        return scrape(Metrics(loop))

    scraped = asyncio.run(story())
    messages = scraped["penstock_queue_messages"]
    assert scraped["penstock_queues"] == {(): queues}
    assert sum(messages.values()) == 4
    assert messages["q0", "ready"] == 1
    assert messages["(other)", "ready"] == (2 if name == "(other)" else 1)
    assert messages["(other)", "leased"] == 1
    assert len(messages) == 5 * (QUEUES_SHOWN_MAX if name == "(other)" else QUEUES_SHOWN_MAX + 1)


def test_a_scrape_is_made_in_parts_of_what_was_read_at_its_start() -> None:
    async def story() -> str:
        loop = a_loop(MemoryLog())
        metrics = Metrics(loop)
        steps = metrics.scrape()
        next(steps)
        await ask(loop, CreateQueue("orders", QueueSettings()))
        metrics.commit_seconds.observe(1.0)
        return text_of(steps)

    text = asyncio.run(story())
    assert "\npenstock_queues 0.0\n" in text
    assert "\npenstock_commit_seconds_count 0.0\n" in text


def test_a_bucket_counts_what_took_at_most_its_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 0.3, 60.0):
        histogram.observe(seconds)
    text = to_the_end(exposition(Scrape({}, {"penstock_commit_seconds": [histogram.value()]}, [])))
    buckets = dict(re.findall(r'_bucket{le="(.*)"} (.*)', text.decode()))
    assert [buckets[bound] for bound in ("0.00025", "0.001", "0.0025", "0.5")] == ["1.0", "2.0", "3.0", "4.0"]
    assert (buckets["5.0"], buckets["+Inf"]) == ("4.0", "5.0")
    assert histogram.sum == pytest.approx(60.3021)


def test_commits_show_how_long_they_took() -> None:
    async def story() -> Scraped:
        metrics = Metrics(a_loop(MemoryLog()))
        metrics.commit_seconds.observe(0.5)
        return scrape(metrics)

    scraped = asyncio.run(story())
    assert scraped["penstock_commit_seconds_count"] == {(): 1}
    assert scraped["penstock_commit_seconds_sum"] == {(): 0.5}
    assert scraped["penstock_commit_seconds_bucket"]["0.25",] == 0
    assert scraped["penstock_commit_seconds_bucket"]["0.5",] == 1


def test_a_scrape_has_every_metric_with_its_help_and_the_process_too(log: SegmentLog, tmp_path: Path) -> None:
    async def story() -> str:
        loop = a_loop(log)
        metrics = Metrics(loop)
        metrics.parts += [HttpServer(Echo(), HttpConfig()), Quotas(QuotaConfig(), lambda _: True)]
        pair = Pair(tmp_path, "broker")
        metrics.parts.append(Tls(TlsConfig(certificate=FileName(pair.certificate), key=FileName(pair.key))))
        etzel = Etzel(MessageIds(bytes(ID_KEY_BYTES)), QueueSettings())
        metrics.parts.append(LineServer(loop, LinesConfig(), etzel.converse, refusal))
        snapshots = Snapshots(loop, LogConfig())
        history = HistoryWrites(loop, ObjectHistory(log.directory.history))
        identity = Identity(1, 0, bytes(ID_KEY_BYTES).hex())
        backups = partial(Backups, directory=log.directory, identity=identity, history=history)
        metrics.parts += [snapshots, history]
        services = assemble(loop, Config(), identity, Turns(), backups, Identities(()), FORMS)
        services.courier_source.connect(0, ShardMap(2))
        services.courier.connect({1: loop})
        metrics.parts += services
        await ask(loop, CreateQueue("orders", QueueSettings()))
        await snapshots.stop()
        return text_of(metrics.scrape())

    text = asyncio.run(story())
    shown = [line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP")]
    ours = [(name, words) for name, words in shown if name.startswith("penstock_")]
    of_shards = [(family.name, family.help) for family in FAMILIES if family.name != "penstock_shards_away"]
    assert ours == of_shards  # Only whoever asks all shards knows which are away.
    assert f'penstock_build_info{{version="{__version__}",python="{platform.python_version()}"}} 1.0' in text
    process = {name for name, _ in shown if name.startswith("process_")}
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"} <= process


def test_the_manual_lists_every_metric_as_it_is() -> None:
    manual = Path(__file__).parents[2] / "docs" / "operating.md"
    assert metrics_table() in manual.read_text("utf-8")
