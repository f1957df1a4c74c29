"""The tokens of a store on all of its workers. Shard 0 logs them, and its worker sends them to the others.

A worker asks for them when it begins, when shard 0 has moved, and again when it has taken note of an answer. So the
one that has them knows who has which version, and a change is answered when all have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from penstock.broker.writer.asked import through
from penstock.broker.writer.gate import Auditor
from penstock.broker.writer.port import Reply
from penstock.cluster.links.codec import TellTokens, WantTokens
from penstock.cluster.links.link import Link
from penstock.cluster.links.mesh import Mesh
from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.errors import Reason
from penstock.limits import TOKENS_KNOWN_SECONDS_MAX
from penstock.model.answers import Answer, Refused
from penstock.model.client import Client
from penstock.model.commands import Command
from penstock.model.tokens import RevokeToken, RotateToken, SetToken, Token
from penstock.model.values import Stage

_CHANGES = frozenset((SetToken, RotateToken, RevokeToken))
_NOT_KNOWN = Refused(
    Reason.OUTCOME_UNKNOWN, "the change is stored, but not all processes of the broker have taken note of it"
)


class TokenSource:
    """In the worker that has shard 0. It stands before the auditor of that shard, which every change passes."""

    def __init__(self, mesh: Mesh, tokens: Callable[[], Mapping[str, Token]], auditor: Auditor) -> None:
        self._mesh = mesh
        self._tokens = tokens
        self._auditor = auditor
        self._version = 1
        self._informed: set[Link] = set()  # They have this version, and wait for the next.
        self._waiting: list[Callable[[], None]] = []  # Until all have it.
        self.lost = self._informed.discard
        self.forbid = auditor.forbid

    def submit(self, client: Client, command: Command, reply: Reply, stage: Stage) -> None:
        """Carry out an administrative command. A change of tokens is answered when all workers have it."""
        known = through(reply, partial(self._when_known, reply)) if type(command) in _CHANGES else reply
        self._auditor.submit(client, command, known, stage)

    def changed(self) -> None:
        """Tokens have changed, durably."""
        self._version += 1
        informed = list(self._informed)
        self._informed.clear()
        for link in informed:
            self._tell(link)

    def _tell(self, link: Link) -> None:
        link.send(TellTokens(self._version, dict(self._tokens())))

    def wanted(self, link: Link, entry: WantTokens) -> None:
        if entry.version != self._version:
            self._tell(link)
            return
        self._informed.add(link)
        self.check()

    def _when_known(self, reply: Reply, answer: Answer) -> None:
        if isinstance(answer, Refused):
            reply(answer)
            return
        # Soon: those who want to know of the change are called after those who wait for their answers.
        asyncio.get_running_loop().call_soon(self._wait, partial(reply, answer), partial(reply, _NOT_KNOWN))

    def _wait(self, known: Callable[[], None], too_late: Callable[[], None]) -> None:
        def give_up() -> None:
            self._waiting.remove(reached)
            too_late()

        timer = asyncio.get_running_loop().call_later(TOKENS_KNOWN_SECONDS_MAX, give_up)

        def reached() -> None:
            timer.cancel()
            known()

        self._waiting.append(reached)
        self.check()

    def check(self) -> None:
        """Answer those who wait, if all have this version."""
        if self._mesh.others <= {link.peer for link in self._informed}:
            waiting, self._waiting = self._waiting, []
            for reached in waiting:
                reached()


class TokenFollower:
    """In all other workers."""

    def __init__(self, mesh: Mesh, load: Callable[[Mapping[str, Token]], None]) -> None:
        self._mesh = mesh
        self._load = load
        self._asked: tuple[Link, int] | None = None  # The worker that has shard 0, and since which epoch.
        self.known = asyncio.Event()  # Set when they were received for the first time.
        mesh.acts[TellTokens] = self._told
        mesh.when_moved.append(self._ask)

    def _ask(self) -> None:
        link = self._mesh.link_to(ADMINISTRATION)
        source = (link, link.shards[ADMINISTRATION]) if link and ADMINISTRATION in link.shards else None
        if source and source != self._asked:
            source[0].send(WantTokens(0))
        self._asked = source

    def _told(self, link: Link, entry: TellTokens) -> None:
        if self._asked is None or link is not self._asked[0]:
            return  # It had shard 0 before.
        self._load(entry.tokens)
        self.known.set()
        link.send(WantTokens(entry.version))
