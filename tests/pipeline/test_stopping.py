"""`penstock pipeline run`, asked to stop in the middle of its first batch."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench import lives
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.tables import TABLES, parts_table
from tests.support.lakes import FilledLake, assert_same_tables, events_of

MESSAGES = 2000
END_SECONDS_MAX = 300
TRACE = re.compile(r"Traceback|Exception|Error|py4j|\tat ")


class Pipeline:
    """The process. What it prints is read line by line."""

    def __init__(self, data: Path, lake: Path) -> None:
        command = [sys.executable, "-m", "penstock.cli", "pipeline", "run", "--data", str(data), "--lake", str(lake)]
        self.process = subprocess.Popen(
            [*command, "--master", "local[2]"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def read_until(self, pattern: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.search(pattern, line):
                return
        raise AssertionError(f"ended without {pattern}: {self.end()}")

    def end(self) -> tuple[int, str, str]:
        """Exit code, the rest of standard output, and standard error."""
        said, complained = self.process.communicate(timeout=END_SECONDS_MAX)
        return self.process.returncode, said, complained


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopping") / "data"
    lives.make(folder, MESSAGES)
    return folder


def offsets(lake: Path) -> set[int]:
    place = Lake(lake)
    return {sum(parts_table(place, table).reached(place.origin())) for table in TABLES.values()}


def test_a_pipeline_asked_to_stop_finishes_its_batch_and_says_one_line(
    java: None, data: Path, tmp_path: Path
) -> None:
    pipeline = Pipeline(data, tmp_path / "lake")
    pipeline.read_until("batch 0: writing")
    pipeline.process.send_signal(signal.SIGTERM)
    code, said, complained = pipeline.end()
    (reached,) = offsets(tmp_path / "lake")
    assert reached > 0
    assert (code, said.splitlines()[-1]) == (
        0,
        f"pipeline stopped at offset {reached:,}; the broker's data is safe",
    )
    assert len(said.splitlines()) <= 2, "the batch, and that it has stopped"
    assert not TRACE.search(complained), complained


def test_a_pipeline_asked_twice_drops_its_batch_and_the_next_start_makes_up_for_it(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    pipeline = Pipeline(data, tmp_path / "lake")
    pipeline.read_until("batch 0: reading")
    pipeline.process.send_signal(signal.SIGINT)
    pipeline.process.send_signal(signal.SIGTERM)
    code, said, complained = pipeline.end()
    assert (code, said.splitlines()[-1][:26]) == (0, "pipeline stopped at offset")
    assert not TRACE.search(complained), complained
    filled = FilledLake(spark, tmp_path / "lake", path=str(data))
    filled.fill()
    assert_same_tables(filled, events_of(data))
