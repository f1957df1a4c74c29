"""The table of kinds: what other rooms derive from it, and what the documentation shows of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.model.events import EVENTS, MessageEvent
from penstock.model.kinds import LETTERS, Kind, State, kinds_where
from penstock.model.lifecycle import TRANSITIONS
from penstock.storage.log.batch import FLAGS, RECORD_DTYPE

LOG_FORMAT = Path(__file__).parents[2] / "docs" / "log-format.md"
ABOUT_MESSAGES = {event.kind for event in EVENTS if issubclass(event, MessageEvent)}


def documented() -> dict[int, list[str]]:
    """The rows of the table in the documentation: number, name, letters, and what the kind uses."""
    table = LOG_FORMAT.read_text().split("| kind | name | letters |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {int(row[0]): row for row in rows}


def letters_of(kind: Kind) -> str:
    flags = {letter: f" if flag {FLAGS[field]}" for letter, field in kind.row.only_if.items()}
    return ", ".join(letter + flags.get(letter, "") for letter in kind.row.letters)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_the_documentation_of_the_format_has_the_row_of_every_kind(kind: Kind) -> None:
    _, name, letters, uses = documented()[kind]
    assert (name, letters) == (kind.name.lower().replace("_", " "), letters_of(kind))
    assert uses.startswith("the message fields") == (kind in ABOUT_MESSAGES)
    columns = {*(RECORD_DTYPE.names or ())} - {"time", "created"}
    assert columns & {*re.findall(r"`(\w+)`", uses)} >= columns & {*kind.row.stores}


def test_the_documentation_of_the_format_has_no_other_kinds() -> None:
    assert documented().keys() == set(Kind)


def test_an_event_that_ends_a_message_leaves_nothing_for_workers() -> None:
    """Or it is an outcome of one of several consumers, which may leave it with the others."""
    for kind in kinds_where(lambda row: row.ends):
        for state, targets in kind.row.states.items():
            assert {*targets} <= {State.GONE, State.KEPT} | ({state} if kind.row.whose != "workers" else set())


def test_only_what_readers_see_has_a_notice() -> None:
    assert kinds_where(lambda row: row.notice) <= LETTERS.keys()


def test_what_makes_a_message_ready_wakes_those_who_wait() -> None:
    ready = {
        kind for (state, kind), targets in TRANSITIONS.items() if State.READY in targets and state != State.READY
    }
    assert ready <= kinds_where(lambda row: row.wakes)
