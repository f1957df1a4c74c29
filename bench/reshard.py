"""How long it takes to move a store to several shards: `python -m bench reshard`.

All messages wait, 200 bytes each, in 1,000 queues. There is no snapshot, so everything is replayed: the worst case.
"""

import shutil
import time
from pathlib import Path
from threading import Event

from rich.progress import Progress

from bench.servers import scratch_directory
from penstock.cli.reshard.making import reshard
from penstock.engine.engine import Engine
from penstock.model.commands import CreateQueue, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from penstock.storage import open_log
from penstock.storage.backup.making import Progress as Counted
from penstock.storage.directory import DataDirectory
from penstock.storage.port import Log

QUEUES = 1000
MESSAGES = 1_000_000
SHARDS = (2, 8, 64)
_BODY = b"x" * 200
_AT_ONCE = 100
_BATCH_BYTES = 4 << 20

Found = dict[str, float]


def moving(progress: Progress, scratch: Path, messages: int) -> Found:
    task = progress.add_task("reshard", total=1 + len(SHARDS))
    with scratch_directory(scratch) as directory:
        source, target = directory / "one", directory / "several"
        fill(source, messages)
        progress.advance(task)
        found: Found = {"messages": messages, "queues": QUEUES, "log_bytes": _bytes(source)}
        for shards in SHARDS:
            began, used = time.perf_counter(), time.process_time()
            reshard(source, shards, target, Counted())
            found[f"to_{shards}_shards_seconds"] = time.perf_counter() - began
            found[f"to_{shards}_shards_processor_seconds"] = time.process_time() - used
            shutil.rmtree(target)
            progress.advance(task)
    return found


def fill(path: Path, messages: int) -> None:
    directory, engine = DataDirectory(path), Engine()
    directory.open()
    log, now = open_log(directory, segment_bytes=64 << 20), time.time_ns()
    list(log.recover().events)
    names = [f"queue-{number}" for number in range(QUEUES)]
    creates = [CreateQueue(name, QueueSettings()) for name in names]
    publishes = [Publish(names[at % QUEUES], [NewMessage(_BODY)] * _AT_ONCE) for at in range(messages // _AT_ONCE)]
    for at, command in enumerate([*creates, *publishes]):
        for event in engine.decide(command, now=now + at).events:
            engine.evolve(event, log.append(event))
        if log.collecting > _BATCH_BYTES:
            _commit(log, now)
    _commit(log, now)
    log.close()
    directory.close()


def _commit(log: Log, now: int) -> None:
    ended = Event()
    log.commit(now, lambda stage: None if stage is Stage.WRITE else ended.set())
    ended.wait()


def _bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in (path / "log").iterdir())
