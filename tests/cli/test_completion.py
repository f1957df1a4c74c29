"""`penstock completion`: what a shell completes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment, penstock


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    script = penstock("completion", shell)
    assert (script.returncode, "_PENSTOCK_COMPLETE" in script.stdout) == (0, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "completed"),
    [("co", ["config", "completion"]), ("log ver", ["verify"]), ("log verify --he", ["--help"])],
)
def test_bash_completes_verbs_and_options(words: str, completed: list[str]) -> None:
    count = len(words.split())
    line = (
        'eval "$(penstock completion bash)"; '
        f"COMP_WORDS=(penstock {words}); COMP_CWORD={count}; _penstock_completion penstock; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment(PATH=path), check=True
    )
    assert [word for word in done.stdout.split() if word in completed] == completed
