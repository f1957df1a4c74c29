"""The letters of the Event Log: what they mean, and their colours."""

from __future__ import annotations

from penstock.model.letters import LOGGED, TABLE

WORDS = {row.letter: row.word for row in TABLE if row.letter in LOGGED}

STYLES = {
    "L": "blue",
    "Q": "blue",
    "U": "dim",
    "F": "cyan",
    "K": "cyan",
    "S": "green",
    "X": "bold green",
    "R": "yellow",
    "E": "bold red",
    "I": "red",
    "N": "magenta",
    "Z": "dim",
    "D": "magenta",
    "B": "bold red",
}
