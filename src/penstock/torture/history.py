"""What the clients saw, event by event: the types, and the files that keep the newest of them.

A request that was answered is an event, and so is one that was sent. A request without an answer may or may not have
had its effect: there is only the event that it was sent. Times are seconds since the run began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

FILE_BYTES_MAX = 64 << 20
FILES_MAX = 8


class Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    """`about` is what an event belongs to: a message, a receiver, a session or the broker."""

    at: float
    about: str


# ── Messages. `about` is the name of the message: its producer and a number that counts from 1.


class Sent(Event, frozen=True, tag="sent"):
    by: str
    queue: str
    promise: str = ""  # More than that it is kept: "dedup", "idempotency", "change" or "notices".
    lives: float = 0.0  # Seconds until it expires; 0: never.


class Stored(Event, frozen=True, tag="stored"):
    """A publish was acknowledged. `new` is false if the broker says that it had the message already."""

    by: str
    id: str = ""
    new: bool = True


class Taken(Event, frozen=True, tag="taken"):
    """A message was delivered under a lease, by a request that was sent at `asked_at`."""

    by: str
    queue: str
    asked_at: float
    lease: float
    id: str = ""
    sound: bool = True  # The body is the one that was sent.


class Finishing(Event, frozen=True, tag="finishing"):
    by: str
    id: str = ""


class Finished(Event, frozen=True, tag="finished"):
    by: str
    id: str = ""


class GivingBack(Event, frozen=True, tag="giving_back"):
    by: str
    id: str = ""


# ── Receivers of a queue that keeps its messages. `about` is the queue and the receiver.


class Pulling(Event, frozen=True, tag="pulling"):
    pass


class Pulled(Event, frozen=True, tag="pulled"):
    asked_at: float
    messages: dict[int, str]  # Names by sequence, in the order of the answer.
    fail_timeout: float = 0.0  # Seconds after which a message without a result comes again; 0: never.


class ResultSent(Event, frozen=True, tag="result_sent"):
    sequence: int
    result: str


class ResultStored(Event, frozen=True, tag="result_stored"):
    sequence: int


class ResultRead(Event, frozen=True, tag="result_read"):
    sequence: int
    result: str | None
    asked_at: float


# ── Notices. `about` is the message.


class Noticed(Event, frozen=True, tag="noticed"):
    session: str
    notice: str


class SessionCut(Event, frozen=True, tag="session_cut"):
    """A connection ended; notices may be lost. `about` is the session."""


# ── The broker.


class Fault(Event, frozen=True, tag="fault"):
    kind: str
    detail: str = ""


class Started(Event, frozen=True, tag="started"):
    """A broker listens. `jumped`: its clock differs from that of the process before."""

    seconds: float
    jumped: bool = False


class Unexpected(Event, frozen=True, tag="unexpected"):
    """An answer that the documentation does not name, or none in time."""

    answer: str


AnyEvent = (
    Sent
    | Stored
    | Taken
    | Finishing
    | Finished
    | GivingBack
    | Pulling
    | Pulled
    | ResultSent
    | ResultStored
    | ResultRead
    | Noticed
    | SessionCut
    | Fault
    | Started
    | Unexpected
)


class History:
    """Writes events to files, the newest of which are kept, and passes them on."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self.directory = directory
        self.listeners: list[Callable[[AnyEvent], None]] = []
        self.clock = clock
        self._files: list[Path] = []
        self._encoder = msgspec.json.Encoder()
        self._begin()

    def _begin(self) -> None:
        number = int(self._files[-1].stem.rpartition("-")[2]) + 1 if self._files else 1
        self._files.append(self.directory / f"history-{number:04}.jsonl")
        self._file = self._files[-1].open("wb")
        if len(self._files) > FILES_MAX:
            self._files.pop(0).unlink()

    def record(self, event: AnyEvent) -> None:
        self._file.write(self._encoder.encode(event) + b"\n")
        if self._file.tell() > FILE_BYTES_MAX:
            self._file.close()
            self._begin()
        for listener in self.listeners:
            listener(event)

    def close(self) -> None:
        self._file.close()

    def about(self, subject: str) -> list[AnyEvent]:
        """The events of one subject, and the faults and starts between the first and the last of them. Once the
        history is closed."""
        found = [event for path in self._files for event in read(path) if event.about in (subject, "broker")]
        wanted = [number for number, event in enumerate(found) if event.about == subject]
        return found[wanted[0] : wanted[-1] + 1] if wanted else []


def read(path: Path) -> Iterator[AnyEvent]:
    decoder = msgspec.json.Decoder(AnyEvent)
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)
