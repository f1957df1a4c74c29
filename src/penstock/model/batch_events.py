"""Events of batches of a stream processor, each counted once and as a whole.

Readers of the Event Log do not see them, only the messages that are logged from them.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.model.kinds import Event, Kind
from penstock.model.values import Nanos


class Staged(Event, frozen=True, gc=False):
    """Rows were received and saved. They are not messages yet."""

    kind: ClassVar[Kind] = Kind.STAGED
    query: str
    batch: int
    part: str
    chunk: int
    rows: int
    expires_at: Nanos
    data: bytes


class BatchCommitted(Event, frozen=True, gc=False):
    """The rows staged in these parts are committed, and all others of the batch are dropped."""

    kind: ClassVar[Kind] = Kind.BATCH_COMMITTED
    query: str
    batch: int
    parts: tuple[str, ...]


class Admitted(Event, frozen=True, gc=False):
    """The rows of a committed batch before this chunk and row are in their queues."""

    kind: ClassVar[Kind] = Kind.ADMITTED
    query: str
    batch: int
    chunk: int
    row: int


class Unstaged(Event, frozen=True, gc=False):
    """A batch that was not committed was dropped."""

    kind: ClassVar[Kind] = Kind.UNSTAGED
    query: str
    batch: int
