"""How verbs answer."""

from __future__ import annotations

import io

import pytest

from penstock.cli import output
from penstock.cli.exits import CommandError


def test_a_table_in_a_pipe_is_aligned_text_with_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("queue", "ready", "note"), [("a", 1, None), ("longer", 12345, "x")])
    assert capsys.readouterr().out == "queue    ready  note\na            1\nlonger  12,345  x\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (1234, "1,234"),
        (0.5, "0.5"),
        (2.0, "2"),
        (["a", 1], "a, 1"),
        ({"a": 1234}, '{"a":1234}'),
        ([{"a": []}], '[{"a":[]}]'),
    ],
)
def test_values_are_shown_in_plain_words(value: object, text: str) -> None:
    assert output.shown(value) == text


def test_json_is_one_value_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({"a": [1, None]})
    assert capsys.readouterr().out == '{"a":[1,null]}\n'


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["list", "--watch"], ["list", "--watch", "2"]),
        (["list", "--watch", "--json"], ["list", "--watch", "2", "--json"]),
        (["list", "--watch", "0.5"], ["list", "--watch", "0.5"]),
        (["list", "--watch=5"], ["list", "--watch=5"]),
    ],
)
def test_watch_needs_no_seconds(given: list[str], read: list[str]) -> None:
    assert list(output.with_watch_seconds(given)) == read


def test_without_a_terminal_only_yes_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(CommandError, match="add --yes"):
        output.ask("Delete it?", yes=False)
    output.ask("Delete it?", yes=True)
