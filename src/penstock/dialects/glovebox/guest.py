"""A glovebox client that has shown no token in its headers, as browsers cannot: its first frame must be a login."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from penstock.dialects.glovebox.codec import JSON
from penstock.dialects.glovebox.replies import FramePeer
from penstock.dialects.wire.conversation import Conversation
from penstock.dialects.wire.json_bounds import NOT_JSON
from penstock.model.access import NOBODY, Access

Login = Callable[[str], Access]  # The access that a token grants; `NOBODY` if it grants none.


class _Login(Struct):
    type: str
    token: str
    label: int = 0


_decode = msgspec.json.Decoder(_Login).decode


class Guest:
    """`begin`: begins the conversation of a client that is known. Until then nothing is kept or carried out."""

    def __init__(self, peer: FramePeer, login: Login, begin: Callable[[], Conversation]) -> None:
        self._peer = peer
        self._login = login
        self._begin = begin
        self._conversation: Conversation | None = None

    def opened(self) -> None:
        """The client speaks first."""

    def received(self, frame: bytes, *, binary: bool = False) -> None:
        if self._conversation:
            self._conversation.received(frame, binary=binary)
        elif self._peer.access is NOBODY:
            self._admit(frame)

    def _admit(self, frame: bytes) -> None:
        label, access = self._shown(frame)
        if access is NOBODY:
            text = 'send {"type":"authenticate","token":"…"} with a valid token first'
            self._peer.send(JSON.error(label, "PermissionDenied", text))
            self._peer.close("no valid token")
            return
        self._peer.access = access
        self._conversation = self._begin()
        self._conversation.opened()

    def _shown(self, frame: bytes) -> tuple[int, Access]:
        try:
            login = _decode(frame)
        except NOT_JSON:
            return 0, NOBODY
        return login.label, self._login(login.token) if login.type.lower() == "authenticate" else NOBODY

    def settle(self) -> None:
        if self._conversation:
            self._conversation.settle()

    def closed(self) -> None:
        if self._conversation:
            self._conversation.closed()
