"""Golden files: what was written once is read and written the same for as long as the format has this number."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.engine import Engine
from penstock.model.kinds import Kind
from penstock.storage.directory import DataDirectory
from penstock.storage.log.batch import HEADER_BYTES
from penstock.storage.log.decode import events_of
from penstock.storage.log.encode import Batch
from penstock.storage.log.segment import SegmentReader, open_segment
from penstock.storage.log.segments import SegmentLog
from tests.storage.golden.make import GOLDEN, HERE, ID_KEY, describe, describe_state, make, name_of

OLDER_SNAPSHOT = b"PSNP\2\0"  # Read, but no longer written.
SEGMENTS = [path for name in GOLDEN for path in sorted((HERE / name / "log").glob("*.log"))]


@pytest.fixture(params=GOLDEN)
def golden(request: pytest.FixtureRequest) -> Path:
    name: str = request.param
    return HERE / name


def expected_of(golden: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(golden.with_name(f"{golden.name}.json").read_text())
    return facts


def test_the_golden_files_hold_every_kind_of_event(golden: Path) -> None:
    every = [event["kind"] for name in GOLDEN for event in expected_of(HERE / name)["events"]]
    assert set(every) == {name_of(kind) for kind in Kind}
    assert sum(path.stat().st_size for path in golden.rglob("*") if path.is_file()) < 100_000


def test_the_first_golden_files_are_two_segments_and_a_snapshot() -> None:
    assert len(list((HERE / "format-1" / "log").iterdir())) == 2
    assert len(list((HERE / "format-1" / "snapshots").iterdir())) == 1


def test_old_bytes_are_read_to_the_same_events_and_state(golden: Path) -> None:
    assert DataDirectory(golden).read_identity().id_key == ID_KEY.hex()
    assert json.loads(json.dumps(describe(golden))) == expected_of(golden)


def test_a_start_on_an_old_directory_finds_the_same_state(tmp_path: Path, golden: Path) -> None:
    expected = expected_of(golden)
    path = Path(shutil.copytree(golden, tmp_path / "data"))
    directory = DataDirectory(path)
    directory.open()
    log = SegmentLog(directory, segment_bytes=64 << 10)
    recovered = log.recover()
    engine = Engine()
    assert recovered.sections is not None
    engine.restore(recovered.sections)
    for event, position in recovered.events:
        engine.evolve(event, position)
    assert json.loads(json.dumps(describe_state(engine))) == expected["state at the end"]
    assert log.appended.offset == len(expected["events"])
    bodies: dict[tuple[int, int], str] = {}
    for event in expected["events"]:
        if event["kind"] in ("LOGGED", "QUEUED", "ARRIVED"):
            place = event["queue"], event["sequence"]
            refers = "to_queue" in event
            bodies[place] = bodies[event["to_queue"], event["to_sequence"]] if refers else event["body"]
    for queue in engine.queues.values():
        for sequence in range(1, queue.last_sequence + 1):
            row = queue.rows.get(sequence)
            if row:
                place = (queue.number, sequence)
                origin = engine.origins.get(
                    place, place
                )  # Of a message of another shard, its place here has the body.
                assert log.read(row.position, row.body_bytes).hex() == bodies.get(origin, bodies.get(place))
    log.close()
    directory.close()


@pytest.mark.parametrize("path", SEGMENTS, ids=lambda path: str(path.relative_to(HERE)))
def test_the_same_events_are_written_to_the_same_bytes(path: Path) -> None:
    segment, data = open_segment(path), path.read_bytes()
    assert data.startswith(segment.header())
    found = list(SegmentReader(segment).batches())
    assert found
    for file_offset, header, payload in found:
        batch = Batch(header.base_offset, header.base_position)
        for event, position in events_of(header, payload):
            assert batch.add(event) == position
        assert batch.seal(header.time) == data[file_offset : file_offset + HEADER_BYTES + len(payload)]


def test_the_whole_directory_is_made_again_byte_for_byte(tmp_path: Path, golden: Path) -> None:
    make(tmp_path / "again", GOLDEN[golden.name])
    again, before = _files(tmp_path / "again"), _files(golden)
    assert again.keys() == before.keys()
    older = {name for name, data in before.items() if data.startswith(OLDER_SNAPSHOT)}
    assert {name for name in before if again[name] != before[name]} == older


def _files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_ten_lines_in_the_documentation_read_the_golden_log() -> None:
    expected = expected_of(HERE / "format-1")
    documentation = Path(__file__).parents[2] / "docs" / "log-format.md"
    (snippet,) = re.findall(r"```python\n(.*?)```", documentation.read_text(), re.DOTALL)
    names: dict[str, Any] = {"path": SEGMENTS[0]}
    exec(snippet, names)
    events = expected["events"][: len(names["records"])]
    assert [name_of(Kind(kind)) for kind in names["records"]["kind"]] == [event["kind"] for event in events]
    assert names["records"]["time"].tolist() == [event["time"] for event in events]
    definitions = [event["text"] for event in events if event["kind"] == "NAME_DEFINED"]
    assert [body.decode() for body in names["bodies"][-len(definitions) :]] == definitions
