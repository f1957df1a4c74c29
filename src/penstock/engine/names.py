"""Names that repeat (content types, senders, consumers, topics) are numbered once, by a definition in the log."""

from __future__ import annotations

from penstock.limits import NAMES_MAX
from penstock.model import Event, NameDefined, Nanos


class Names:
    def __init__(self) -> None:
        self.texts: list[str] = [""]  # Number 0 is no name.
        self._numbers: dict[str, int] = {"": 0}

    def number(self, text: str, now: Nanos, events: list[Event]) -> int:
        """The number of a name. A new one is defined in `events`; when the table is full, it stays unnamed."""
        number = self._numbers.get(text)
        if number is not None:
            return number
        fresh = len(self.texts)
        for event in reversed(events):
            if type(event) is NameDefined:
                if event.text == text:
                    return event.number
                fresh = max(fresh, event.number + 1)
        if fresh >= NAMES_MAX:
            return 0
        events.append(NameDefined(time=now, number=fresh, text=text))
        return fresh

    def known(self, text: str) -> int:
        """The number of a name that has one, else 0."""
        return self._numbers.get(text, 0)

    def define(self, number: int, text: str) -> None:
        assert number == len(self.texts), "names are numbered without gaps"
        self.texts.append(text)
        self._numbers[text] = number

    def restore(self, texts: list[str]) -> None:
        self.texts = texts
        self._numbers = {text: number for number, text in enumerate(texts)}
