"""Forget names that are no longer used."""

from __future__ import annotations

from penstock.engine.decide.draft import Draft
from penstock.limits import NAMES_FORGOTTEN_AT_ONCE
from penstock.model.answers import Done
from penstock.model.commands import ForgetNames
from penstock.model.events import NameForgotten


def forget_names(draft: Draft, _: ForgetNames) -> Done:
    """Forget some of the names that the sweep has found unused."""
    for number, text in draft.state.names.some_unused(NAMES_FORGOTTEN_AT_ONCE):
        draft.events.append(NameForgotten(draft.now, number, text))
    return Done()
