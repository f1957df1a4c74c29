"""glovebox: workers over WebSocket, and senders that follow their messages in sessions that survive a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any

from penstock.torture.history import Noticed, Sent, SessionCut, Stored
from penstock.torture.process import Process
from penstock.torture.traffic.stage import LEASE_SECONDS, Stage, body_of, names
from penstock.torture.traffic.wire import Unavailable, UnexpectedAnswer, WebSocket
from penstock.torture.traffic.work import Held, consume, produce

BLOCK_SECONDS = 0.5
PATH = "/connect/"
STAGES = ["sync", "assign", "finish", "retry", "drop"]
CUT_SHARE = 0.02  # Of the followed messages: the connection is cut after one.


class Glovebox:
    dialect = "glovebox"

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self.close = socket.close

    @classmethod
    async def open(cls, process: Process) -> Glovebox:
        socket = await WebSocket.open(process, PATH)
        _check(await socket.read(), "hello")
        return cls(socket)

    async def publish(self, queue: str, bodies: list[str]) -> AsyncIterator[tuple[str, str]]:
        about = {"type": "post", "queue": queue, "notify": ["sync"]}
        await self._socket.send(*(about | {"label": label, "message": body} for label, body in enumerate(bodies)))
        for _ in bodies:
            answer = _check(await self._socket.read(), "notice")
            yield bodies[answer["label"]], ""

    async def take(self, queue: str, count: int) -> list[Held]:
        about = {"type": "fetch", "queue": queue, "block_timeout": BLOCK_SECONDS, "work_timeout": LEASE_SECONDS}
        await self._socket.send(*(about | {"label": label} for label in range(count)))
        answers = [_check(await self._socket.read(), "message", "nomessage") for _ in range(count)]
        messages = [answer for answer in answers if answer["type"] == "message"]
        return [Held(str(each["body"]), (each["sequence"], each["shard"])) for each in messages]

    async def finish(self, queue: str, held: list[Held]) -> AsyncIterator[tuple[Held, bool]]:
        for label, each in enumerate(held):
            sequence, shard = each.handle
            about = {"type": "finish", "queue": queue, "label": label}
            await self._socket.send(about | {"sequence": sequence, "shard": shard})
        for _ in held:
            answer = await self._socket.read()
            if answer.get("code") != "NoObject":
                _check(answer, "notice")
            yield held[answer["label"]], answer["type"] == "notice"


def _check(answer: Any, *expected: str) -> Any:
    if answer["type"] == "error" and answer["code"] == "Unavailable":
        raise Unavailable(answer)
    if answer["type"] not in expected:
        raise UnexpectedAnswer(f"{answer}")
    return answer


class Follower:
    """Posts, and hears what becomes of its messages. It resumes its session when the connection breaks."""

    def __init__(self, stage: Stage, by: str) -> None:
        self._stage = stage
        self._by = by
        self._chance = stage.chance(by)
        self._fresh = names(by)
        self._session = ""

    async def run(self) -> None:
        await self._stage.visit(self._by, self._connect, self._work)

    async def _connect(self, process: Process) -> WebSocket:
        resume = {"Reconnect_As": self._session} if self._session else {}
        socket = await WebSocket.open(process, PATH, Durable_Session="true", **resume)
        if self._session:  # What was on its way when the connection broke is lost.
            self._record(SessionCut(self._stage.now, f"session-{self._session}"))
        self._session = str(_check(await socket.read(), "hello")["id"])
        return socket

    async def _work(self, socket: WebSocket) -> None:
        stage = self._stage
        while not stage.over:
            if stage.producing:
                await self._post(socket, next(self._fresh))
            until = stage.now + self._chance.uniform(0.2, 1.0)
            while stage.now < until:
                answer = await socket.read_for(max(0.01, until - stage.now))
                if answer is not None:
                    self._hear(answer)
            if self._chance.random() < CUT_SHARE:
                raise ConnectionError("cut on purpose")

    async def _post(self, socket: WebSocket, name: str) -> None:
        session = f"session-{self._session}"
        self._record(Sent(self._stage.now, name, session, "work", promise="notices"))
        label = int(name.rpartition(".")[2])
        about = {"type": "post", "queue": "work", "notify": STAGES, "label": label}
        await socket.send(about | {"message": body_of(name)})

    def _hear(self, answer: Any) -> None:
        refused = answer["type"] == "error" and answer["code"] == "Unavailable"
        notice = "refused" if refused else _check(answer, "notice")["notice"]
        name = f"{self._by}.{answer['label']}"
        if notice == "sync":
            self._record(Stored(self._stage.now, name, self._by))
        self._record(Noticed(self._stage.now, name, f"session-{self._session}", notice))
        self._stage.answered("glovebox")

    def _record(self, event: Sent | Stored | Noticed | SessionCut) -> None:
        self._stage.history.record(event)


def clients(stage: Stage) -> list[Awaitable[None]]:
    return [
        produce(stage, "glovebox-p", Glovebox.open),
        consume(stage, "glovebox-c", Glovebox.open),
        Follower(stage, "glovebox-f").run(),
    ]
