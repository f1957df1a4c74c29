"""SQL conditions on events that the tables of the lake share, made from the tables of kinds and letters."""

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
MOMENT = f"offset * 16 + {RANK}"  # Increases with every event, and contains the letter.
assert len(letters.ORDER) < 16

REMOVES = kind_is(Kind.QUEUE_REMOVED)  # Ends all messages of the queue, in one event without a sequence.
MOVES_BY_HAND = kind_is(Kind.MOVED)
# Events of receivers, which change nothing for the workers of a queue.
OF_RECEIVERS = kind_is(*kinds_where(lambda row: row.whose == "receivers"))
# Events whose number of deliveries may be that of one consumer among several.
COUNTS_ALONE = kind_is(*kinds_where(lambda row: row.letters and row.whose != "workers"))
DELIVERS = state_is(letters.DELIVERS)
SETTLES = state_is(letters.SETTLES)
OF_LEASES = state_is("F" + letters.ENDS_LEASE)  # A lease begins, or ends.
LEAVES = f"{state_is(letters.LEAVES)} and not {OF_RECEIVERS}"
ARRIVES = f"state = 'Q' and {MOVES_BY_HAND}"
# Events that end all leases of a message, of workers and receivers: those that can end a kept message.
ENDS_FOR_ALL = (
    f"({state_is('ZDMEX')} and "
    + kind_is(*kinds_where(lambda row: row.moves or State.GONE in row.states.get(State.KEPT, ())))
    + ")"
)
