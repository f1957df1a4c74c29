"""Who sends commands: a request or a connection, with its identity and where it comes from."""

from __future__ import annotations

from typing import Protocol

from penstock.model.access import Access


class Client(Protocol):
    @property
    def access(self) -> Access: ...

    @property
    def address(self) -> str:
        """Without the port, which is another one for each connection. Empty if it is not known."""

    @property
    def dialect(self) -> str: ...
