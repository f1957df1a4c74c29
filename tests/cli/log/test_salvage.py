"""Salvage: whatever is damaged, the new directory starts, and what is not there is reported as lost.

The tests damage a small log in every way at many places. What was acknowledged is known from the directory before it
was damaged: every message that was there is there afterwards, byte for byte, or in the report.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.broker.keyed_messages import batches
from penstock.cli.log.losses import Losses, Range
from penstock.cli.log.salvage import REPORT, salvage
from penstock.cli.log.state import examine
from penstock.engine.engine import Engine
from penstock.limits import SECOND_NS
from penstock.model.commands import CreateQueue, Draw, Fetch, NewMessage, Publish, PublishTopics, Pull
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import Severity
from penstock.storage.log.files import LogFiles
from penstock.storage.log.segments import SegmentLog
from tests.support.backups import Worked, living, worked
from tests.support.broker import StartBroker
from tests.support.command_line import penstock
from tests.support.effort import LONG
from tests.support.spoilt_logs import flipped, work

STRIDE = 7 if LONG else 811  # Bytes between two places of damage; no divisor of the sizes of headers and records.


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """In memory, where syncing costs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


class Known(NamedTuple):
    """What a directory held: bodies by queue number and sequence, and the last sequence of each queue."""

    bodies: dict[tuple[int, int], bytes]
    last: dict[int, int]


def fill(directory: Worked, *, first: bool) -> None:
    """Messages come and go in five queues, with names, copies, leases, dead letters and results."""
    engine, log = directory.engine, directory.log
    if first:
        directory.create("orders", "jobs", "copies")
        work(engine, log, CreateQueue("kept", QueueSettings(keep="all")))
        policy = RedrivePolicy(1, "jobs")
        work(engine, log, CreateQueue("poison", QueueSettings(redrive_policy=policy)))
    for number in range(6):
        directory.publish("kept", f"kept {number} {first}")
        directory.publish("poison", f"poison {number} {first}")
        work(engine, log, Pull("receiver", [Draw("kept", retries=1, fail_ns=SECOND_NS)]))
        work(engine, log, Pull("receiver", results=[("kept", engine.queues[4].last_sequence, b"result")]))
        work(engine, log, Fetch("poison", 1, consumer="worker"))
        directory.publish("orders", f"order {number} {first}")
        message = NewMessage(f"job {number} {first}".encode(), content_type=f"text/{number}", sender="me")
        work(directory.engine, directory.log, Publish("jobs", [message]))
        topics = NewMessage(f"topic {number} {first}".encode(), topics=("copies.a", "jobs.b"))
        work(directory.engine, directory.log, PublishTopics([topics], QueueSettings()))
        if number % 2:
            directory.finish("orders", 1)
        else:
            work(directory.engine, directory.log, Fetch("jobs", 1, lease_ns=SECOND_NS, consumer="worker"))


def make(path: Path, *, snapshot: bool) -> Known:
    with worked(path) as directory:
        fill(directory, first=True)
        if snapshot:
            directory.snapshot()
        fill(directory, first=False)
        return known(directory.engine, directory.log)


def known(engine: Engine, log: SegmentLog) -> Known:
    bodies = {}
    for number, queue in engine.queues.items():
        for sequence in living(engine, queue.name):
            row = queue.rows.get(sequence)
            assert row is not None
            bodies[number, sequence] = log.read(row.position, row.body_bytes)
    return Known(bodies, {number: queue.last_sequence for number, queue in engine.queues.items()})


def checked(data: Path, out: Path, before: Known) -> Losses:
    """Salvage a directory, and hold the result and the report to what there was."""
    losses = salvage(data, out, lambda _: None, lambda _: None)
    report, engine = examine(DataDirectory(out))
    assert report.severity is Severity.WHOLE, report.problems
    assert engine is not None
    with worked(out) as directory:
        after = known(directory.engine, directory.log)
        directory.create("new")
        directory.publish("new", "goes on")
    assert not after.bodies.items() - before.bodies.items() - came_back(after, before).items()
    for place, body in before.bodies.items():
        assert after.bodies.get(place) == body or is_reported(place, losses), (place, losses)
    for queue in losses.queues:
        back = [place for place in came_back(after, before) if place[0] == queue.number]
        assert len(back) <= queue.may_return, (back, queue)
        assert queue.messages == sum(number == queue.number for number, _ in after.bodies)
    assert json.loads((out / REPORT).read_bytes())["offset"] == losses.offset
    return losses


