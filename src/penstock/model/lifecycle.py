"""The lifecycle of a message, made from the table of kinds. `docs/architecture.md` shows the picture made here.

In this state that event may happen, and the message is then in one of those states. What is not in the table cannot
happen: `evolve` asserts it, live and in replay.
"""

from __future__ import annotations

from penstock.model.kinds import Kind, State

# States as plain numbers, for the hot paths: looking a member up in an enum costs more than the comparison.
GONE, READY, DELAYED, LEASED, KEPT, DAMAGED = (int(state) for state in State)

TRANSITIONS: dict[tuple[State, Kind], tuple[State, ...]] = {
    (state, kind): kind.row.states[state] for state in State for kind in Kind if state in kind.row.states
}

# Time alone makes a delayed message ready: no event is logged for it, and replay lets it happen late. So what may
# happen to a ready message may, in replay, meet one that still counts as delayed.
ALLOWED: frozenset[tuple[int, int]] = frozenset(
    [(int(state), int(kind)) for state, kind in TRANSITIONS]
    + [(int(State.DELAYED), int(kind)) for state, kind in TRANSITIONS if state is State.READY]
)
