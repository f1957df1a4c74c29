"""The order of one client's commands: one rule for all shells and conversations.

**Guaranteed:** a client never sees the effect of a later command of its own before that of an earlier one, also if it
sends on without waiting for its answers.

**Why this needs a rule:** commands that arrive together are decided together, one kind after the other: finishes
first, publishes next, fetches last (`DECIDED_TOGETHER`). The writer does this with the commands of all clients, and a
conversation with the commands of one read (`Gathering`). Publishes to one queue keep their order, and any other
command is decided on its own, after everything that was collected before it. So one case could break the guarantee: a
publish that arrives after a fetch of the same client. Decided together, the fetch would return what was published
after it.

**How it is kept:**
- `Gathering`: a conversation calls `settle` before it gathers a publish if it has gathered a fetch.
- `CommandOrder`: a conversation's shell submits through it. Before a publish, it makes the writer decide the fetches
  of this client.
- HTTP gathers nothing and is strict: before the commands of a request that did not wait for the answer to the one
  before it, `shells/http.py` calls `Decider.decide_collected`.

**The exception:** within a conversation, a finish may be decided before fetches and publishes that were sent before
it. The message is removed earlier than asked, never later, and workers need not pay for a decision between any two
messages. And while there is no room for the answer of a fetch (`broker/room.py`), it waits, as one that waits for a
message does: commands of the same read are decided before it, and later ones are not read.

Over several shards, a publish with an object and a key is decided when the key was borrowed from the shard that
answers for it: maybe after what a client that does not wait for answers has sent next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.model.access import EVERYTHING, Access
from penstock.model.answers import Answer
from penstock.model.client import Cancelable, Client
from penstock.model.commands import Command, Fetch, Publish
from penstock.model.values import Stage


class Decider(Protocol):
    """The writer, as far as the order of commands is concerned."""

    def decide_collected(self) -> None:
        """Decide the commands submitted so far, so that no later one is decided together with them."""


class Submitter(Decider, Protocol):
    def submit_as(
        self, client: Client, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None: ...


class CommandOrder:
    """Submits the commands of one conversation."""

    access: Access = EVERYTHING
    dialect = ""

    @property
    def address(self) -> str:
        """Of the client; empty if there is no socket."""
        return ""

    @property
    def holder(self) -> Any:
        """Of the answers; None if there is no socket."""
        return None

    def __init__(self, writer: Submitter) -> None:
        self._writer = writer
        self._fetching = False  # A fetch was submitted, and may not be decided yet.

    def submit(
        self, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> Cancelable | None:
        if type(command) is Fetch:
            self._fetching = True
        elif self._fetching and type(command) is Publish:
            self._writer.decide_collected()
            self._fetching = False
        return self._writer.submit_as(self, command, reply, stage)


class Gathering:
    """The commands that a conversation received in one read. `settle` carries them out, those that are alike as one
    command: one for each would cost several times as much. The conversation adds to the three collections itself, as
    a call for each message would cost too much too."""

    __slots__ = ("_fetches", "_finishes", "_publishes")

    def __init__(self) -> None:
        self._finishes: list[Any] = []
        self._publishes: dict[str, Any] = {}  # By queue.
        self._fetches: dict[Any, Any] = {}  # By what they ask for.

    def settle(self) -> None:
        """Carry out what was gathered, in the order in which the writer decides."""
        if self._finishes:
            finishes, self._finishes = self._finishes, []
            self._finish_together(finishes)
        if self._publishes:
            publishes, self._publishes = self._publishes, {}
            for queue, messages in publishes.items():
                self._publish_together(queue, messages)
        if self._fetches:
            fetches, self._fetches = self._fetches, {}
            for wanted, fetchers in fetches.items():
                self._fetch_together(wanted, fetchers)

    def _finish_together(self, finishes: list[Any]) -> None:
        raise NotImplementedError

    def _publish_together(self, queue: str, messages: Any) -> None:
        raise NotImplementedError

    def _fetch_together(self, wanted: Any, fetchers: Any) -> None:
        raise NotImplementedError
