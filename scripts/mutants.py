"""Breaks the code in many places, one at a time, and reports where no test notices it.

Works on a copy, so the checkout stays as it is. The places are drawn by a seed, each rule as often as the others.
First the test file that mirrors the broken file is run, then its folder, then the tests of the room, until one fails.

python scripts/mutants.py                        200 mutants: a few hours
python scripts/mutants.py --count 20 engine      20 of one room
python scripts/mutants.py --skip 60 --seed 7     those after the first 60, of another drawing
python scripts/mutants.py --minutes 3 --seconds 60   as many as that, and then how to go on; without trying whole code
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/penstock")
# What is broken, and the tests that have to notice it.
ROOMS: dict[str, tuple[str, ...]] = {
    "engine": ("tests/engine", "tests/model"),
    "storage/log": ("tests/storage/log", "tests/storage/test_golden.py", "tests/storage/test_port.py"),
    "broker/writer": ("tests/broker/writer",),
    "server/shards": ("tests/server/shards", "tests/broker/quotas", "tests/wire/test_cluster.py"),
    "model/permissions.py": ("tests/model/test_permissions.py", "tests/broker/test_identities.py"),
    "broker/identities.py": ("tests/broker/test_identities.py",),
}
_OTHERWISE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_SECONDS_MIN = 120  # A test that hangs is ended after this, or ten times as long as all tests of the room take.


class Mutant(NamedTuple):
    path: Path  # In the checkout.
    start: int  # Which bytes of the file are replaced.
    end: int
    rule: str
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {_short(self.old)} → {_short(self.new)}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def _short(code: str) -> str:
    return " ".join(code.split())[:80]


# ── Places ──────────────────────────────────────────────────────────────────────────────────────────────────


def mutants_of(path: Path, source: bytes) -> list[Mutant]:
    """All ways to break the functions of a file."""
    finder = _Finder(path, source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                finder.visit(statement)
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, path: Path, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion is a test itself."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts are for people."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """It is visited for itself."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """So is this."""

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call) or ast.unparse(call.func).startswith("logger."):
            return
        self._note(node, "removed call", "pass")
        self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            old, new = _OTHERWISE[type(operator)]
            start, end = self._end(left), self._start(right)
            pattern = rb"\s+".join([re.escape(word.encode()) for word in old.split()])
            between = re.search(pattern, self._source[start:end])
            assert between, f"{self._path}:{node.lineno}"
            self._add("comparison", node.lineno, start + between.start(), start + between.end(), new)
            left = right
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """A negative number mostly means that there is none: any other one would do."""
        if not isinstance(node.operand, ast.Constant):
            self.visit(node.operand)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._note(node, "bound", str(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        has_an_order = ast.unparse(node.func) not in ("max", "min")
        for one, other in zip(node.args, node.args[1:] if has_an_order else (), strict=False):
            are_fixed = isinstance(one, ast.Constant) and isinstance(other, ast.Constant)
            if not (are_fixed or isinstance(one, ast.Starred) or isinstance(other, ast.Starred)):
                first, second = self._text(one), self._text(other)
                between = self._source[self._end(one) : self._start(other)].decode()
                if first != second:
                    new = second + between + first
                    self._add("swapped arguments", one.lineno, self._start(one), self._end(other), new)
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        self._note(node, "dropped await", self._text(node.value))
        self.generic_visit(node)

    def _note(self, node: ast.expr | ast.stmt, rule: str, new: str) -> None:
        self._add(rule, node.lineno, self._start(node), self._end(node), new)

    def _add(self, rule: str, line: int, start: int, end: int, new: str) -> None:
        self.found.append(Mutant(self._path, start, end, rule, line, self._source[start:end].decode(), new))

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        return self._source[self._start(node) : self._end(node)].decode()


def draw(mutants: Iterable[Mutant], seed: int) -> Iterator[Mutant]:
    """All of them, in an order in which each rule comes as often as the others while it has any."""
    random, by_rule = Random(seed), defaultdict[str, list[Mutant]](list)
    for mutant in mutants:
        by_rule[mutant.rule].append(mutant)
    while by_rule:
        rule = random.choice(sorted(by_rule))
        places = by_rule[rule]
        yield places.pop(random.randrange(len(places)))
        if not places:
            del by_rule[rule]


def in_room(root: Path, room: str) -> list[Mutant]:
    there = root / SOURCE / room
    paths = sorted(there.rglob("*.py")) if there.is_dir() else [there]
    return [each for path in paths for each in mutants_of(path.relative_to(root), path.read_bytes())]


# ── Tests ───────────────────────────────────────────────────────────────────────────────────────────────────


def tests_of(root: Path, mutant: Mutant, room: str) -> list[list[str]]:
    """What is run one after the other, until a test fails."""
    mirrored = Path("tests") / mutant.path.relative_to(SOURCE)
    near = [mirrored.with_name(f"test_{mirrored.name}"), *([mirrored.parent] if (SOURCE / room).suffix == "" else [])]
    steps = [[str(path)] for path in near if (root / path).exists()]
    last = [path for path in ROOMS[room] if (root / path).exists()]
    return [step for step in steps if step != last] + [last]


class Copy:
    """A copy of the checkout, to be broken."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, capture_output=True, check=True).stdout.decode()
        for name in filter(None, names.split("\0")):
            if (root / name).is_file():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, path / name)
        # Compiled files are checked by content: a broken file may have the size and time of the whole one.
        compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"]
        subprocess.run(compiled, cwd=path, check=True)

    def failure(self, tests: list[str], seconds: float) -> str | None:
        """The first test that fails, or what else happens; None: they pass."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONPATH": str(self.path / "src")}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command, cwd=self.path, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = process.wait(seconds)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    return f"no end after {seconds:.0f} s"
                raise
            output.seek(0)
            told = output.read().decode(errors="replace")
        if code == 0:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", told, re.MULTILINE)
        return failed[1] if failed else f"pytest ended with {code}: {told[-2000:]}"

    def broken(self, mutant: Mutant, steps: list[list[str]], seconds: float) -> str | None:
        """How the tests notice it; None: they do not."""
        path = self.path / mutant.path
        whole = path.read_bytes()
        path.write_bytes(mutant.apply(whole))
        try:
            return next((failure for step in steps if (failure := self.failure(step, seconds))), None)
        finally:
            path.write_bytes(whole)


def limits(copy: Copy, rooms: Iterable[str]) -> dict[str, float]:
    """How long the tests of a room may take. They pass while nothing is broken, or this ends here."""
    found = {}
    for room in rooms:
        began = time.monotonic()
        if failure := copy.failure([path for path in ROOMS[room] if (copy.path / path).exists()], 3600):
            raise SystemExit(f"the tests of {room} fail already: {failure}")
        took = time.monotonic() - began
        found[room] = max(_SECONDS_MIN, 10 * took)
        print(f"the tests of {room} pass in {took:.0f} s", flush=True)
    return found


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Break the code, and report what no test notices.")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(ROOMS)}; all, if none is given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0, help="how many of the first are left out")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--minutes", type=float, default=inf, help="begin none after this time, and say how to go on")
    parser.add_argument("--seconds", type=float, help="how long tests may take; absent: whole code is tried first")
    options = parser.parse_args(arguments)
    rooms = {mutant: room for room in options.rooms or ROOMS for mutant in in_room(root, room)}
    drawn = [*islice(draw(rooms, options.seed), options.skip, options.count)]
    if options.list:
        print(*drawn, sep="\n")
        return 0
    tried, survivors = 0, []
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Copy(root, Path(directory))
        used = dict.fromkeys([rooms[mutant] for mutant in drawn], options.seconds or 0.0)
        seconds = used if options.seconds else limits(copy, used)
        end = time.monotonic() + 60 * options.minutes
        for number, mutant in enumerate(drawn, options.skip + 1):
            if time.monotonic() > end:
                print(f"go on with --skip {number - 1}")
                break
            room, began = rooms[mutant], time.monotonic()
            failure = copy.broken(mutant, tests_of(root, mutant, room), seconds[room])
            tried += 1
            survivors += [] if failure else [mutant]
            found = f"caught by {failure}" if failure else "SURVIVES"
            print(f"{number}. {mutant}\n   {found} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{tried - len(survivors)} of {tried} are caught. These survive:", *survivors, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
