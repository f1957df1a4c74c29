"""Glovebox: messages over WebSocket, with a notice at every stage of their life. `docs/glovebox.md` has it in prose,
`/asyncapi.json` for machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.dialects.glovebox.codec import BINCODE, JSON, Codec
from penstock.dialects.glovebox.guest import Guest
from penstock.dialects.glovebox.replies import FramePeer
from penstock.dialects.glovebox.session import Session
from penstock.dialects.glovebox.sessions import Sessions, Settings
from penstock.dialects.wire.conversation import Conversation
from penstock.dialects.wire.http import Headers
from penstock.limits import SESSION_ID_MAX
from penstock.model.access import EVERYTHING, NOBODY, Access


class Glovebox:
    """The dialect: conversations at `/connect/`."""

    def __init__(
        self,
        settings: Settings,
        random: Callable[[], int],
        login: Callable[[FramePeer, str], Access] = lambda _, __: EVERYTHING,
    ) -> None:
        """`random`: a new number up to `SESSION_ID_MAX`
        that cannot be guessed. `login`: the access that a token grants."""
        self._login = login
        self._sessions = Sessions(settings, random)

    def connect(self, peer: FramePeer, headers: Headers) -> Conversation:
        """Begin or continue the session that a new connection asks for in its headers, once its client is known."""
        begin = partial(self._begin, peer, headers)
        return Guest(peer, partial(self._login, peer), begin) if peer.access is NOBODY else begin()

    def _begin(self, peer: FramePeer, headers: Headers) -> Conversation:
        codec = BINCODE if _is_true(headers, b"binary") else JSON
        session = self._session_of(headers.get(b"reconnect-as", b""), peer.access)
        if session is None:
            session = self._sessions.begin(peer.access.identity, durable=_is_true(headers, b"durable-session"))
        return _Line(session, peer, codec)

    def _session_of(self, text: bytes, access: Access) -> Session | None:
        """A session is continued only by the identity that has begun it."""
        known = text.isdigit() and len(text) <= len(str(SESSION_ID_MAX))
        session = self._sessions.find(int(text)) if known else None
        return session if session and session.owner == access.identity else None


def _is_true(headers: Headers, name: bytes) -> bool:
    return headers.get(name, b"").strip().lower() in (b"true", b"1")


class _Line:
    """One connection of a session, the newest one as a rule."""

    __slots__ = ("_codec", "_peer", "_session", "received", "settle")

    def __init__(self, session: Session, peer: FramePeer, codec: Codec) -> None:
        self._session = session
        self._peer = peer
        self._codec = codec
        self.received = session.received  # Not a method of its own: that would be one more call for each frame.
        self.settle = session.settle

    def opened(self) -> None:
        self._session.attach(self._peer, self._codec)

    def closed(self) -> None:
        self._session.detach(self._peer)
