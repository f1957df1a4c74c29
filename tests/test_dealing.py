"""`python -m tests` runs each file once, in whichever worker is free, and reports all that goes wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOOD = """
import pytest

def test_this():
    pass

@pytest.mark.skip(reason="elsewhere")
def test_that():
    pass
"""
BAD = """
def test_sum():
    assert 1 + 1 == 3
"""
CRASHES = """
import os

def test_end():
    os._exit(7)
"""
LEFT_OPEN = """
import pytest

@pytest.fixture(scope="session")
def shared():
    yield
    raise OSError("it did not end")

def test_with_it(shared):
    pass
"""


def dealt(folder: Path, workers: int, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "tests", str(folder), "--workers", str(workers)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert ended.stderr == ""
    return ended.returncode, ended.stdout


def test_what_fails_is_named_and_shown_and_so_is_what_does_not_end(tmp_path: Path) -> None:
    code, shown = dealt(tmp_path, 1, bad=BAD, good=GOOD, open=LEFT_OPEN, wrong="import nothing_of_this_name")
    assert (code, shown.splitlines()[-1]) == (1, "2 passed, 3 failed, 1 skipped")
    for each in ("::test_sum", "assert (1 + 1) == 3", "nothing_of_this_name", "OSError: it did not end"):
        assert each in shown
    assert "test_this" not in shown


def test_a_worker_that_ends_takes_only_its_own_file_with_it(tmp_path: Path) -> None:
    code, shown = dealt(tmp_path, 2, crashes=CRASHES, one=GOOD, two=GOOD, three=GOOD)
    assert (code, shown.splitlines()[-1]) == (1, "3 passed, 1 failed, 3 skipped")
    assert f"It ended in {tmp_path}/test_crashes.py" in shown


def test_what_nobody_is_left_to_run_is_named(tmp_path: Path) -> None:
    code, shown = dealt(tmp_path, 1, crashes=CRASHES, later=GOOD)
    assert code == 1
    assert f"not run: {tmp_path}/test_later.py" in shown
