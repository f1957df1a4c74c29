"""How fast the log is decoded to Arrow: `python -m bench.decode`.

The workload has complete lives of messages: a third of the records are publishes (L and Q), a third deliveries (F),
a third confirmations (S and X). An event is one row of the result, so a record with two letters counts twice. One
thread. The figure is the least CPU time of several runs, because other work on the machine only makes a run slower.
Each figure comes from a separate process.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.limits import NEVER_NS
from penstock.model.events import Event, Fetched, Logged, NameDefined, QueueCreated, Succeeded
from penstock.model.settings import QueueSettings
from penstock.storage.arrow.columns import FIXED_COLUMNS, decode, decode_grouped
from penstock.storage.arrow.names import Names
from penstock.storage.log.batch import HEADER_BYTES, Header, read_header
from penstock.storage.log.encode import Batch
from penstock.storage.log.segment import Segment, SegmentReader, open_segment, segment_path

MESSAGES = 30_000
RUNS = 5
ALONE_MAX = 500  # Batches decoded one by one; the rate does not depend on how many.
BODY_BYTES = 200
BEGIN_NS = 1_767_225_600_000_000_000
FEW = ("offset", "letter", "time", "queue", "sequence")

SIZES = (1, 100, 1000)
WANTED: dict[str, Sequence[str] | None] = {
    "5 fixed-width": FEW,
    f"all {len(FIXED_COLUMNS)} fixed-width": FIXED_COLUMNS,
    "the body alone": ("body",),
    "5 fixed-width and the body": (*FEW, "body"),
    "all": None,
}

Batches = list[tuple[Header, bytes]]
WORKLOADS: dict[int, Batches] = {}
SEGMENTS: dict[int, Segment] = {}


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table = Table(title=f"{MESSAGES:,} messages of {BODY_BYTES} bytes, M events/s, one core")
    table.add_column("columns")
    table.add_column("decoded")
    for size in SIZES:
        table.add_column(f"batches of {size}", justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            WORKLOADS[size] = sealed(size)
            SEGMENTS[size] = segment(Path(folder) / str(size), WORKLOADS[size])
        gc.freeze()
        for how, run in (("each alone", alone), ("grouped", grouped), ("grouped, from a file", from_file)):
            for label, columns in WANTED.items():
                table.add_row(label, how, *(f"{rate(partial(run, size, columns)):.2f}" for size in SIZES))
            table.add_section()
    Console(width=118).print(table)


def rate(run: Callable[[], int]) -> float:
    """M events/s, measured in a separate process: a warm allocator would speed up the next measurement."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, repr(best_of(run)).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        told = answer.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"a measurement ended with status {status}")
    return float(told)


def best_of(run: Callable[[], int]) -> float:
    best = float("inf")
    events = 0
    for _ in range(RUNS):
        gc.collect()
        begin = time.process_time()
        events = run()
        best = min(best, time.process_time() - begin)
    return events / best / 1e6


def alone(size: int, columns: Sequence[str] | None) -> int:
    names = Names()
    return sum(decode((batch,), columns, names).num_rows for batch in WORKLOADS[size][-ALONE_MAX:])


def grouped(size: int, columns: Sequence[str] | None) -> int:
    return sum(batch.num_rows for batch in decode_grouped(WORKLOADS[size], columns, Names()))


def from_file(size: int, columns: Sequence[str] | None) -> int:
    """Decode from a file, with a warm page cache and every CRC checked."""
    found = ((header, payload) for _, header, payload in SegmentReader(SEGMENTS[size]).batches())
    return sum(batch.num_rows for batch in decode_grouped(found, columns, Names()))


# ── The workload ──────────────────────────────────────────────────────────────────────────────────────────


def lives() -> Iterator[Event]:
    """Definitions, then messages. Each is fetched a thousand messages later, and finished a thousand after that."""
    yield QueueCreated(BEGIN_NS, 1, "orders", QueueSettings())
    for number, text in enumerate(("application/json", "shop", "worker"), start=1):
        yield NameDefined(BEGIN_NS, number, text)
    now = BEGIN_NS
    body = bytes(range(BODY_BYTES))
    for at in range(MESSAGES + 2000):
        now += 1000
        if at < MESSAGES:
            places = (1, at + 1, now, NEVER_NS, at % 3)
            yield Logged(now, *places, 1, 2, 0, 0, 0, b"", b"", b"", body)
        if 1000 <= at < MESSAGES + 1000:
            created = BEGIN_NS + (at - 999) * 1000
            yield Fetched(now + 1, 1, at - 999, created, 1, 3, visible_at=now + 30_000_000_000)
        if at >= 2000:
            created = BEGIN_NS + (at - 1999) * 1000
            yield Succeeded(now + 2, 1, at - 1999, created, 1, 3, complete=True, result=b"")


def sealed(size: int) -> Batches:
    batches: Batches = []
    batch = Batch(0, 0)
    for event in lives():
        batch.add(event)
        if batch.count == size:
            batches.append(split(batch.seal(event.time)))
            batch = Batch(*batch.end)
    if batch.count:
        batches.append(split(batch.seal(BEGIN_NS)))
    return batches


def split(data: bytes) -> tuple[Header, bytes]:
    header = read_header(data)
    assert header is not None
    return header, data[HEADER_BYTES:]


def segment(folder: Path, batches: Batches) -> Segment:
    folder.mkdir()
    path = segment_path(folder, 0)
    with path.open("wb") as file:
        file.write(Segment(path, 0, 0, 0, BEGIN_NS).header())
        batch = Batch(0, 0)
        for header, payload in batches:
            batch = Batch(header.base_offset, header.base_position)
            batch.heap += payload[: header.heap_bytes]
            batch.records += payload[header.heap_bytes :]
            batch.count = header.records
            file.write(batch.seal(header.time))
    return open_segment(path)


if __name__ == "__main__":
    main()
