"""Stores names that repeat (content types, senders, objects, topics, consumers) as numbers, defined by events in the
log.

A name that is no longer used is forgotten. A sweep examines every row and every receiver, a slice at a time; a name
that it did not find, and that was not looked up since it began, is unused. Forgetting is an event, so a replay
forgets the same names at the same place. The event repeats the text, because readers of the log may meet the number
after the segment with the definition was removed.

Numbers increase and are not reused, except that they start again after two billion.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from penstock import limits
from penstock.errors import Reason
from penstock.model.answers import Refused


class Names:
    def __init__(self, most: int = limits.NAMES_DEFAULT) -> None:
        self.most = most
        self.texts: dict[int, str] = {0: ""}  # Number 0 is no name.
        self.last = 0  # The number that was assigned last.
        self.characters = 0  # Total length of all texts.
        self.recalled: OrderedDict[int, str] = OrderedDict()  # Recently forgotten, for readers of the log. Not state.
        self._recalled_characters = 0
        # Each name is in one of the two: looked up since the current sweep began, or not. Without a sweep, all are in
        # the first, so that one lookup finds them.
        self.numbers: dict[str, int] = {"": 0}
        self._unasked: dict[str, int] = {}
        self._doomed: list[int] = []  # At the end of a sweep: to be forgotten, unless they are looked up first.
        self._swept_at = limits.NAMES_SWEPT_MIN  # With this many names, the next sweep is worthwhile,
        self._long_at = limits.NAMES_CHARACTERS_MIN  # and with this many characters in them.
        self._refused = False  # Whether a name was refused since the last sweep.

    def __len__(self) -> int:
        return len(self.texts) - 1

    # ── Look-ups ────────────────────────────────────────────────────────────────────────────────────────────

    def known(self, text: str) -> int:
        """The number of a name, 0 if it has none. The caller may use the number, so a sweep keeps the name."""
        number = self.numbers.get(text)
        if number is None:
            number = self._unasked.pop(text, 0)
            if number:
                self.numbers[text] = number
        return number

    def refusal(self, text: str, more: int, more_characters: int) -> Refused | None:
        """Why there is no room for a new name; None if there is. Both the number of names and their total length are
        limited. `more`, `more_characters`: names of the current decision that are not applied yet."""
        count, characters = len(self) + more, self.characters + more_characters
        is_too_long = len(text) > limits.NAMES_CHARACTERS_EACH and characters + len(text) > self._most_characters
        if count < self.most and not is_too_long:
            return None
        self._refused = True
        long = f" with {characters} characters" if count < self.most else ""
        in_use = f"{count} content types, senders, objects, sets of topics and consumers{long} are in use"
        return Refused(Reason.TOO_MANY_NAMES, in_use)

    @property
    def _most_characters(self) -> int:
        return max(self.most * limits.NAMES_CHARACTERS_EACH, limits.NAMES_CHARACTERS_MIN)

    def next_number(self, number: int) -> int:
        """The next free number after this one."""
        while True:
            number = number % limits.NAME_NUMBER_MAX + 1
            if number not in self.texts:
                return number

    # ── Changes by events ───────────────────────────────────────────────────────────────────────────────────

    def define(self, number: int, text: str) -> None:
        assert number not in self.texts, "a number stands for one name"
        assert not self.known(text), "a name has one number"
        self.texts[number] = text
        self.numbers[text] = number
        self.last = number
        self.characters += len(text)

    def forget(self, number: int) -> None:
        text = self.texts.pop(number)
        self.characters -= len(text)
        if self._unasked.pop(text, 0) == 0:
            del self.numbers[text]
        self._recalled_characters += len(text) - len(self.recalled.pop(number, ""))
        self.recalled[number] = text
        while self._recalled_characters > limits.NAMES_RECALLED_CHARACTERS_MAX or self._has_recalled_enough:
            self._recalled_characters -= len(self.recalled.popitem(last=False)[1])

    @property
    def _has_recalled_enough(self) -> bool:
        return len(self.recalled) > limits.NAMES_RECALLED_MAX

    # ── Sweeps ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def are_worth_a_sweep(self) -> bool:
        """Whether the table has grown much since the last sweep, or a name was refused."""
        return self._refused or len(self) >= self._swept_at or self.characters >= self._long_at

    @property
    def are_swept(self) -> bool:
        return bool(self._unasked)

    @property
    def has_unused(self) -> bool:
        """Whether a sweep has ended and there are names left to forget."""
        return bool(self._doomed)

    def some_unused(self, most: int) -> list[tuple[int, str]]:
        """After a sweep: names that it did not find and that were not looked up. Each is returned once."""
        some = self._doomed[-most:]
        del self._doomed[-most:]
        pairs = [(number, self.texts[number]) for number in some]
        return [(number, text) for number, text in pairs if text in self._unasked]

    def begin_sweep(self) -> None:
        assert not self._unasked
        self._refused = False
        self._unasked, self.numbers = self.numbers, {"": 0}
        del self._unasked[""]

    def keep(self, numbers: Iterable[int]) -> None:
        """Mark names as used."""
        for number in numbers:
            self.known(self.texts[number])

    def have_been_swept(self) -> None:
        """Note that everything that uses names was examined."""
        self._doomed = list(self._unasked.values())

    def end_sweep(self) -> None:
        self._doomed = []
        self._unasked, unused = {}, self._unasked
        self.numbers |= unused
        # At most half of the remaining room is filled first, so that a sweep can free names before it is used up.
        grown = max(limits.NAMES_SWEPT_MIN, min(2 * len(self), (len(self) + self.most) // 2))
        self._swept_at = max(grown, len(self) + limits.NAMES_SWEPT_MIN // 4)
        longer = min(2 * self.characters, (self.characters + self._most_characters) // 2)
        self._long_at = self.characters + max(limits.NAMES_CHARACTERS_MIN // 4, longer - self.characters)

    # ── Snapshots ───────────────────────────────────────────────────────────────────────────────────────────

    def stored(self) -> StoredNames:
        numbers = list(self.texts)
        has_gaps = numbers != list(range(len(numbers)))
        last = self.last if self.last != len(numbers) - 1 else 0
        return StoredNames(list(self.texts.values()), numbers if has_gaps else [], last)

    def restore(self, stored: StoredNames) -> None:
        self.texts = {0: ""} | stored.by_number()
        self.last = stored.last_name or len(stored.names) - 1
        self.numbers = {text: number for number, text in self.texts.items()}
        self.characters = sum(map(len, self.numbers))


class StoredNames(msgspec.Struct, omit_defaults=True):
    """The table in a snapshot. A version that never forgot names wrote only the texts, in the order of numbers."""

    names: list[str]
    numbers: list[int] = []
    last_name: int = 0

    def by_number(self) -> dict[int, str]:
        numbers = self.numbers or range(len(self.names))
        return {number: text for number, text in zip(numbers, self.names, strict=True) if number}
