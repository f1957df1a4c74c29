"""Mutants: what is broken, one place at a time, and whether a test notices it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import mutants

SOURCE = '''
LIMIT = 3


async def door(guests, name, *, most=LIMIT):
    """Not a place: 7."""
    assert len(guests) < 9
    if len(guests) >= most or name is not None:
        logger.info("full")
        return f"{7}"
    guests.append(name)
    await greet(name, guests)
    return most - 1
'''
PATH = Path("src/penstock/engine/door.py")


def test_each_rule_breaks_the_code_in_its_places() -> None:
    found = mutants.mutants_of(PATH, SOURCE.encode())
    assert [str(each).removeprefix(f"{PATH}:") for each in found] == [
        "8: comparison: >= → >",
        "8: comparison: is not → is",
        "11: removed call: guests.append(name) → pass",
        "12: removed call: await greet(name, guests) → pass",
        "12: dropped await: await greet(name, guests) → greet(name, guests)",
        "12: swapped arguments: name, guests → guests, name",
        "13: bound: 1 → 2",
    ]
    assert b"    pass\n    await greet" in found[2].apply(SOURCE.encode())


def test_the_seed_decides_the_order_and_every_place_comes_once() -> None:
    found = mutants.mutants_of(PATH, SOURCE.encode())
    drawn = [*mutants.draw(found, 1)]
    assert drawn == [*mutants.draw(found, 1)]
    assert sorted(drawn) == sorted(found)
    assert drawn != [*mutants.draw(found, 2)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small project, with a test that does not look at everything."""
    files = {
        PATH: "def is_full(guests):\n    return guests >= 3\n\n\ndef first(guests):\n    return guests[0]\n",
        Path("tests/engine/test_door.py"): (
            "from penstock.engine.door import is_full\n\n\n"
            "def test_door():\n    assert not is_full(2)\n    assert is_full(3)\n"
        ),
        Path("pytest.ini"): "[pytest]\naddopts = -p no:penstock\n",
        Path("src/penstock/__init__.py"): "",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def test_what_no_test_notices_is_reported_and_the_checkout_stays_as_it_is(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (checkout / PATH).read_text()
    assert mutants.main(["engine"], checkout) == 0
    told = capsys.readouterr().out
    assert "comparison: >= → >\n   caught by tests/engine/test_door.py::test_door" in told
    assert told.endswith(f"2 of 3 are caught. These survive:\n{PATH}:6: bound: 0 → 1\n")
    assert (checkout / PATH).read_text() == before


def test_broken_code_is_no_measure(checkout: Path) -> None:
    (checkout / PATH).write_text("def is_full(guests):\n    return guests > 3\n")
    with pytest.raises(SystemExit, match="the tests of engine fail already"):
        mutants.main(["engine"], checkout)