def came_back(after: Known, before: Known) -> dict[tuple[int, int], bytes]:
    """Messages that were finished."""
    return {
        (queue, sequence): body
        for (queue, sequence), body in after.bodies.items()
        if (queue, sequence) not in before.bodies and sequence <= before.last.get(queue, 0)
    }


def is_reported(place: tuple[int, int], losses: Losses) -> bool:
    queue = next((each for each in losses.queues if each.number == place[0]), None)
    if queue is None:
        return bool(losses.events)  # Nothing is left of the whole queue but the gap that it was in.
    return any(holds(each, place[1]) for each in queue.lost + queue.unknown)


def holds(each: Range, sequence: int) -> bool:
    first, last = each
    return first <= sequence and (last is None or sequence <= last)


# ── Damage ────────────────────────────────────────────────────────────────────────────────────────────────────

Spoilt = Iterator[tuple[str, Callable[[], object]]]


def flips(path: Path, stride: int = STRIDE) -> Spoilt:
    data = path.read_bytes()
    for at in range(0, used(data), stride):
        yield f"bit of byte {at}", lambda at=at: path.write_bytes(flipped(data, 8 * at + at % 8))  # type: ignore[misc]


def zeros(path: Path, stride: int = STRIDE) -> Spoilt:
    data = path.read_bytes()
    for at in range(0, used(data), 3 * stride):
        zeroed = data[:at] + bytes(len(data[at : at + 200])) + data[at + 200 :]
        yield f"200 zeros at {at}", lambda zeroed=zeroed: path.write_bytes(zeroed)  # type: ignore[misc]


def cuts(path: Path, stride: int = STRIDE) -> Spoilt:
    data = path.read_bytes()
    for at in range(0, used(data), 3 * stride):
        yield f"cut at {at}", lambda at=at: path.write_bytes(data[:at])  # type: ignore[misc]


def removal(path: Path) -> Spoilt:
    yield "removed", path.unlink


def other_name(path: Path) -> Spoilt:
    yield "renamed", lambda: path.rename(path.with_name("00000000000000099999.log"))


def used(data: bytes) -> int:
    """Without the reserved space at the end."""
    return len(data.rstrip(b"\0"))


KINDS = {"flips": flips, "zeros": zeros, "cuts": cuts, "removal": removal, "another name": other_name}


