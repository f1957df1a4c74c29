"""Every durable session of a broker, and the rules for all sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from penstock.dialects.glovebox.codec import Code
from penstock.dialects.glovebox.replies import ORIGIN_CODES
from penstock.dialects.glovebox.session import Session
from penstock.limits import LOST_SESSIONS_BYTES_MAX, SESSION_ID_MAX


class Settings(Protocol):
    @property
    def create_queues(self) -> bool: ...
    @property
    def errors(self) -> Literal["all", "origin"]: ...
    @property
    def followed_max(self) -> int: ...
    @property
    def sessions_max(self) -> int: ...
    @property
    def session_seconds(self) -> float: ...
    @property
    def session_replies_max(self) -> int: ...
    @property
    def session_bytes_max(self) -> int: ...


class Sessions:
    def __init__(self, settings: Settings, random: Callable[[], int]) -> None:
        self.settings = settings
        self.codes: dict[Code, Code] = ORIGIN_CODES if settings.errors == "origin" else {}
        self.kept_bytes = 0  # In all sessions together.
        self._random = random
        self._durable: dict[int, Session] = {}
        self._lost: dict[int, Session] = {}  # Durable sessions without a connection, oldest loss first.

    def find(self, number: int) -> Session | None:
        return self._durable.get(number)

    def begin(self, owner: str, *, durable: bool) -> Session:
        while not (number := self._random()) or number in self._durable:
            pass
        assert number <= SESSION_ID_MAX
        session = Session(self, number, owner, durable=durable)
        if durable:
            self._durable[number] = session
        return session

    def found(self, session: Session) -> None:
        """The client of a durable session is back."""
        self._lost.pop(session.id, None)

    def lost(self, session: Session) -> None:
        """A durable session has no connection any more."""
        self._lost[session.id] = session
        self._spare()

    def forget(self, session: Session) -> None:
        self._lost.pop(session.id, None)
        self._durable.pop(session.id, None)

    def kept(self, size: int) -> None:
        """So many bytes more are kept for clients that are away."""
        self.kept_bytes += size
        self._spare()

    def _spare(self) -> None:
        """Sessions whose clients have been away longest make room."""
        most = self.settings.sessions_max
        while self._lost and (len(self._lost) > most or self.kept_bytes > LOST_SESSIONS_BYTES_MAX):
            next(iter(self._lost.values())).end()
