"""Lines of JSON over a raw socket."""

from __future__ import annotations

import json
import ssl
from typing import Any

from tests.support.raw_client import RawClient


class LineClient(RawClient):
    def __init__(self, address: tuple[str, int], receive_bytes: int = 0, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(address, tls=tls, receive_bytes=receive_bytes)

    def say(self, *commands: dict[str, Any]) -> None:
        """Sends commands, all in one write."""
        self.send(b"".join(json.dumps(command).encode() + b"\n" for command in commands))

    def hear(self) -> dict[str, Any]:
        """The next line."""
        reply = json.loads(self.read_line())
        assert isinstance(reply, dict)
        return reply

    def ask(self, **command: Any) -> dict[str, Any]:
        """Says one command and hears one line."""
        self.say(command)
        return self.hear()

    def read_line(self) -> bytes:
        return self._read_until(b"\n")
