"""The names that numbers in the log stand for: of queues, and all other names, even after they were forgotten.

The engine has the names in use. Others are looked up in the log, each part of which is searched once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from threading import Lock

from penstock.broker.writer.port import ServicePort
from penstock.limits import NAMES_FOUND_MAX, NAMES_LOOKED_UP_MAX, QUEUES_REMEMBERED_MAX
from penstock.storage.log.batch import Header
from penstock.storage.log.names import names_defined, queues_created
from penstock.storage.log.trace_index import Traces
from penstock.storage.log.traces import find_name
from penstock.storage.log.view import Cursor, View


class _LogSearch:
    """Texts by number, found in the part of the log searched so far. Thread-safe."""

    def __init__(
        self, view: Callable[[], View], texts_in: Callable[[Header, bytes], dict[int, str]], most: int
    ) -> None:
        self.found: dict[int, str] = {}
        self._view = view
        self._texts_in = texts_in
        self._most = most
        self._cursor = Cursor(0)
        self._lock = Lock()

    def go_on(self) -> dict[int, str]:
        """Search what was appended to the log since the last call."""
        with self._lock:
            for batches in self._cursor.read_on(self._view()):
                for batch in batches:
                    self.found.update(self._texts_in(*batch))
                if len(self.found) > self._most:
                    self.found = dict(islice(self.found.items(), len(self.found) - self._most, None))
        return self.found


class QueueNames:
    """Names of queues by number. Those seen since the broker started are remembered."""

    def __init__(self, writer: ServicePort, view: Callable[[], View]) -> None:
        self._writer = writer
        self._engine = writer.engine
        self._seen: dict[int, str] = {}
        self._seen_to = 0
        self._search = _LogSearch(view, queues_created, QUEUES_REMEMBERED_MAX)
        self._unknown: set[int] = set()  # Not in the log either.

    def remember(self) -> None:
        """Remember the new queues. Called in the thread of the event loop."""
        engine = self._writer.engine
        if engine is not self._engine:
            # The log has failed and was replayed: a queue that was not durable is gone, and its number may be reused.
            self._engine, self._seen, self._seen_to = engine, {}, 0
        if engine.last_queue == self._seen_to:
            return
        fresh = range(self._seen_to + 1, engine.last_queue + 1)
        known = engine.queues if len(fresh) > len(engine.queues) else fresh
        self._seen |= {number: engine.queues[number].name for number in known if number in engine.queues}
        self._seen_to = engine.last_queue
        while len(self._seen) > QUEUES_REMEMBERED_MAX:
            del self._seen[next(iter(self._seen))]  # The oldest. The engine still has those that exist.

    def name(self, number: int) -> str | None:
        """The name of a queue in durable events. Thread-safe."""
        name = self._known(number)
        if name is None and number not in self._unknown:
            self._search.go_on()
            name = self._known(number)
            if name is None:
                self._unknown.add(number)
        return name

    def all(self, numbers: range) -> dict[int, str]:
        """Every known name, once the creation of the queues with these numbers is durable."""
        names = {number: self.name(number) for number in numbers}
        return {number: name for number, name in names.items() if name is not None}

    def _known(self, number: int) -> str | None:
        engine = self._writer.engine
        queue = engine.queues.get(number)
        if queue:
            return queue.name
        return self._seen.get(number) or engine.couriers.origins.get(number) or self._search.found.get(number)


class NameTexts:
    """The texts of all other names by number. The event that forgets a name repeats its text."""

    def __init__(self, writer: ServicePort, view: Callable[[], View]) -> None:
        self._writer = writer
        self._search = _LogSearch(view, names_defined, NAMES_FOUND_MAX)
        self._looked_up: dict[int, str | None] = {}

    def name(self, number: int) -> str | None:
        """The text of a name in durable events. Thread-safe. If it is forgotten, all of the log is searched once: for
        readers that will meet many."""
        if not number:
            return None
        return self._known(number) or self._search.go_on().get(number)

    def look_up(self, number: int, traces: Traces, view: View) -> str | None:
        """The same, for somebody who needs a few: reads no more of the log than an index says."""
        if not number:
            return None
        known = self._known(number) or self._looked_up.get(number)
        if known is None and number not in self._looked_up:
            if len(self._looked_up) >= NAMES_LOOKED_UP_MAX:
                self._looked_up = {}
            known = self._looked_up[number] = find_name(traces, view, number)
        return known

    def since(self, first: int) -> tuple[dict[int, str], int]:
        """The names in use from this number on, and the number after the last one; all names if numbering has
        restarted since. Called in the thread of the event loop."""
        names = self._writer.engine.names
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
        """The names of `since`, and the forgotten ones from this number on. Thread-safe."""
        if len(found) >= following - max(first, 1):
            return found
        recalled = self._writer.engine.names.recalled.copy()
        forgotten = {number: text for number, text in (self._search.go_on() | recalled).items() if number >= first}
        return forgotten | found

    def _known(self, number: int) -> str | None:
        names = self._writer.engine.names
        return names.texts.get(number) or names.recalled.get(number) or self._search.found.get(number)
