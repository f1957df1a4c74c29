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


class Cancelable(Protocol):
    def cancel(self) -> None: ...


class Pending(Cancelable, Protocol):
    """An answer that may take a while. `cancel` if the client has gone away: it is not given."""

    def give_up(self) -> None:
        """Answer with what there is: now, or as soon as something is decided."""
