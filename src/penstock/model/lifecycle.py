"""The lifecycle of a message, as a table. `docs/architecture.md` shows the picture made from it.

Each letter is what a reader of the Event Log sees. A row says: in this state, that event may happen, and the message
is then in that state. Whatever is not in the table cannot happen: `evolve` asserts it, live and in replay.
"""

from __future__ import annotations

from enum import IntEnum

from penstock.model.kinds import LETTERS, Kind


class State(IntEnum):
    """Where a message is now. The number is what its row holds."""

    GONE = 0  # Not, or no longer, in the queue.
    READY = 1
    DELAYED = 2  # Waits for its time.
    LEASED = 3  # With a consumer.
    KEPT = 4  # No longer for workers, still there for receivers: in a queue that keeps everything.
    DAMAGED = 5  # Set aside: its bytes on the disk cannot be read.


# The same as plain numbers, for the hot paths: looking a member up in an enum costs more than the comparison.
GONE, READY, DELAYED, LEASED, KEPT, DAMAGED = (int(state) for state in State)


WAITING = (State.READY, State.DELAYED)
DONE_WITH = (State.GONE, State.KEPT)  # Which of them is for the queue to say: `keep`.

# The consumer of a message says what has become of it. Where several have to confirm it, that may change nothing.
OUTCOMES = (Kind.INVALID, Kind.NOT_INTERESTED)

TRANSITIONS: dict[tuple[State, Kind], tuple[State, ...]] = {
    (State.GONE, Kind.LOGGED): WAITING,
    (State.GONE, Kind.QUEUED): WAITING,
    (State.GONE, Kind.UNCHANGED): (State.GONE,),
    (State.READY, Kind.FETCHED): (State.LEASED,),
    (State.READY, Kind.KICKED): DONE_WITH,
    (State.READY, Kind.SUCCEEDED): DONE_WITH,
    (State.READY, Kind.DEAD_LETTERED): (State.GONE,),
    (State.READY, Kind.EXPIRED): (State.GONE,),
    (State.READY, Kind.DELETED): (State.GONE,),
    (State.READY, Kind.MOVED): (State.GONE,),
    (State.DELAYED, Kind.SUCCEEDED): DONE_WITH,
    (State.DELAYED, Kind.EXPIRED): (State.GONE,),
    (State.DELAYED, Kind.DELETED): (State.GONE,),
    (State.DELAYED, Kind.MOVED): (State.GONE,),
    (State.DELAYED, Kind.RESCHEDULED): WAITING,
    (State.LEASED, Kind.SUCCEEDED): DONE_WITH,
    (State.LEASED, Kind.RETRIED): WAITING,
    (State.LEASED, Kind.EXASPERATED): DONE_WITH,
    (State.LEASED, Kind.DEAD_LETTERED): (State.GONE,),
    (State.LEASED, Kind.EXPIRED): (State.GONE,),
    (State.LEASED, Kind.DELETED): (State.GONE,),
    (State.KEPT, Kind.EXPIRED): (State.GONE,),
    (State.KEPT, Kind.DELETED): (State.GONE,),
    # One of several consumers may use up its deliveries whatever workers do with the message.
    (State.DELAYED, Kind.DEAD_LETTERED): (State.GONE,),
    (State.KEPT, Kind.DEAD_LETTERED): (State.GONE,),
    **{(state, Kind.FAILED): DONE_WITH for state in (State.READY, State.DELAYED, State.LEASED, State.KEPT)},
    **{
        (state, kind): (*DONE_WITH, state)
        for state in (State.READY, State.DELAYED, State.LEASED)
        for kind in OUTCOMES
    },
    **{(state, Kind.COMPLETED): DONE_WITH for state in (State.READY, State.DELAYED, State.LEASED, State.KEPT)},
    # What receivers do with a message changes nothing for workers; nor does a longer lease.
    **{
        (state, kind): (state,)
        for state in (State.READY, State.DELAYED, State.LEASED, State.KEPT)
        for kind in (Kind.DELIVERED, Kind.HANDED_OVER, Kind.GIVEN_BACK, Kind.RESULT_STORED, Kind.EXTENDED)
    },
    **{(State.KEPT, kind): (State.KEPT,) for kind in OUTCOMES},
    # A consumer that got a message before it was damaged may still say what has become of it.
    **{(state, Kind.DAMAGED): (State.DAMAGED,) for state in (*WAITING, State.LEASED, State.KEPT)},
    **{(State.DAMAGED, kind): (State.GONE,) for kind in (Kind.SUCCEEDED, *OUTCOMES, Kind.EXPIRED, Kind.DELETED)},
    (State.DAMAGED, Kind.RESULT_STORED): (State.DAMAGED,),
    (State.DAMAGED, Kind.RESTORED): (*WAITING, State.KEPT),
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
