"""One program on two twins: where their answers differ, and the smallest program that still shows it."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec

from tests.support.transcript import shorten
from tests.twins.differences import ABSENT, UNAVAILABLE, Difference, Part, explanation
from tests.twins.player import Player, Seen, Twin
from tests.twins.programs import Back, Http, Pass, Program, Say, Step


class Found(NamedTuple):
    """Where answers differ."""

    number: int  # Of the step.
    step: Step
    at: str  # A path in what was seen.
    one: Any
    several: Any

    def __str__(self) -> str:
        if self.at == BROKEN:
            return f"step {self.number}, {label(self.step)}: {self.one}"
        one, several = (shorten(repr(each)) for each in (self.one, self.several))
        return f"step {self.number}, {label(self.step)}\n  at {self.at}\n    one:     {one}\n    several: {several}"

    @property
    def kind(self) -> tuple[str, str]:
        """The same of differences that are likely to have one cause."""
        return re.sub(r"[?{].*|-\w+", "", label(self.step)), re.sub(r"\[\d+\]|-\w+", "", self.at)


def label(step: Step) -> str:
    """What the list of differences knows it by."""
    if isinstance(step, Http):
        return f"{step.method} {step.target}"
    if isinstance(step, Say):
        what = step.what if isinstance(step.what, dict) else {}
        return f"{step.on.partition(' ')[0]} {what.get('cmd') or what.get('type')}"
    return type(step).__name__.lower()


def differences(one: Any, several: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The smallest parts that differ, each with its path."""
    if isinstance(one, msgspec.Struct) and isinstance(several, msgspec.Struct):
        one, several = msgspec.structs.asdict(one), msgspec.structs.asdict(several)
    if isinstance(one, dict) and isinstance(several, dict):
        for name in dict.fromkeys([*one, *several]):
            yield from differences(one.get(name, ABSENT), several.get(name, ABSENT), f"{at}.{name}" if at else name)
    elif isinstance(one, list) and isinstance(several, list) and len(one) == len(several):
        for index, pair in enumerate(zip(one, several, strict=True)):
            yield from differences(*pair, f"{at}[{index}]")
    elif one != several or type(one) is not type(several):
        yield at, one, several


BROKEN = "broken"  # In place of a path: the comparison itself failed, with this traceback.
LOOKS = 20  # Before it is believed that twins will not come together again, as the list says.


class Comparison:
    """The first unexplained difference of a program, and which explained ones were met."""

    def __init__(self) -> None:
        self.found: Found | None = None
        self.met: set[str] = set()
        self.steps = 0
        self.number = 0  # Of the step that is compared.


def compare(program: Program, one: Twin, several: Twin) -> Comparison:
    comparison = Comparison()
    players = Player(one, program.stamp), Player(several, program.stamp)
    try:
        _play(program, *players, comparison, several)
        for player in players:
            if not player.is_hanging:
                player.clean_up()
    except Exception:
        step = program.steps[min(comparison.number, len(program.steps)) - 1]
        comparison.found = Found(comparison.number, step, BROKEN, traceback.format_exc(), "")
    finally:
        for player in players:
            player.close()
    return comparison


def _play(program: Program, one: Player, several: Player, comparison: Comparison, twin: Twin) -> None:
    for number, step in enumerate(program.steps, start=1):
        comparison.number = number
        if isinstance(step, Pass):
            twin.pass_time(step.seconds)
        met: set[Difference] = set()
        if several.is_hanging and not isinstance(step, Back):
            seen = several.play(step)
            if several.is_unavailable(step, seen):
                comparison.met.add(UNAVAILABLE)
                continue  # Nothing was done, so the other one does nothing either.
            expected = one.play(step)
        else:
            expected, seen = one.play(step), several.play(step)

        looks = count(1)

        def is_explained() -> bool:
            met.clear()  # noqa: B023
            comparison.found = next(_unexplained(program.steps[:number], expected, seen, met), None)  # noqa: B023
            if several.is_hanging or (not comparison.found and not _ends(met)):  # noqa: B023
                return True
            one.look_again(step, expected)  # noqa: B023
            several.look_again(step, seen)  # noqa: B023
            return not comparison.found and next(looks) > LOOKS  # noqa: B023

        twin.until(is_explained)
        comparison.steps += 1
        comparison.met |= {each.name for each in met}
        if comparison.found or _ends(met):
            return


def _ends(met: set[Difference]) -> bool:
    return any(each.ends for each in met)


def _unexplained(steps: Sequence[Step], expected: Seen, seen: Seen, met: set[Difference]) -> Iterator[Found]:
    """Those that no entry of the list explains. `met`: gets the entries that explain others."""
    step = steps[-1]
    for at, one, several in differences(expected, seen):
        if explained := explanation(Part(label(step), at, one, several, steps), expected, seen):
            met.add(explained)
        else:
            yield Found(len(steps), step, at, one, several)


def shrunk(program: Program, differs: Callable[[Program], bool]) -> Program:
    """Without steps that are not needed for a difference: pieces are left out, half as long each time."""
    size = len(program.steps) // 2
    while size:
        at = 0
        while at < len(program.steps):
            shorter = msgspec.structs.replace(program, steps=program.steps[:at] + program.steps[at + size :])
            if shorter.steps and differs(shorter):
                program = shorter
            else:
                at += size
        size //= 2
    return program


def shown(program: Program) -> str:
    return "\n".join(json.dumps(msgspec.to_builtins(step), ensure_ascii=False) for step in program.steps)