@pytest.mark.parametrize("snapshot", [False, True], ids=["without a snapshot", "with a snapshot"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_message_is_there_or_reported(kind: str, snapshot: bool, fast_path: Path) -> None:
    data, out = fast_path / f"{kind}-{snapshot}", fast_path / f"{kind}-{snapshot}-out"
    before = make(data, snapshot=snapshot)
    for path in sorted((data / "log").iterdir()):
        whole = path.read_bytes()
        for damage, spoil in KINDS[kind](path):
            spoil()
            try:
                checked(data, out, before)
            except AssertionError as error:
                raise AssertionError(f"{path.name}, {damage}") from error
            (data / "log" / "00000000000000099999.log").unlink(missing_ok=True)
            path.write_bytes(whole)
            shutil.rmtree(out)


def test_a_damaged_snapshot_is_replaced_by_the_log(fast_path: Path) -> None:
    data, out = fast_path / "snapshot", fast_path / "snapshot-out"
    before = make(data, snapshot=True)
    (path,) = (data / "snapshots").iterdir()
    whole = path.read_bytes()
    for damage, spoil in [*flips(path, 10 * STRIDE), *cuts(path, 10 * STRIDE), *removal(path)]:
        spoil()
        losses = checked(data, out, before)
        assert not any(queue.lost for queue in losses.queues), damage
        path.write_bytes(whole)
        shutil.rmtree(out)


def test_several_damages_at_once(fast_path: Path) -> None:
    data, out = fast_path / "several", fast_path / "several-out"
    before = make(data, snapshot=False)
    paths = sorted((data / "log").iterdir())
    wholes = [path.read_bytes() for path in paths]
    chance = random.Random(7)
    for _ in range(200 if LONG else 12):
        for path, whole in zip(chance.sample(paths, 3), wholes, strict=False):
            path.write_bytes(flipped(path.read_bytes(), 8 * chance.randrange(used(whole))))
        chance.choice(paths).unlink(missing_ok=True)
        checked(data, out, before)
        shutil.rmtree(out)
        for path, whole in zip(paths, wholes, strict=True):
            path.write_bytes(whole)


def test_without_an_identity_the_messages_are_there_under_other_ids(tmp_path: Path) -> None:
    before = make(tmp_path / "data", snapshot=True)
    (tmp_path / "data" / "penstock.json").write_text("{")
    losses = checked(tmp_path / "data", tmp_path / "out", before)
    assert any("message ids that were given out are not valid" in note for note in losses.notes)


def test_a_directory_that_is_whole_stays_whole(tmp_path: Path) -> None:
    before = make(tmp_path / "data", snapshot=True)
    losses = checked(tmp_path / "data", tmp_path / "out", before)
    assert (losses.events, [queue.lost for queue in losses.queues]) == ([], [[]] * 5)


def test_one_damaged_body_loses_one_message_and_no_other(tmp_path: Path) -> None:
    before = make(tmp_path / "data", snapshot=False)
    for path in (tmp_path / "data" / "log").iterdir():
        path.write_bytes(path.read_bytes().replace(b"order 4 False", b"order 4 fALSE"))
    losses = checked(tmp_path / "data", tmp_path / "out", before)
    assert {queue.name: queue.lost for queue in losses.queues} == {
        **{name: [] for name in ("jobs", "copies", "kept", "poison")},
        "orders": [(11, 11)],
    }
    assert not any(queue.unknown for queue in losses.queues), "later messages show that nothing else was there"


# ── As an operator uses it ────────────────────────────────────────────────────────────────────────────────────


def test_the_salvaged_broker_starts_green_and_has_the_object_history(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    with broker.connect() as connection:
        for key in range(40):
            message = {"topics": ["orders"], "object": "order", "key": str(key), "message": f"content {key}"}
            body = json.dumps(message).encode()
            assert connection.request("POST", "/v1/publish", {"Content-Type": "application/json"}, body).status == 201
    broker.kill()
    (segment,) = (broker.data / "log").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"content 17", b"content l7"))
    refused = penstock("log", "verify", str(broker.data))
    assert refused.returncode == 2
    ended = penstock("log", "salvage", str(broker.data), str(tmp_path / "out"))
    assert ended.returncode == 0, ended
    assert "Lost, unless they were finished before: sequences 18." in ended.stdout
    again = start_broker(data=tmp_path / "out")
    assert again.request("GET", "/health").body == b"green"
    states = []
    for key in (16, 17, 18):
        message = {"topics": ["orders"], "object": "order", "key": str(key), "message": f"content {key}"}
        body = json.dumps(message).encode()
        answer = again.request("POST", "/v1/publish", {"Content-Type": "application/json"}, body)
        states.append(answer.json()["state"])
    assert states == ["U", "Q", "U"], "what is lost can be published again"


def test_salvage_refuses_what_it_must_not_touch(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    in_use = penstock("log", "salvage", str(broker.data), str(tmp_path / "out"))
    assert in_use.returncode == 3
    assert f"is in use by process {broker.pid}" in in_use.stderr
    broker.stop()
    full = penstock("log", "salvage", str(broker.data), str(broker.data))
    assert full.returncode == 1
    assert "is not empty: nothing is overwritten" in full.stderr
    ended = penstock("log", "salvage", str(broker.data), str(tmp_path / "out"), "--json")
    assert json.loads(ended.stdout)["queues"] == []


def test_events_can_be_read_at_once_though_the_end_of_the_log_is_lost(fast_path: Path) -> None:
    with worked(fast_path / "data") as directory:
        directory.create("orders")
        directory.publish("orders", *("x" * 600 for _ in range(6)))
        directory.snapshot()
    max((fast_path / "data" / "log").iterdir()).unlink()
    losses = salvage(fast_path / "data", fast_path / "out", lambda _: None, lambda _: None)
    view = LogFiles(DataDirectory(fast_path / "out")).view()
    assert view.earliest().offset == losses.offset
    assert [header.base_offset for header, _ in batches(view)] == [*range(6), losses.offset]
