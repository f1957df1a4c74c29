"""What was worked out from a text, and is remembered because the same texts come again and again.

The texts come from strangers: so there are at most so many, and no long ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Text = TypeVar("Text", str, bytes)
Value = TypeVar("Value")

TEXT_LENGTH_MAX = 256  # Longer ones are worked out each time.


class _Remembered(dict[Text, Value]):
    """All is forgotten when there are too many: those that come often are soon there again."""

    def __init__(self, work_out: Callable[[Text], Value], most: int) -> None:
        super().__init__()
        self._work_out: Callable[[Text], Value] = work_out
        self._most = most

    def __missing__(self, text: Text) -> Value:
        value = self._work_out(text)
        if len(text) <= TEXT_LENGTH_MAX:
            if len(self) >= self._most:
                self.clear()
            self[text] = value
        return value


def remembered(most: int) -> Callable[[Callable[[Text], Value]], Callable[[Text], Value]]:
    """A decorator for a function of one text. What it raises is not remembered."""

    def around(work_out: Callable[[Text], Value]) -> Callable[[Text], Value]:
        known: _Remembered[Text, Value] = _Remembered(work_out, most)
        return known.__getitem__

    return around
