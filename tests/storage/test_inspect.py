"""Looking at a data directory from outside: `penstock log inspect` and `penstock log verify`."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from crc32c import crc32c
from typer.testing import CliRunner, Result

from penstock.cli.log import app
from penstock.engine.engine import Engine
from penstock.errors import DataDirectoryError
from penstock.limits import NEVER_NS
from penstock.model.events import Event, Fetched, HandedOver, Logged, QueueCreated, Staged
from penstock.model.settings import QueueSettings
from penstock.storage.directory import DataDirectory, Identity, write_durably
from penstock.storage.inspect import Severity, holder, scan
from penstock.storage.log.batch import HEADER_BYTES, Point
from penstock.storage.log.encode import Batch
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, Segment, SegmentReader, open_segment, segment_path
from penstock.storage.log.snapshot import publish_snapshot, write_snapshot
from tests.storage.golden.make import BODY, HERE, ID_KEY

FIRST = "00000000000000000000.log"
LAST = "00000000000000000027.log"
SNAPSHOT = "00000000000000000023.snapshot"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of the golden directory: two segments, a snapshot after the third of four batches of the first."""
    return Path(shutil.copytree(HERE / "format-1", tmp_path / "data"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def starts_of_batches(path: Path) -> list[int]:
    return [found.file_offset for found in SegmentReader(open_segment(path)).batches()]


def change(path: Path, at: int, change: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= change
    path.write_bytes(data)


# ── Made by hand: a segment for each list of events, a batch for each event ───────────────────────────────


def make_log(path: Path, segments: Iterable[list[Event]], *, snapshot: bool = False) -> DataDirectory:
    directory = DataDirectory(path)
    for folder in (directory.log, directory.snapshots):
        folder.mkdir(parents=True)
    write_durably(path / "penstock.json", b'{"format": 1, "shard": 0, "id_key": "%b"}' % (b"00" * 16))
    engine = Engine()
    offset = position = 0
    for events in segments:
        target = segment_path(directory.log, offset)
        data = Segment(target, 0, offset, position, 1).header()
        for event in events:
            batch = Batch(offset, position)
            engine.evolve(event, batch.add(event)) if snapshot else batch.add(event)
            data += batch.seal(event.time)
            offset, position = offset + 1, batch.end.position
        target.write_bytes(data)
    if snapshot:
        write_snapshot(directory.snapshots, engine.sections(), Point(offset, position), 1)
        publish_snapshot(directory.snapshots, offset)
    return directory


def logged(sequence: int) -> Logged:
    return Logged(sequence, 1, sequence, sequence, NEVER_NS, 0, 0, 0, 0, 0, 0, b"", b"", b"", b"body")


CREATED = QueueCreated(0, 1, "orders", QueueSettings())


# ── Whole ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_directory_is_told_in_numbers(data: Path) -> None:
    report = scan(DataDirectory(data))
    assert report.severity is Severity.WHOLE
    assert report.held_by is None
    assert [(segment.first_offset, segment.next_offset) for segment in report.segments] == [(0, 27), (27, 34)]
    assert [segment.batches for segment in report.segments] == [4, 2]
    assert report.segments[1].letters == {"L": 2, "Q": 2, "D": 2}
    assert [segment.bytes_used for segment in report.segments] == [
        (data / "log" / name).stat().st_size for name in (FIRST, LAST)
    ]
    assert report.covered == 23


def test_verify_says_whole_and_exits_with_0(data: Path) -> None:
    result = run("verify", data)
    assert result.exit_code == 0
    assert "whole: 2 segments, 1 snapshots, 39 events" in result.stdout


def test_reserved_room_is_not_torn(data: Path) -> None:
    with (data / "log" / LAST).open("ab") as file:
        file.truncate(64 << 10)
    report = scan(DataDirectory(data))
    assert report.severity is Severity.WHOLE
    assert report.segments[1].bytes_used < report.segments[1].bytes_reserved == 64 << 10


def test_looking_changes_nothing(data: Path) -> None:
    change(data / "log" / LAST, -1)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in data.rglob("*") if path.is_file()}
    for arguments in (("inspect",), ("inspect", "--json"), ("inspect", "--events"), ("verify",)):
        run(*arguments, data)
    assert {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in data.rglob("*") if path.is_file()
    } == before


def test_the_key_of_message_ids_is_never_shown(data: Path) -> None:
    for arguments in (("inspect",), ("inspect", "--json"), ("inspect", "--events"), ("verify",)):
        assert ID_KEY.hex() not in run(*arguments, data).output


def test_progress_is_told_of_every_byte(data: Path) -> None:
    told: list[int] = []
    scan(DataDirectory(data), told.append)
    assert sum(told) == sum(path.stat().st_size for path in data.rglob("0*"))


def test_an_empty_directory_is_whole(tmp_path: Path) -> None:
    make_log(tmp_path / "data", [])
    assert run("verify", tmp_path / "data").exit_code == 0


# ── Torn ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kept", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 200])
def test_a_last_batch_that_was_not_finished_is_a_torn_tail(data: Path, kept: int) -> None:
    path = data / "log" / LAST
    start = starts_of_batches(path)[-1]
    path.write_bytes(path.read_bytes()[: start + kept])
    result = run("verify", data)
    assert result.exit_code == 1
    assert f"{LAST}, byte {start}: torn tail" in result.stdout
    assert "the next start cuts it off" in result.stdout


def test_a_segment_that_was_being_made_is_torn(data: Path) -> None:
    segment_path(data / "log", 34).write_bytes(bytes(4096))
    assert run("verify", data).exit_code == 1


# ── Damaged ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flipped_bit_in_the_middle_is_named_with_file_byte_and_offsets(data: Path) -> None:
    path = data / "log" / FIRST
    second = starts_of_batches(path)[1]
    change(path, second + HEADER_BYTES)
    result = run("verify", data)
    assert result.exit_code == 2
    assert f"{FIRST}, byte {second}: events 6 to 14 cannot be read" in result.stdout
    assert "damaged: offsets lost: 6 to 14. A broker can start, and sets damaged messages aside" in result.stdout
    assert "queue orders: messages whose bytes are damaged: 1" in result.stdout


def test_damage_that_has_to_be_replayed_stops_a_start(data: Path) -> None:
    path = data / "log" / FIRST
    fourth = starts_of_batches(path)[3]
    change(path, fourth + HEADER_BYTES)
    result = run("verify", data)
    assert result.exit_code == 2
    assert f"{FIRST}, byte {fourth}: events 23 to 26 cannot be read" in result.stdout
    assert "A broker can start" not in result.stdout


def test_a_damaged_header_of_a_segment_that_a_snapshot_covers_does_not_stop_a_start(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data", [[CREATED, logged(1)], [logged(2)]], snapshot=True)
    change(min(directory.log.iterdir()), 20)
    result = run("verify", tmp_path / "data")
    assert result.exit_code == 2
    assert "the segment header is damaged; a broker starts without it" in result.stdout
    assert "whose bytes are damaged" not in result.stdout


@pytest.mark.parametrize("name", [f"log/{FIRST}", f"snapshots/{SNAPSHOT}"])
def test_no_flipped_bit_of_an_older_file_goes_unseen(data: Path, name: str) -> None:
    directory, path = DataDirectory(data), data / name
    for at in range(0, path.stat().st_size, 7):
        change(path, at)
        report = scan(directory)
        assert report.severity is Severity.DAMAGED, at
        assert any(problem.path == str(path) for problem in report.problems)
        change(path, at)


def test_the_end_of_an_older_segment_is_not_a_tail(data: Path) -> None:
    path = data / "log" / FIRST
    start = starts_of_batches(path)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    result = run("verify", data)
    assert result.exit_code == 2
    assert f"byte {start}: events 23 to 26 cannot be read" in result.stdout


def test_a_log_that_ends_before_its_snapshot_is_damaged(data: Path) -> None:
    (data / "log" / LAST).unlink()
    path = data / "log" / FIRST
    path.write_bytes(path.read_bytes()[: starts_of_batches(path)[2]])
    result = run("verify", data)
    assert result.exit_code == 2
    assert "events 15 to 22 are missing: the log ends before its snapshot" in result.stdout


def test_a_missing_segment_that_no_snapshot_covers_is_damage(data: Path) -> None:
    (data / "log" / FIRST).unlink()
    result = run("verify", data)
    assert result.exit_code == 2
    assert "events 0 to 26 are missing before this segment: no whole snapshot covers them" in result.stdout


def test_a_segment_of_another_log_does_not_follow(data: Path) -> None:
    last = open_segment(data / "log" / LAST)
    moved = last._replace(base_position=last.base_position + 1)
    last.path.write_bytes(moved.header() + last.path.read_bytes()[SEGMENT_HEADER_BYTES:])
    assert scan(DataDirectory(data)).severity is Severity.DAMAGED


def test_an_event_that_cannot_have_happened_is_damage(tmp_path: Path) -> None:
    make_log(tmp_path / "data", [[CREATED, logged(1), Fetched(5, 1, 9, 1, 1, 0, visible_at=9)]])
    result = run("verify", tmp_path / "data")
    assert result.exit_code == 2
    assert "event 2 cannot be applied" in result.stdout


def test_records_that_do_not_fit_their_heap_are_damage_though_the_sum_is_right(tmp_path: Path) -> None:
    make_log(tmp_path / "data", [[CREATED, logged(1)]])
    path = segment_path(tmp_path / "data" / "log", 0)
    start = starts_of_batches(path)[1]
    data = bytearray(path.read_bytes())
    data[-8] += 1  # The length of the body.
    data[start + 40 : start + 44] = crc32c(data[start + HEADER_BYTES :]).to_bytes(4, "little")
    data[start + 60 : start + 64] = crc32c(data[start : start + 60]).to_bytes(4, "little")
    path.write_bytes(data)
    result = run("verify", tmp_path / "data")
    assert result.exit_code == 2
    assert "its heap has 4 bytes, but its records add up to 5" in result.stdout


def test_a_directory_without_identity_cannot_be_verified(data: Path) -> None:
    (data / "penstock.json").unlink()
    assert run("verify", data).exit_code == 2
    with pytest.raises(DataDirectoryError):
        scan(DataDirectory(data))


# ── Holes ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hole_that_a_snapshot_covers_is_whole(tmp_path: Path) -> None:
    segments: list[list[Event]] = [[CREATED], [logged(1), HandedOver(2, 1, 1, 1, 1, 0)], [logged(2)]]
    directory = make_log(tmp_path / "data", segments, snapshot=True)
    segment_path(directory.log, 1).unlink()
    report = scan(directory)
    assert report.severity is Severity.WHOLE
    assert report.holes == [(1, 2)]
    assert run("verify", directory.path).exit_code == 0
    assert "Events 1 to 2 were removed by compaction." in run("inspect", directory.path).stdout


def test_a_hole_where_a_living_message_was_is_damage(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data", [[CREATED], [logged(1)], [logged(2)]], snapshot=True)
    segment_path(directory.log, 1).unlink()
    result = run("verify", directory.path)
    assert result.exit_code == 2
    assert "queue orders: the bytes of 1 messages are in no segment, first 1" in result.stdout


def test_a_hole_where_staged_rows_were_is_damage(tmp_path: Path) -> None:
    staged = Staged(5, "query", 0, "part", 0, 1, 100, b"rows")
    directory = make_log(tmp_path / "data", [[CREATED], [staged], [logged(1)]], snapshot=True)
    assert run("verify", directory.path).exit_code == 0
    segment_path(directory.log, 1).unlink()
    result = run("verify", directory.path)
    assert result.exit_code == 2
    assert "1 chunks of staged rows are in no segment" in result.stdout


# ── In use ────────────────────────────────────────────────────────────────────────────────────────────────

HOLD = """
import sys
from pathlib import Path
from penstock.storage.directory import DataDirectory
directory = DataDirectory(Path(sys.argv[1]))
directory.open()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_that_a_broker_serves_is_read_all_the_same_and_said_to_move(data: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        assert holder(data) == process.pid
        result = run("verify", data)
        assert result.exit_code == 0
        assert f"Process {process.pid} serves this directory" in result.stdout
        assert f"Process {process.pid} serves this directory" in run("inspect", data).stdout
        assert holder(data) == process.pid  # Nobody took it away.
        process.communicate("")
    assert holder(data) is None


# ── Inspect ───────────────────────────────────────────────────────────────────────────────────────────────


def test_inspect_shows_queues_segments_and_snapshots(data: Path) -> None:
    (data / "snapshots" / "00000000000000000030.tmp").write_bytes(b"")
    shown = run("inspect", data).stdout
    assert "format 1, shard 0" in shown
    assert "orders" in shown
    assert "deduplication True, keep all" in shown
    assert "0-26" in shown
    assert "2026-01-01 00:00:00" in shown
    assert "00000000000000000030.tmp" in shown


def test_inspect_for_machines_counts_messages_by_queue(data: Path) -> None:
    told = json.loads(run("inspect", "--json", data).stdout)
    assert told["verdict"] == "whole"
    assert {queue["name"]: (queue["logged"], queue["finished"]) for queue in told["queues"]} == {
        "dead": (2, 0),
        "orders": (10, 7),
    }
    assert [snapshot["offset"] for snapshot in told["report"]["snapshots"]] == [23]


def test_inspect_of_a_damaged_log_says_what_it_can(data: Path) -> None:
    change(data / "log" / FIRST, starts_of_batches(data / "log" / FIRST)[3] + HEADER_BYTES)
    told = json.loads(run("inspect", "--json", data).stdout)
    assert (told["verdict"], told["queues"]) == ("damaged", None)
    assert "cannot be read" in run("inspect", data).stdout


def test_events_are_lines_of_json(data: Path) -> None:
    lines = [json.loads(line) for line in run("inspect", "--events", data).stdout.splitlines()]
    assert len(lines) == 39
    first = lines[0]
    assert (first["offset"], first["letter"], first["queue_name"]) == (6, "L", "orders")
    assert first["time"] == "2026-01-01T00:00:00.010000000Z"
    assert first["body"] == BODY.decode()
    assert first["topics"] == "orders.new\norders.all"
    assert base64.b64decode(lines[2]["body_base64"]) == b"\x00\xff not text"
    assert next(line for line in lines if line["letter"] == "S")["result"] == "done"


def test_events_begin_and_end_where_asked_with_every_name_known(data: Path) -> None:
    printed = run("inspect", "--events", "--from", "30", "--count", "4", data).stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [(line["offset"], line["letter"], line["queue_name"]) for line in lines] == [
        (30, "L", "short-lived"),
        (30, "Q", "short-lived"),
        (31, "D", "short-lived"),
        (32, "D", "orders"),
    ]


def test_events_that_are_missing_are_spoken_of(data: Path) -> None:
    path = data / "log" / FIRST
    change(path, starts_of_batches(path)[1])
    result = run("inspect", "--events", data)
    assert "offsets 6 to 26 are missing" in result.stderr
    assert json.loads(result.stdout.splitlines()[0])["offset"] == 30


def test_the_identity_names_no_other_facts() -> None:
    """Whoever adds a secret to it must look at what the report shows."""
    assert Identity.__struct_fields__ == ("format", "shard", "id_key", "ancestors", "shards")
