"""The tokens of a store reach all workers before a change of one is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.broker.writer.port import Reply
from penstock.cluster.links.codec import Introduce, WantTokens
from penstock.cluster.links.mesh import Mesh
from penstock.cluster.links.wires import UnixWires
from penstock.cluster.routing import tokens
from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.cluster.routing.tokens import TokenFollower, TokenSource
from penstock.errors import Reason
from penstock.model.access import EVERYTHING
from penstock.model.answers import Done, Refused
from penstock.model.client import Client
from penstock.model.commands import Command, DeleteQueue
from penstock.model.tokens import RevokeToken, Token
from penstock.model.values import Stage
from tests.support.live_loop import shard_loop, until

WORKERS = 3
CLIENT: Client = Introduce(1, EVERYTHING, "127.0.0.1", "mqs")
TOKEN = Token(scopes=("read:*",), digest="d")


class Auditor:
    """Carries out everything at once."""

    def __init__(self) -> None:
        self.answer: Any = Done()

    def submit(self, _: Client, __: Command, reply: Reply, ___: Stage) -> None:
        reply(self.answer)

    def forbid(self, client: Client, command: Command, refused: Refused) -> None: ...


class Workers:
    """The worker with the tokens, and the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = {"reader": TOKEN}
        self.auditor = Auditor()
        self.meshes = [self.mesh(number) for number in range(WORKERS)]
        self.source = TokenSource(self.meshes[0], lambda: self.tokens, self.auditor)
        self.meshes[0].acts[WantTokens] = self.source.wanted
        self.meshes[0].when_lost.append(self.source.lost)
        self.known: dict[int, Mapping[str, Token]] = {}
        self.followers = {number: self.follow(number) for number in range(1, WORKERS)}
        self.answers: list[Any] = []

    def mesh(self, number: int) -> Mesh:
        own = {} if number else {ADMINISTRATION: shard_loop(ADMINISTRATION, WORKERS)}
        return Mesh(number, WORKERS, WORKERS, UnixWires(self.folder), own)

    def follow(self, number: int) -> TokenFollower:
        return TokenFollower(self.meshes[number], partial(self.known.__setitem__, number))

    async def start(self) -> None:
        for mesh in self.meshes:
            await mesh.start()
        for follower in self.followers.values():
            await follower.known.wait()

    def change(self, **now: Token) -> None:
        """As a writer does: first the answer, then those who want to know of it."""
        self.tokens = now
        self.source.submit(CLIENT, RevokeToken("reader"), self.answers.append, Stage.SYNC)
        self.source.changed()

    async def restart(self, number: int) -> None:
        self.meshes[number].stop()
        self.meshes[number] = self.mesh(number)
        self.followers[number] = self.follow(number)
        await self.meshes[number].start()

    async def stop(self) -> None:
        for mesh in self.meshes:
            mesh.stop()
        await asyncio.sleep(0)


def test_a_worker_has_the_tokens_before_it_begins(tmp_path: Path) -> None:
    async def run() -> None:
        workers = Workers(tmp_path)
        await workers.start()
        assert workers.known == {1: {"reader": TOKEN}, 2: {"reader": TOKEN}}
        await workers.stop()

    uvloop.run(asyncio.wait_for(run(), 60))


def test_a_change_is_answered_when_all_workers_have_it(tmp_path: Path) -> None:
    async def run() -> None:
        workers = Workers(tmp_path)
        await workers.start()
        for now in ({}, {"reader": TOKEN}, {}):
            workers.change(**now)
            assert not workers.answers
            await until(lambda: bool(workers.answers))
            assert workers.known == {1: now, 2: now}
            assert workers.answers.pop() == Done()
        await workers.stop()

    uvloop.run(asyncio.wait_for(run(), 60))


def test_a_change_waits_for_a_worker_that_is_gone(tmp_path: Path) -> None:
    async def run() -> None:
        workers = Workers(tmp_path)
        await workers.start()
        workers.meshes[2].stop()
        await until(lambda: 2 not in workers.meshes[0].links)
        workers.change()
        await until(lambda: workers.known[1] == {})
        assert not workers.answers
        await workers.restart(2)
        await until(lambda: bool(workers.answers))
        assert workers.known[2] == {}
        await workers.stop()

    uvloop.run(asyncio.wait_for(run(), 60))


def test_a_change_that_does_not_reach_all_in_time_is_not_answered_as_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "TOKENS_KNOWN_SECONDS_MAX", 0.01)

    async def run() -> None:
        workers = Workers(tmp_path)
        workers.change()  # Nobody is there yet.
        await until(lambda: bool(workers.answers))
        assert workers.answers[0].reason is Reason.OUTCOME_UNKNOWN
        await workers.start()
        assert len(workers.answers) == 1
        await workers.stop()

    uvloop.run(asyncio.wait_for(run(), 60))


def test_what_changes_no_token_and_what_is_refused_is_answered_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        workers = Workers(tmp_path)
        answers: list[Any] = []
        workers.source.submit(CLIENT, DeleteQueue("work"), answers.append, Stage.SYNC)
        workers.auditor.answer = Refused(Reason.NO_TOKEN, "reader")
        workers.source.submit(CLIENT, RevokeToken("reader"), answers.append, Stage.SYNC)
        assert answers == [Done(), workers.auditor.answer]

    uvloop.run(asyncio.wait_for(run(), 60))
