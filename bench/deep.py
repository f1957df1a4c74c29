"""How the broker behaves with very many messages: waiting, passing through, or delayed."""

import statistics
import time
from pathlib import Path

from rich.progress import Progress

from bench import machine
from bench.cores import on_load_core
from bench.driver import Count, StoppedError
from bench.load import CONNECTIONS, consume_rate, drain, fill, publish_rate
from bench.penstock import Broker, broker

Found = dict[str, float]

DEEP_MESSAGES = 10_000_000
CHURN_MESSAGES = 5_000_000
DELAYED_MESSAGES = 1_000_000
FILL_STEP = 500_000
CHURN_STEP = 100_000
WARM_SECONDS = 1.0
SECONDS = 3.0
RATE_ROUNDS = 5
IDLE_SECONDS = 10.0
DELAY_SECONDS = 3600
# How long the broker may take to free disk space after the last message is gone.
SETTLE_SECONDS = 20.0


def deep(progress: Progress, scratch: Path, messages: int) -> Found:
    """Compare a queue with ten million waiting messages with an empty one."""
    with broker(scratch) as penstock:
        penstock.make_queue("shallow")
        penstock.make_queue("deep")
        found = {"messages": messages} | _rates(penstock, "shallow")
        found["rss_empty_bytes"] = machine.resident_bytes(penstock.pid)
        found["fill_per_second"] = _fill(progress, penstock, "deep", messages)
        found["rss_full_bytes"] = machine.resident_bytes(penstock.pid)
        found["directory_bytes"] = machine.directory_bytes(penstock.directory)
        found |= _rates(penstock, "deep")
        for kind in ("publish", "receive_delete"):
            deep_rate, shallow_rate = found[f"deep_{kind}_per_second"], found[f"shallow_{kind}_per_second"]
            found[f"{kind}_deep_to_shallow"] = deep_rate / shallow_rate
        return found | _restarts(progress, penstock)


def _rates(penstock: Broker, queue: str) -> Found:
    """Medians and minima: a round in which a snapshot is written is slower than the others."""
    publish: list[float] = []
    consume: list[float] = []
    for _ in range(RATE_ROUNDS):
        for rate, found in ((publish_rate, publish), (consume_rate, consume)):
            count = _right(on_load_core(rate, penstock.port, CONNECTIONS, WARM_SECONDS, SECONDS, queue))
            found.append(count.per_second)
    return {
        f"{queue}_publish_per_second": statistics.median(publish),
        f"{queue}_publish_per_second_least": min(publish),
        f"{queue}_receive_delete_per_second": statistics.median(consume),
        f"{queue}_receive_delete_per_second_least": min(consume),
    }


def _restarts(progress: Progress, penstock: Broker) -> Found:
    """The time from the start of the process until it is healthy, after a clean stop and after a kill."""
    found: Found = {}
    expected = penstock.waiting("deep")
    # The kill comes first, so that the log since the last snapshot must be replayed. A clean stop writes a snapshot.
    for name, stop in (("killed", penstock.kill), ("clean", penstock.end)):
        task = progress.add_task(f"restart, {name}", total=None)
        stopping = time.monotonic()
        stop()
        starting = time.monotonic()
        penstock.start()
        found[f"stop_{name}_seconds"] = starting - stopping
        found[f"restart_{name}_seconds"] = time.monotonic() - starting
        found[f"rss_restarted_{name}_bytes"] = machine.resident_bytes(penstock.pid)
        progress.remove_task(task)
        if (waiting := penstock.waiting("deep")) != expected:
            raise StoppedError(f"{expected} messages before the restart ({name}), {waiting} after it")
    return found


def churn(progress: Progress, scratch: Path, messages: int) -> Found:
    """Publish and finish millions of messages, and measure how much stays on disk."""
    with broker(scratch, "--set", "log.retention_seconds=0") as penstock:
        penstock.make_queue("churn")
        task = progress.add_task("come and go", total=messages)
        largest, started = 0, time.monotonic()
        for _ in range(messages // CHURN_STEP):
            _right(on_load_core(fill, penstock.port, "churn", CHURN_STEP))
            _right(on_load_core(drain, penstock.port, "churn", CHURN_STEP))
            largest = max(largest, machine.directory_bytes(penstock.directory))
            progress.advance(task, CHURN_STEP)
        seconds = time.monotonic() - started
        at_end = machine.directory_bytes(penstock.directory)
        progress.update(task, description="waiting for disk space to be freed")
        time.sleep(SETTLE_SECONDS)
        return {
            "messages": messages,
            "left_in_queue": penstock.waiting("churn"),
            "messages_per_second": messages / seconds,
            "directory_largest_bytes": largest,
            "directory_at_end_bytes": at_end,
            f"directory_after_{SETTLE_SECONDS:.0f}_s_bytes": machine.directory_bytes(penstock.directory),
            "rss_bytes": machine.resident_bytes(penstock.pid),
        }


def delayed(progress: Progress, scratch: Path, messages: int) -> Found:
    """With a million delayed messages, measure the cost of one more publish and of an idle broker."""
    with broker(scratch) as penstock:
        penstock.make_queue("delayed", message_delay=DELAY_SECONDS)
        found: Found = {"messages": messages}
        found |= _adding(penstock, "empty")
        found["fill_per_second"] = _fill(progress, penstock, "delayed", messages)
        found |= _adding(penstock, "full")
        found["rss_bytes"] = machine.resident_bytes(penstock.pid)
        task = progress.add_task("idle", total=None)
        before = machine.cpu_seconds(penstock.pid)
        time.sleep(IDLE_SECONDS)
        found["idle_cpu_share"] = (machine.cpu_seconds(penstock.pid) - before) / IDLE_SECONDS
        progress.remove_task(task)
        return found


def _adding(penstock: Broker, name: str) -> Found:
    before = machine.cpu_seconds(penstock.pid)
    count = _right(on_load_core(publish_rate, penstock.port, CONNECTIONS, WARM_SECONDS, SECONDS, "delayed"))
    used = machine.cpu_seconds(penstock.pid) - before
    return {
        f"{name}_publish_per_second": count.per_second,
        f"{name}_cpu_microseconds_each": used / count.with_warm_up * 1e6,
    }


def _fill(progress: Progress, penstock: Broker, queue: str, messages: int) -> float:
    """Fill the queue in steps; return the rate, not counting the start of the load's processes."""
    task = progress.add_task(f"fill {queue}", total=messages)
    seconds = 0.0
    for done in range(0, messages, FILL_STEP):
        step = min(FILL_STEP, messages - done)
        seconds += _right(on_load_core(fill, penstock.port, queue, step)).seconds
        progress.advance(task, step)
    progress.remove_task(task)
    return messages / seconds


def _right(count: Count) -> Count:
    if count.errors:
        raise StoppedError(f"{count.errors} wrong answers, such as {count.complaint!r}")
    return count
