"""The native API: workers, searches, publishes that are repeated under an idempotency key, and things that change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from penstock.torture.history import Sent, Stored
from penstock.torture.process import Process
from penstock.torture.traffic import push
from penstock.torture.traffic.stage import LEASE_SECONDS, SENT_TO, WORK, Stage, body_of, name_of, names
from penstock.torture.traffic.wire import Http, Unavailable, UnexpectedAnswer
from penstock.torture.traffic.work import Held, consume, produce

THINGS = 20
PRODUCERS = ("mqs-p", "nq-p", "etzel-p", "glovebox-p", "native-p")  # Some whose messages are searched for.
FOUND_MAX = 50
SEARCH_SECONDS = 0.5  # Between two searches, on average.
AGAIN_SHARE = 0.3  # Of the answered publishes: repeated although they were answered.
REFUSED = ("no_message", "lease_gone")
COPY = "copy-"  # Before the name of a channel's copy, which is a message of its own.
COPIES = {"": "things", COPY: "watch", push.COPY: push.CHANNEL}


class Native:
    dialect = "native"

    def __init__(self, http: Http) -> None:
        self._http = http
        self.close = http.close

    @classmethod
    async def open(cls, process: Process) -> Native:
        return cls(await Http.open(process))

    async def ask(self, method: str, path: str, document: Any = None, **headers: str) -> Any:
        answer = await self._http.ask(method, path, document, **headers)
        if answer.status not in (200, 201):
            raise UnexpectedAnswer(f"{path}: {answer.status} {answer.body[:200]!r}")
        return answer.json()

    async def publish(self, queue: str, bodies: list[str]) -> AsyncIterator[tuple[str, str]]:
        answer = await self.ask("POST", f"/v1/queues/{queue}/messages", [{"message": body} for body in bodies])
        for body, receipt in zip(bodies, answer, strict=True):
            yield body, receipt["id"]

    async def take(self, queue: str, count: int) -> list[Held]:
        messages = await self.ask("GET", f"/v1/queues/{queue}/messages?max={count}&wait=1&lease={LEASE_SECONDS}")
        return [Held(each["message"], (each["id"], each["receives"]), each["id"]) for each in messages]

    async def finish(self, queue: str, held: list[Held]) -> AsyncIterator[tuple[Held, bool]]:
        answers = await self.ask("POST", "/v1/confirm", [{"id": each.id} for each in held])
        for each, answer in zip(held, answers, strict=True):
            if answer.get("code") in ("unavailable", "outcome_unknown", "log_damaged"):
                raise Unavailable(answer)
            if "outcome" not in answer and answer["code"] not in REFUSED:
                raise UnexpectedAnswer(f"confirming from {queue}: {answer}")
            yield each, "outcome" in answer

    async def give_back(self, held: Held) -> None:
        message_id, delivery = held.handle
        await self.ask("POST", "/v1/confirm", [{"id": message_id, "outcome": "retry", "delivery": delivery}])


async def publish_once(stage: Stage, by: str) -> None:
    """Repeats a publish under its key until it is answered, and some of them once more."""
    chance, fresh = stage.chance(by), names(by)
    name, queue = next(fresh), "work"

    async def work(client: Native) -> None:
        nonlocal name, queue
        while stage.producing:
            lives = float(WORK[queue].get("retention_timeout", 0))
            stage.history.record(Sent(stage.now, name, by, queue, promise="idempotency", lives=lives))
            path = f"/v1/queues/{queue}/messages"
            document = {"message": body_of(name)}
            answer = await client.ask("POST", path, document, Idempotency_Key=f"{stage.seed}-{name}")
            stage.history.record(Stored(stage.now, name, by, answer["id"]))
            stage.answered("native")
            if chance.random() >= AGAIN_SHARE:
                name, queue = next(fresh), chance.choice(SENT_TO)
                await stage.pace(chance, 1)

    await stage.visit(by, Native.open, work)


class Things:
    """Publishes versions of things, some of them again. A version is the content that one key had once."""

    def __init__(self, stage: Stage, by: str) -> None:
        self._stage = stage
        self._by = by
        self._chance = stage.chance(by)
        self._versions = dict.fromkeys(range(THINGS), 0)
        self._answered = dict.fromkeys(range(THINGS), True)

    async def run(self) -> None:
        await self._stage.visit(self._by, Native.open, self._work)

    async def _work(self, client: Native) -> None:
        while self._stage.producing:
            thing = self._chance.randrange(THINGS)
            if self._answered[thing] and self._chance.random() >= AGAIN_SHARE:
                self._versions[thing] += 1
            if self._versions[thing]:
                await self._publish(client, thing)
            await self._stage.pace(self._chance, 1)

    async def _publish(self, client: Native, thing: int) -> None:
        stage, name = self._stage, f"{self._by}{thing}.{self._versions[thing]}"
        self._answered[thing] = False
        for prefix, queue in COPIES.items():
            stage.history.record(Sent(stage.now, prefix + name, self._by, queue, promise="change"))
        key = f"{self._by}{thing}"
        document = {"topics": ["things.torture"], "object": "thing", "key": key, "message": body_of(name)}
        answer = await client.ask("POST", "/v1/publish", document)
        self._answered[thing] = True
        new = answer["state"] == "Q"
        for prefix in COPIES:
            message_id = "" if prefix else answer["id"]
            stage.history.record(Stored(stage.now, prefix + name, self._by, message_id, new))
        stage.answered("native")


class Watcher(Native):
    """Takes the copies of a channel, under the names of copies."""

    async def take(self, queue: str, count: int) -> list[Held]:
        held = await super().take(queue, count)
        return [each._replace(body=_copied(each.body)) for each in held]


def _copied(body: str) -> str:
    """The body that has the name of the copy, if this is the body of the original."""
    name = name_of(body)
    return body_of(COPY + name) if body == body_of(name) else COPY + body


async def search(stage: Stage, by: str) -> None:
    """Looks for messages of one producer, by its name: what is found is what was sent."""
    chance = stage.chance(by)

    async def work(client: Native) -> None:
        while not stage.over:
            queue, text = chance.choice(SENT_TO), chance.choice(PRODUCERS)
            page = await client.ask("GET", f"/v1/search?queue={queue}&text={text}&limit={FOUND_MAX}")
            for found in page["messages"]:
                body = str(found.get("message"))
                if found["queue"] != queue or text not in body or body != body_of(name_of(body)):
                    raise UnexpectedAnswer(f"a search for {text} in {queue} found {found}")
            stage.answered("native")
            await asyncio.sleep(chance.expovariate(1 / SEARCH_SECONDS))

    await stage.visit(by, Native.open, work)


def clients(stage: Stage) -> list[Awaitable[None]]:
    return [
        produce(stage, "native-p", Native.open),
        consume(stage, "native-c", Native.open),
        publish_once(stage, "native-once"),
        Things(stage, "native-thing").run(),
        consume(stage, "native-thing-c", Native.open, ["things"]),
        consume(stage, "native-watch-c", Watcher.open, ["watch"]),
        search(stage, "native-search"),
    ]
