"""The list of verbs: short to load, complete, and each with its help."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from penstock.cli.verbs import app
from penstock.renamed import RENAMED, DeprecatedName
from tests.support.command_line import COMMAND, all_verbs, environment, penstock

TRIES = 5
HEAVY = {"pyarrow", "pyspark", "numpy", "duckdb", "pandas"}

LOAD_EVERY_HELP = """
import json, sys
from penstock.cli.verbs import VERBS, load
import typer
for name in VERBS:
    command = load(name)
    with command.make_context(name, [], resilient_parsing=True) as context:
        command.get_help(context)
        for child in getattr(command, "commands", {}).values():
            with child.make_context(child.name, [], parent=context, resilient_parsing=True) as below:
                child.get_help(below)
print(json.dumps(sorted(module for module in sys.modules if "." not in module)))
"""


@pytest.mark.parametrize("verb", all_verbs(), ids=" ".join)
def test_every_verb_shows_its_help_for_h(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app([*verb, "-h"])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (0, "")
    assert all(part in shown.out for part in ("Usage:", "-h", "--help", *verb))


def test_the_help_of_all_verbs_loads_neither_arrow_nor_spark() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOAD_EVERY_HELP], capture_output=True, text=True, check=True)
    assert not HEAVY & set(json.loads(loaded.stdout))


def test_the_list_of_verbs_takes_little_longer_than_to_load_the_library_for_command_lines() -> None:
    library = [sys.executable, "-c", "import typer"]
    ours, least = (
        min(_processor_seconds(command) for _ in range(TRIES)) for command in ([*COMMAND, "--help"], library)
    )
    assert ours < 2 * least


def _processor_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env=environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"{place}{row.old}".split()[1:], f"{place}{row.new}".split()[1:])
        for place, rows in RENAMED.items()
        for row in rows
        if place.startswith("penstock ")
    ],
)
def test_an_old_verb_is_the_new_one_in_no_list(
    old: list[str], new: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), pytest.warns(DeprecatedName) as warned:
        app([*old, "--help"])
    shown_by_old = capsys.readouterr().out
    with pytest.raises(SystemExit):
        app([*new, "--help"])
    assert shown_by_old == capsys.readouterr().out
    assert f"penstock {' '.join(old)} is deprecated since 0.3 and works until 1.0: use {new[-1]}" in str(warned[0])
    with pytest.raises(SystemExit):
        app([*old[:-1], "--help"])
    assert old[-1] not in [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("publsh", "publish"), ("queue ls", "queues"), ("queues lst", "list"), ("wat", ""), ("queues zz", "")],
)
def test_a_verb_that_does_not_exist_is_a_usage_error_and_one_like_it_is_named(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app(typed.split())
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert "No such command" in shown.err
    assert (f"Did you mean '{meant}'" in shown.err) if meant else ("Did you mean" not in shown.err)


@pytest.mark.parametrize(("typed", "meant"), [("--idle", ""), ("--lise", "--lines"), ("--profil", "--profile")])
def test_an_option_that_does_not_exist_names_only_one_that_is_alike(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        app(["publish", typed])
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"Error: No such option: {typed}")
    assert (f"(Possible options: {meant})" in said) if meant else ("Possible" not in said)


def test_help_ends_with_how_to_reach_the_broker(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["peek"], ["queues", "create"], ["publish"]):
        with pytest.raises(SystemExit):
            app([*verb, "--help"])
        own, _, broker = capsys.readouterr().out.partition("\nThe broker:\n")
        assert all(option in own for option in ("Options:", "--json", "--help")), verb
        assert "--url" not in own
        assert [line.split()[0] for line in broker.splitlines() if line.startswith("  --")] == [
            *("--url", "--token", "--profile", "--ca", "--certificate", "--certificate-key"),
        ]


def test_the_version_is_shown() -> None:
    assert penstock("--version").stdout.startswith("penstock 0.")
