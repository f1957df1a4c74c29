"""What shells and services know of the writer: they are given a port, and import nothing else from here.

A shell sends the commands of its clients through a `ClientPort`. A service has a `ServicePort`: it can also look at
the state of the writer, read the log, and be called when something happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from penstock.broker.figures.tally import Tally
from penstock.broker.room import Room
from penstock.broker.writer.asked import Origin
from penstock.broker.writer.asked import is_over as is_over  # For services.
from penstock.broker.writer.asked import through as through
from penstock.broker.writer.recent import Recent
from penstock.engine.engine import Engine
from penstock.engine.schedules import Planned
from penstock.errors import DamagedExtentError, Reason
from penstock.model.answers import Refused
from penstock.model.client import Cancelable, Client
from penstock.model.client import Pending as PendingAnswer
from penstock.model.commands import Command, Waiting
from penstock.model.happening import Happening
from penstock.model.queries import Query
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.port import Log

Reply = Callable[[Any], None]  # Called with the answer.
# To a command of another process, which has no room for the answer. It is asked again with room.
COME_AGAIN = Refused(Reason.UNAVAILABLE, "there is no room for the answer where it was asked")
Report = Callable[[Happening], None]
Lost = Callable[[], None]


def nobody() -> None:
    """For a caller that does not ask."""


class Pending(PendingAnswer, Protocol):
    """A command that may wait for a message or a result."""

    @property
    def is_waiting(self) -> bool:
        """False if it is answered, about to be answered, or not decided yet."""


class Answering:
    """An answer that a task makes."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    @property
    def is_waiting(self) -> bool:
        return not self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    def give_up(self) -> None:
        """It comes when it is made."""


class ClientPort(Protocol):
    """Commands of clients, and what becomes of them."""

    def submit(self, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        """Decide and apply a command, and call `reply` once with the answer when it is as durable as asked. Returns
        the command if it may wait."""

    def submit_as(self, client: Client, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        """Submit a command of a client; `Refused` if its identity does not allow it."""

    def refusal(self, client: Client, command: Command) -> Refused | None:
        """Why a client may not send a command; None if it may."""

    def ask(self, client: Client, query: Query, reply: Reply, /) -> PendingAnswer | None:
        """Answer a question of a client, when what the answer has seen is durable. `reply` is called once, unless
        what is returned is cancelled first."""

    def decide_collected(self) -> None:
        """Decide the commands submitted so far, so that no later one is decided together with them."""

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        """Call when everything decided so far has reached the stage. Not called if the log fails first."""

    def reach(self, stage: Stage, reply: Reply) -> None:
        """Like `when`, but always called: with `Done`, or with `Refused` if the log fails first."""

    def watch(self, queue: str, wake: Callable[[], None]) -> Cancelable:
        """Call once when the queue has a ready message; now, if it has one. The queue need not exist yet."""

    def follow(self, queue: int, sequence: int, report: Report, lost: Lost = nobody) -> Cancelable:
        """Report each later event of a message, when it is durable, up to its last. `lost`: called if nothing more
        can be reported from here, though the message may go on."""

    def waiting(self, queue: str) -> int:
        """How many clients wait for a message of this queue."""

    def hindrance(self) -> Refused | None:
        """Why commands are refused now, whatever they are; None if they are not, as far as it is known."""


class OwnedPort(ClientPort, Protocol):
    """A shard of this process, for other processes."""

    def origin(self, name: bytes) -> Origin:
        """A process that asks from now on, and may ask again."""

    def answer_again(self, origin: Origin, number: int, reply: Reply, stage: Stage) -> bool:
        """Answer a command that was asked before. False if it was not carried out."""


class ServicePort(OwnedPort, Protocol):
    """A service's access to the state, the log and the clock of the writer. A log that fails is replaced by another,
    and the engine with it: keep neither."""

    @property
    def engine(self) -> Engine: ...

    @property
    def log(self) -> Log: ...

    @property
    def room(self) -> Room:
        """For the answers of this process."""

    @property
    def recent(self) -> Recent:
        """How messages have ended lately."""

    @property
    def tally(self) -> Tally:
        """How often messages of each queue were delivered, given back and failed, while it is wanted."""

    def waiting_commands(self) -> list[Waiting]:
        """The commands of all clients that wait."""

    @property
    def failure(self) -> str | None:
        """Why the log cannot be written; None if it can."""

    def hold_schedules(self, needs_keys: Callable[[Planned], bool]) -> None:
        """Ask before a schedule runs that is due. True: it is held until it is released."""

    def release_schedule(self, name: str, reply: Reply, stage: Stage = Stage.SYNC) -> None:
        """Run a schedule that was held, if it is due; answered when that is as durable as asked."""

    def now(self) -> Nanos:
        """The time, later than that of every event so far."""

    def wall(self) -> Nanos:
        """What the clock of the machine shows."""

    def pause(self, begun: Callable[[], None]) -> Pause:
        """Begin no commit in this process until `resume`, and call `begun` when none is under way."""

    def resume(self, pause: Pause) -> bool:
        """End a pause. Whether it had begun and has lasted until now."""

    def examine(self, position: Position) -> bool:
        """Whether this position of the log can be read. If not, the damage is reported."""

    def report_damage(self, damage: DamagedExtentError) -> None:
        """Call everyone in `on_damage`."""

    @property
    def on_commit(self) -> list[Callable[[], None]]:
        """Called when a batch is durable and its clients are answered."""

    @property
    def on_queue(self) -> list[Callable[[int], None]]:
        """Called with the number of a queue that was created, changed or removed, when that is durable."""

    @property
    def on_token(self) -> list[Callable[[str], None]]:
        """Called with the name of a token that was created, changed or revoked, when that is durable."""

    @property
    def on_damage(self) -> list[Callable[[DamagedExtentError], None]]:
        """Called when part of the log cannot be read."""


# A pause of the commits of a process: while it lasts none begins, so each log ends where it ends.


class Pause:
    def __init__(self, begun: Callable[[], None]) -> None:
        """`begun`: called when the commits that were under way have ended."""
        self.begun = begun
        self.has_begun = False
