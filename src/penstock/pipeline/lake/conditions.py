"""SQL conditions on events, made from the tables of kinds and letters: what the tables of the lake have in common."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model import letters
from penstock.model.kinds import Kind, State, kinds_where


def kind_is(*kinds: Kind) -> str:
    return f"kind in ({', '.join(str(int(kind)) for kind in sorted(kinds))})"


def state_is(chosen: Iterable[str]) -> str:
    return f"state in ({', '.join(repr(letter) for letter in chosen)})"


def letter_of(moment: str) -> str:
    return f"substr('{letters.ORDER}', cast({moment} % 16 as int), 1)"


RANK = f"instr('{letters.ORDER}', state)"
MOMENT = f"offset * 16 + {RANK}"  # Grows from event to event, and holds the letter.
assert len(letters.ORDER) < 16

REMOVES = kind_is(Kind.QUEUE_REMOVED)  # Ends all messages of the queue, in one event without a sequence.
MOVES_BY_HAND = kind_is(Kind.MOVED)
# What receivers do changes nothing for the workers of a queue.
OF_RECEIVERS = kind_is(*kinds_where(lambda row: row.whose == "receivers"))
# The event may count the deliveries of one of several consumers.
COUNTS_ALONE = kind_is(*kinds_where(lambda row: row.letters and row.whose != "workers"))
DELIVERS = state_is(letters.DELIVERS)
SETTLES = state_is(letters.SETTLES)
OF_LEASES = state_is("F" + letters.ENDS_LEASE)  # A lease begins, or ends.
LEAVES = f"{state_is(letters.LEAVES)} and not {OF_RECEIVERS}"
ARRIVES = f"state = 'Q' and {MOVES_BY_HAND}"
# Whoever has the message, worker or receiver, has it no longer: what can end a message that workers are done with.
ENDS_FOR_ALL = (
    f"({state_is('ZDMEX')} and "
    + kind_is(*kinds_where(lambda row: row.moves or State.GONE in row.states.get(State.KEPT, ())))
    + ")"
)
