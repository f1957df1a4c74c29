"""The blocks of the documentation that a reader would paste, and how to run them.

A mark in front of a block says what is special about it:

<!-- docs: not run, REASON -->     there is a reason why a test cannot run it
<!-- docs: answers 404 -->         the answer is meant to have this status
<!-- docs: background -->          it goes on while the rest of the page is read
<!-- docs: spark -->               Python for a Spark shell, run among the tests of Spark
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.broker import Broker

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"),
]
BLOCK_SECONDS_MAX = 120

_BLOCK = re.compile(
    r"(?:^<!-- docs: (?P<mark>[^\n]*) -->\n+)?^```(?P<language>sh|python)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# A refused request fails the block, unless the page says which status is meant.
_CURL = r"""
curl() {
    local trace status
    trace=$(mktemp)
    command curl --silent --show-error --dump-header "$trace" "$@"
    status=$(sed -n 's/^HTTP[^ ]* \([0-9]*\).*/\1/p' "$trace" | tail -n 1)
    rm -f "$trace"
    [[ $status == 2* || $status == "$expected" ]] || { echo "curl $*: status $status" >&2; return 1; }
}
"""


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def runs(self) -> bool:
        return not self.mark.startswith("not run, ") and self.mark != "spark"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["text"], found["mark"] or "")
        for found in _BLOCK.finditer(text)
    ]


def plain_blocks_of(page: Path) -> list[str]:
    """Blocks without a language: pictures, layouts, patterns."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [text for language, text in fences if not language]


class Reader:
    """Somebody who reads one page and pastes its blocks in order: one shell for all that is shell."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker = broker
        self._folder = folder
        self._background: list[subprocess.Popen[str]] = []
        self._shell = self._start(["bash", "--noprofile", "--norc"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [*self._background, self._shell]:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def paste(self, block: Block) -> None:
        text = at_broker(self._broker, block.text)
        if block.language == "sh" and block.mark != "background":
            self._paste_into_shell(block, text)
            return
        command = ["bash", "-c", text] if block.language == "sh" else [sys.executable, "-c", text]
        process = self._start(command)
        if block.mark == "background":
            self._background.append(process)
            return
        said, complained = process.communicate(timeout=BLOCK_SECONDS_MAX)
        assert process.returncode == 0, f"{block.page.name}:{block.line}\n{text}\n{said}\n{complained}"

    def _paste_into_shell(self, block: Block, text: str) -> None:
        """A function of `set -e` ends the shell with the first command that fails."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        expected = block.mark.removeprefix("answers ") if block.mark else ""
        self._shell.stdin.write(f"{_CURL}\nset -e\nexpected={expected}\n{{\n{text}\n}} 2>&1\necho; echo '=== done'\n")
        self._shell.stdin.flush()
        said = []
        for line in self._shell.stdout:
            if line == "=== done\n":
                return
            said.append(line)
        raise AssertionError(f"{block.page.name}:{block.line} failed\n{text}\n{''.join(said)}")

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            start_new_session=True,
            env=os.environ
            | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PENSTOCK_URL": "http://{}:{}".format(*self._broker.http),
                "XDG_CONFIG_HOME": str(self._folder),
            },
        )


def at_broker(broker: Broker, text: str) -> str:
    """The documented addresses are the default ones; a test has a broker of its own elsewhere."""
    text = re.sub(r"\b(localhost|127\.0\.0\.1):7843\b", "{}:{}".format(*broker.http), text)
    return re.sub(r"\b(localhost|127\.0\.0\.1):7844\b", "{}:{}".format(*broker.lines), text)
