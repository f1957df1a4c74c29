"""What the numbers of names in the log stand for: also of names that the engine has forgotten."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from threading import Lock

from penstock.limits import NAMES_FOUND_MAX
from penstock.server.writer.port import ServicePort
from penstock.storage.log.names import names_defined
from penstock.storage.log.view import Cursor, View


class LogNames:
    """The engine knows every name that is in use, and those that it has forgotten lately. Others are looked for in
    the log, each part of which is searched once: where a name is forgotten, its text is said once more."""

    def __init__(self, loop: ServicePort, view: Callable[[], View]) -> None:
        self._loop = loop
        self._view = view
        self._found: dict[int, str] = {}  # In the log.
        self._search = Cursor(0)
        self._lock = Lock()

    def name(self, number: int) -> str | None:
        """Called in any thread, for a name that durable events speak of."""
        if not number:
            return None
        text = self._known(number)
        if text is None:
            with self._lock:
                self._search_to(self._view())
            text = self._found.get(number)
        return text

    def since(self, first: int) -> tuple[dict[int, str], int]:
        """In the thread of the event loop: the names in use from this number on, and the number after the last one.
        Numbers that have begun anew since are all told."""
        names = self._loop.engine.names
        following = names.last + 1
        if first > following:
            first = 0
        found: dict[int, str] = {}
        for number in reversed(names.texts):
            if number < first:
                break
            found[number] = names.texts[number]
        found.pop(0, None)
        return found, following

    def with_forgotten(self, found: dict[int, str], first: int, following: int) -> dict[int, str]:
        """In a thread: with those from this number on that were forgotten, if there are any."""
        if len(found) >= following - max(first, 1):
            return found
        with self._lock:
            self._search_to(self._view())
        recalled = self._loop.engine.names.recalled.copy()
        forgotten = {number: text for number, text in (self._found | recalled).items() if number >= first}
        return forgotten | found

    def _known(self, number: int) -> str | None:
        names = self._loop.engine.names
        return names.texts.get(number) or names.recalled.get(number) or self._found.get(number)

    def _search_to(self, view: View) -> None:
        for batches in self._search.read_on(view):
            for batch in batches:
                self._found |= names_defined(*batch)
            if len(self._found) > NAMES_FOUND_MAX:  # Most likely nobody looks for the older half again.
                self._found = dict(islice(self._found.items(), NAMES_FOUND_MAX // 2, None))
