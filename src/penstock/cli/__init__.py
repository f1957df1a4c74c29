"""The command line: one file a verb, loaded when it is used."""

from __future__ import annotations

from penstock.cli.exits import run

__all__ = ["main"]


def main() -> None:
    """The script `penstock`."""
    from penstock.cli.verbs import app

    run(app)
