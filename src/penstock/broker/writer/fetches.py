"""Commands that wait until a part of the log is fetched from another machine. Then they are decided again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from penstock.broker.writer.port import Reply
from penstock.broker.writer.scheduler import Scheduler
from penstock.errors import Reason
from penstock.model.answers import Refused

Again = Callable[[], None]


class Fetches:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: dict[Future[None], list[tuple[Reply, Again]]] = {}  # By what they wait for.

    def add(self, fetch: Future[None], reply: Reply, again: Again) -> None:
        """Call `again` when the fetch is done, or refuse if it fails."""
        if fetch not in self._waiting:
            self._waiting[fetch] = []
            fetch.add_done_callback(lambda done: self._scheduler.from_thread(lambda: self._is_done(done)))
        self._waiting[fetch].append((reply, again))

    def _is_done(self, fetch: Future[None]) -> None:
        error = None if fetch.cancelled() else fetch.exception()
        is_gone = isinstance(error, FileNotFoundError)  # It was removed meanwhile, and is not needed any more.
        for reply, again in self._waiting.pop(fetch, ()):
            if error and not is_gone:
                reply(Refused(Reason.UNAVAILABLE, f"it cannot be read: {error}"))
            else:
                again()

    def take(self) -> list[Reply]:
        """Those who wait. They are not called again."""
        waiting, self._waiting = self._waiting, {}
        return [reply for entries in waiting.values() for reply, _ in entries]
