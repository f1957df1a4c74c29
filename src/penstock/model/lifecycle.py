"""The lifecycle of a message, made from the table of kinds. `docs/architecture.md` shows the picture made here.

In this state that event may happen, and the message is then in one of those states. What is not in the table cannot
happen: `evolve` asserts it, live and in replay.
"""

from __future__ import annotations

from penstock.model.kinds import LETTERS, Kind, State

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


def diagram() -> str:
    """The picture of the table, in Mermaid."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, kind), targets in TRANSITIONS.items():
        for target in targets:
            label = f"{LETTERS.get(kind, '')} {kind.name.lower().replace('_', ' ')}"
            arrows.setdefault((_node(state), _node(target)), []).append(label.strip())
    arrows[State.DELAYED.name.title(), State.READY.name.title()].append("its time comes")
    lines = [f"    {source} --> {target}: {', '.join(labels)}" for (source, target), labels in arrows.items()]
    return "\n".join(["stateDiagram-v2", *lines])


def _node(state: State) -> str:
    return "[*]" if state is State.GONE else state.name.title()
