"""The columns of decoded batches: how each is built from the records, and which rows have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.limits import NEVER_NS
from penstock.storage.letters import forms
from penstock.storage.letters.forms import Mask
from penstock.storage.letters.rows import Array, Rows
from penstock.storage.log.batch import HAS_DIGEST


class Values(NamedTuple):
    """A value for each row. `valid`: which rows have one; None: all of them."""

    values: Array
    valid: Mask | None = None


class Part(NamedTuple):
    """A part of what the heap has for each record. `present`: which rows have it; None: none of them."""

    slot: int
    present: Mask | None


def _time(name: str, present: Mask) -> Callable[[Rows], Values]:
    """A time that only rows of some forms have, and that may be never."""

    def build(rows: Rows) -> Values:
        times = rows.column(name)
        return Values(times, rows.are(present) & (times != NEVER_NS))

    return build


def _receives(rows: Rows) -> Values:
    values = rows.column("receives").astype(np.int64)
    values[rows.moved] = 0  # They are counted anew there.
    return Values(values)


def _name(name: str) -> Callable[[Rows], Values]:
    def build(rows: Rows) -> Values:
        numbers = rows.column(name)
        if len(rows.moved):
            numbers[rows.moved] = 0
        return Values(numbers)

    return build


def _target(name: str, source: str) -> Callable[[Rows], Values]:
    def build(rows: Rows) -> Values:
        values = rows.column(name)
        if len(rows.moved):
            values[rows.moved] = rows.records[source][rows.index[rows.moved]]
        return Values(values, rows.are(forms.HAS_TARGET))

    return build


NAMES = ("consumer", "content_type", "sender", "object", "topics")  # Numbers that stand for texts.

NUMBERS: dict[str, Callable[[Rows], Values]] = {
    "offset": lambda rows: Values(rows.offset),
    "letter": lambda rows: Values(forms.LETTER.take(rows.form)),
    "kind": lambda rows: Values(rows.column("kind")),
    "time": lambda rows: Values(rows.column("time")),
    "queue": lambda rows: Values(rows.queue),
    "sequence": lambda rows: Values(rows.sequence, rows.of_messages),
    "created": lambda rows: Values(rows.column("created"), rows.of_messages),
    "visible_at": _time("visible_at", forms.HAS_VISIBLE_AT),
    "expires_at": _time("expires_at", forms.HAS_EXPIRES_AT),
    "priority": lambda rows: Values(rows.column("priority").astype(np.int64), rows.are(forms.HAS_FACTS)),
    "receives": _receives,
    **{name: _name(name) for name in NAMES},
    "to_queue": _target("to_queue", "queue"),
    "to_sequence": _target("to_sequence", "sequence"),
}


def _part(slot: int, sizes: Callable[[Rows], Array], chosen: Mask) -> Callable[[Rows], Part]:
    """A slot, for rows of these forms where it is not empty."""

    def build(rows: Rows) -> Part:
        filled = sizes(rows) != 0
        return Part(slot, rows.are(chosen) & filled[rows.index] if filled.any() else None)

    return build


PARTS: dict[str, Callable[[Rows], Part]] = {
    "body": lambda rows: Part(0, rows.are(forms.HAS_CONTENT)),
    "result": _part(0, lambda rows: rows.result_bytes, forms.HAS_RESULT),
    "key": _part(1, lambda rows: rows.records["key_bytes"], forms.HAS_OWN),
    "headers": _part(2, lambda rows: rows.records["headers_bytes"], forms.HAS_OWN),
    "digest": _part(3, lambda rows: rows.records["flags"] & HAS_DIGEST, forms.HAS_CONTENT),
}
