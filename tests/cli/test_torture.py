"""`penstock torture`: a short run with every fault, and a run in which somebody takes acknowledged messages away."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from penstock.torture.checker import RULES
from penstock.torture.faults import KINDS
from tests.support.command_line import COMMAND, Terminal, environment, penstock


@pytest.mark.torture
def test_a_short_run_with_every_fault_over_tls_violates_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    options = ("--seed", "3", "--minutes", "0.3", "--every", "0.5", "--tls", "--dir", str(tmp_path))
    run = penstock("torture", *options, "--json")
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["violations"] == []
    assert summary["finished"] is True
    assert summary["operations"].keys() >= {"mqs", "nq", "etzel", "glovebox", "native"}
    assert summary["faults"].keys() <= KINDS.keys()
    assert not list(tmp_path.iterdir())


@pytest.mark.torture
def test_messages_that_vanish_are_found_and_their_history_is_shown(tmp_path: Path) -> None:
    """A purge that the torture does not know of stands for a broker that loses messages."""
    options = ["--seed", "4", "--minutes", "0.2", "--faults", "none", "--dialects", "mqs", "--rate", "200"]
    command = [*COMMAND, "torture", *options, "--dir", str(tmp_path)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    over = threading.Event()
    thief = threading.Thread(target=purge_again_and_again, args=(tmp_path / "torture-4/broker.log", over))
    thief.start()
    answer, said = run.communicate(timeout=250)
    over.set()
    thief.join()
    assert run.returncode == 1, said
    assert f"nothing-lost: {RULES['nothing-lost']}" in said
    assert '"event":"stored"' in said
    assert "--seed 4" in said
    assert "Violations: " in answer
    assert (tmp_path / "torture-4/data").is_dir()


def purge_again_and_again(log: Path, over: threading.Event) -> None:
    while not over.wait(0.1):
        if log.exists() and (found := [line for line in log.read_text().splitlines() if '"listening"' in line]):
            address = json.loads(found[-1])["http"]
            request = urllib.request.Request(f"http://{address}/v1/queues/late/messages", method="DELETE")
            try:
                urllib.request.urlopen(request).close()
            except OSError:
                pass  # It is starting, or has ended.


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    wrong = penstock("torture", "--dir", str(tmp_path), "--faults", "kill,flood")
    assert wrong.returncode == 2
    assert "unknown fault: flood" in wrong.stderr
    wrong = penstock("torture", "--dir", str(tmp_path), "--dialects", "smtp")
    assert wrong.returncode == 2
    assert "unknown dialect: smtp" in wrong.stderr


def test_a_directory_of_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "torture-7").mkdir()
    again = penstock("torture", "--dir", str(tmp_path), "--seed", "7")
    assert again.returncode == 2
    assert "torture-7 exists" in again.stderr


@pytest.mark.torture
def test_a_terminal_shows_progress_and_tables(tmp_path: Path) -> None:
    terminal = Terminal(
        "torture", "--dir", str(tmp_path), "--minutes", "0.1", "--faults", "none", "--dialects", "etzel"
    )
    terminal.wait_for("operations, 0 faults, 0 violations")
    terminal.wait_for("nothing-lost")
    terminal.wait_for("Violations: 0")
    assert terminal.end() == 0
