"""What the rows of each letter have: masks over all forms, derived from the table of kinds.

A form is a letter as part of a kind of record: the Q of a message that was logged, the Q of one that was moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.model.kinds import LETTERS, Kind, kinds_where
from penstock.storage.log.batch import FLAGS, HAS_DIGEST, Header

Mask = NDArray[np.bool_]


class _Form(NamedTuple):
    """A letter as part of a kind of record."""

    kind: Kind
    letter: str


def _letters(kind: Kind, flags: int) -> str:
    letters = kind.row.letters
    for letter, field in kind.row.only_if.items():
        if not flags & FLAGS[field]:
            letters = letters.replace(letter, "")
    return letters


# These tables are indexed by the first two bytes of a record, kind and flags, as one number.
_FLAGS = HAS_DIGEST | sum(FLAGS.values())
KEY_MASK = _FLAGS << 8 | 0xFF
_FORMS = [_Form(kind, letter) for kind, letters in LETTERS.items() for letter in letters]
UNKNOWN = 255
ROWS_OF = np.full(KEY_MASK + 1, UNKNOWN, dtype=np.uint8)  # How many rows a record makes.
FIRST_FORM = np.zeros(KEY_MASK + 1, dtype=np.uint8)  # The others follow it in `_FORMS`.
for _kind in Kind:
    for _flags in range(_FLAGS + 1):
        _shown = _letters(_kind, _flags)
        ROWS_OF[_flags << 8 | _kind] = len(_shown)
        if _shown:
            FIRST_FORM[_flags << 8 | _kind] = _FORMS.index(_Form(_kind, _shown[0]))


def _are(chosen: Callable[[_Form], bool]) -> Mask:
    return np.array([chosen(form) for form in _FORMS], dtype=np.bool_)


def _store(field: str) -> Mask:
    return _are(lambda form: field in form.kind.row.stores)


def _letter_is(letters: str) -> Mask:
    return _are(lambda form: form.letter in letters)


# A message that is moved has the facts of its new place on Q. If it is moved because it failed, that place is on E.
IS_OF_MESSAGE = _are(lambda form: form.kind.row.about == "message")
IS_MOVED = _are(lambda form: form.kind.row.moves) & _letter_is("Q")
HAS_FACTS = _store("priority")
IS_FIRST = _are(lambda form: form.letter == form.kind.row.letters[0])  # Mostly L; Q of what another shard sends.
HAS_CONTENT = _store("body") & IS_FIRST
HAS_OWN = _store("key") & IS_FIRST
# The reason that a consumer gives is the result of a delivery that failed.
HAS_RESULT = (_store("result") & _letter_is("S")) | (_store("reason") & _letter_is("REI"))
HAS_TARGET = _store("to_queue") & (_letter_is("E") | _are(lambda form: "E" not in form.kind.row.letters))
HAS_VISIBLE_AT = _store("visible_at") & ~_letter_is("E")
HAS_EXPIRES_AT = _store("expires_at") & (HAS_FACTS | IS_MOVED)
OF_QUEUES = kinds_where(lambda row: row.letters and row.about == "queue")
WITH_RESULT = kinds_where(lambda row: row.letters and ("result" in row.stores or "reason" in row.stores))
LETTER = np.array([ord(form.letter) for form in _FORMS], dtype=np.uint8)


RECORDS_PER_GROUP = 8_192  # Measured: smaller groups pay for the calls, larger ones for touching fresh memory.
BYTES_PER_GROUP = 64 << 20  # Bodies end a group earlier; Arrow's offsets have room for 2 GiB.

_Batch = TypeVar("_Batch")


def grouped(
    batches: Iterable[_Batch], header_of: Callable[[_Batch], Header], records_min: int = RECORDS_PER_GROUP
) -> Iterator[list[_Batch]]:
    """Batches in groups that are worth decoding together."""
    group: list[_Batch] = []
    records = size = 0
    for batch in batches:
        header = header_of(batch)
        group.append(batch)
        records += header.records
        size += header.heap_bytes
        if records >= records_min or size >= BYTES_PER_GROUP:
            yield group
            group = []
            records = size = 0
    if group:
        yield group
