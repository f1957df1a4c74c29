"""What storms have shown, one line of JSON each, and their sums: so many kills are tried in slices that add up.

TORTURE_SUMS=FILE TORTURE_TIMES=50 .venv/bin/python -m pytest tests/torture/test_answers.py -k workers
.venv/bin/python -m tests.torture.sums FILE
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.support.storm import Checked

_COUNTS = ("stored", "refused", "finished", "popped", "cut_off", "popped_by_nobody", "in_flight")


class Slice(Struct):
    seed: int
    faults: dict[str, int]  # How often each was done.
    seconds: float
    checked: Checked

    @property
    def about(self) -> str:
        """What was tried, which other slices may have tried too."""
        return " and ".join(self.faults)


def note(found: Slice) -> None:
    """Add it to the file that the environment names, if it names one."""
    if path := os.environ.get("TORTURE_SUMS"):
        with Path(path).open("ab") as file:
            file.write(msgspec.json.encode(found) + b"\n")


def summed(lines: bytes) -> str:
    slices = msgspec.json.Decoder(Slice).decode_lines(lines)
    return "\n".join(
        _sum([each for each in slices if each.about == about]) for about in {each.about: 0 for each in slices}
    )


def _sum(slices: list[Slice]) -> str:
    faults, false, unknown, counts = (Counter[str]() for _ in range(4))
    for each in slices:
        faults.update(each.faults)
        false.update(each.checked.false)
        unknown.update(each.checked.unknown)
        counts.update({name: getattr(each.checked, name) for name in _COUNTS})
    share = f"{unknown.total() / (counts['in_flight'] or 1):.2%}"
    return (
        f"{_shown(faults)} in {len(slices)} slices, {sum(each.seconds for each in slices):.0f} s: {_shown(counts)};"
        f" outcome unknown: {unknown.total()} ({share}) {_shown(unknown)}; false: {_shown(false) or 'none'}"
    )


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


if __name__ == "__main__":
    print(summed(Path(sys.argv[1]).read_bytes()))
