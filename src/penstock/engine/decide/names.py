"""Names that nobody uses are forgotten."""

from __future__ import annotations

from penstock.engine.state import EngineState
from penstock.limits import NAMES_FORGOTTEN_AT_ONCE
from penstock.model.answers import Decision, Done
from penstock.model.commands import ForgetNames
from penstock.model.events import NameForgotten
from penstock.model.values import Nanos


def forget_names(engine: EngineState, _: ForgetNames, now: Nanos) -> Decision:
    """Forget some of the names that the sweep has found to be unused."""
    unused = engine.names.some_unused(NAMES_FORGOTTEN_AT_ONCE)
    return Decision([NameForgotten(now, number, text) for number, text in unused], Done())
