"""`penstock completion`: what a shell completes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.command_line import Terminal, environment, penstock

PATH = f"{Path(sys.executable).parent}:{environment()['PATH']}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    script = penstock("completion", shell)
    assert (script.returncode, "_PENSTOCK_COMPLETE" in script.stdout) == (0, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("co", ["config", "completion"]),
        ("queues c", ["create", "change"]),
        ("queues add --he", ["--help"]),
        ("log ver", ["verify"]),
        ("log verify --he", ["--help"]),
    ],
)
def test_bash_completes_verbs_and_options(words: str, completed: list[str]) -> None:
    assert [word for word in bash_completes(words) if word in completed] == completed


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_the_names_of_queues(broker: Broker) -> None:
    for name in ("complete-one", "complete-two", "not-complete"):
        broker.request("PUT", f"/v1/queues/{name}", body=b"{}")
    url = "http://{}:{}".format(*broker.http)
    for words in ("peek comp", "queues redrive comp", "publish comp", "tail --queue comp"):
        assert bash_completes(words, PENSTOCK_URL=url) == ["complete-one", "complete-two"], words
    assert bash_completes(f"tail --url {url} --queue comp") == ["complete-one", "complete-two"]
    assert bash_completes("peek comp", PENSTOCK_URL="http://127.0.0.1:1") == []  # No word, and no error.


def bash_completes(words: str, **variables: str) -> list[str]:
    line = (
        'eval "$(penstock completion bash)"; '
        f"COMP_WORDS=(penstock {words}); COMP_CWORD={len(words.split())}; _penstock_completion penstock; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return said_by("bash", line, **variables).split()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("words", "completed"), [("conf", "config"), ("log ver", "verify"), ("log verify --he", "--help")]
)
def test_fish_completes_verbs_and_options(words: str, completed: str) -> None:
    said = said_by("fish", f'penstock completion fish | source; complete -C "penstock {words}"')
    assert said.split("\t")[0] == completed


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(("words", "completed"), [("conf", "config"), ("log ver", "log verify")])
def test_zsh_completes_what_is_typed_at_its_prompt(words: str, completed: str) -> None:
    terminal = Terminal("-f", "-i", command=["zsh"], PATH=PATH, TERM="dumb")
    terminal.press('autoload -Uz compinit; compinit -u -D; eval "$(penstock completion zsh)"; echo re""ady\n')
    terminal.wait_for("ready")
    terminal.press(f"penstock {words}\t")
    terminal.wait_for(f"penstock {completed} ")
    terminal.press("\x15exit\n")
    assert terminal.end() == 0


def said_by(shell: str, line: str, **variables: str) -> str:
    given = environment(PATH=PATH, **variables)
    return subprocess.run([shell, "-c", line], capture_output=True, text=True, env=given, check=True).stdout
