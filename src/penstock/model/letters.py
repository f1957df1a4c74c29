"""The letters of the Event Log: what readers of events, the message document and the lake understand by each."""

from __future__ import annotations

from msgspec import Struct

from penstock.model.kinds import LETTERS


class Letter(Struct, frozen=True):
    """What holds for a letter, whichever kind of event it belongs to."""

    letter: str
    word: str
    delivers: bool = False  # A consumer gets the message.
    settles: bool = False  # A consumer reports an outcome.
    leaves: bool = False  # Workers are done with the message, or never see it.
    ends_lease: bool = False  # Nothing more is to be expected of the last delivery.


# The letters of a record about one message happen in this order. The lake stores where a letter stands in it: never
# change that.
TABLE = (
    Letter("L", "logged"),
    Letter("U", "unchanged", leaves=True),
    Letter("Q", "queued"),
    Letter("F", "fetched", delivers=True),
    Letter("K", "handed over", delivers=True, leaves=True),
    Letter("R", "retry", ends_lease=True),
    Letter("S", "success", settles=True, ends_lease=True),
    Letter("I", "invalid", settles=True, leaves=True, ends_lease=True),
    Letter("N", "not interested", settles=True, leaves=True, ends_lease=True),
    Letter("X", "completed", leaves=True),
    Letter("E", "failed", leaves=True, ends_lease=True),
    Letter("Z", "expired", leaves=True, ends_lease=True),
    Letter("D", "deleted", leaves=True, ends_lease=True),
    Letter("M", "moved", leaves=True),  # Only in the lake: the message has left a queue for another.
    Letter("B", "broken"),
)
ORDER = "".join([row.letter for row in TABLE])
DELIVERS = "".join([row.letter for row in TABLE if row.delivers])
SETTLES = "".join([row.letter for row in TABLE if row.settles])
LEAVES = "".join([row.letter for row in TABLE if row.leaves])
ENDS_LEASE = "".join([row.letter for row in TABLE if row.ends_lease])
LOGGED = frozenset("".join(LETTERS.values()))  # Those that the log has.

assert frozenset(ORDER) == LOGGED | {"M"}
for _row in (kind.row for kind in LETTERS):
    _here = _row.letters.removesuffix("Q") if _row.moves else _row.letters  # Q is about the queue that it moves to.
    assert [*_here] == sorted(_here, key=ORDER.index)
    assert not (_row.ends or _row.moves) or (_here or "M")[-1] in LEAVES
