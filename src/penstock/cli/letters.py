"""The colours of the letters of the Event Log."""

from __future__ import annotations

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
