"""mqs: workers over plain HTTP, and contents that a queue may have once."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable

from penstock.torture.history import Sent, Stored
from penstock.torture.process import Process
from penstock.torture.traffic.stage import Stage, body_of
from penstock.torture.traffic.wire import Http, Response, UnexpectedAnswer, expect
from penstock.torture.traffic.work import Held, consume, produce

UNIQUE = "unique"
CONTENTS = 12


class Mqs:
    dialect = "mqs"

    def __init__(self, http: Http) -> None:
        self._http = http
        self.close = http.close

    @classmethod
    async def open(cls, process: Process) -> Mqs:
        return cls(await Http.open(process))

    async def publish_one(self, queue: str, body: str) -> Response:
        answer = expect(await self._http.request("POST", f"/messages/{queue}", body.encode()))
        if answer.status not in (200, 201):
            raise UnexpectedAnswer(f"publishing: {answer.status} {answer.body[:200]!r}")
        return answer

    async def publish(self, queue: str, bodies: list[str]) -> AsyncIterator[tuple[str, str]]:
        for body in bodies:
            answer = await self.publish_one(queue, body)
            yield body, answer.headers.get("x-mqs-message-id", "")

    async def take(self, queue: str, count: int) -> list[Held]:
        headers = {"X-MQS-MAX-MESSAGES": str(count), "X-MQS-MAX-WAIT-TIME": "1"}
        answer = expect(await self._http.request("GET", f"/messages/{queue}", headers=headers))
        if answer.status not in (200, 204):
            raise UnexpectedAnswer(f"receiving: {answer.status} {answer.body[:200]!r}")
        return [] if answer.status == 204 else [_held(headers, body) for headers, body in _parts(answer)]

    async def finish(self, queue: str, held: list[Held]) -> AsyncIterator[tuple[Held, bool]]:
        for each in held:
            answer = expect(await self._http.request("DELETE", f"/messages/{each.handle}"))
            if answer.status not in (204, 404):
                raise UnexpectedAnswer(f"deleting from {queue}: {answer.status} {answer.body[:200]!r}")
            yield each, answer.status == 204


def _held(headers: dict[str, str], body: bytes) -> Held:
    message_id = headers["x-mqs-message-id"]
    return Held(body.decode("utf-8", "replace"), message_id, message_id)


def _parts(answer: Response) -> list[tuple[dict[str, str], bytes]]:
    """The messages of an answer, which is one of them, or several in parts."""
    found = re.search(r'boundary="?([^";]+)', answer.headers.get("content-type", ""))
    if found is None:
        return [(answer.headers, answer.body)]
    pieces = (b"\r\n" + answer.body).split(b"\r\n--" + found[1].encode())[1:-1]
    return [_part(piece.removeprefix(b"\r\n")) for piece in pieces]


def _part(piece: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = piece.partition(b"\r\n\r\n")
    pairs = (line.partition(":") for line in head.decode("latin-1").split("\r\n"))
    return {name.lower(): value.strip() for name, _, value in pairs}, body


async def publish_unique(stage: Stage, by: str) -> None:
    """The same few contents again and again, into a queue that has each of them once."""
    chance = stage.chance(by)

    async def work(client: Mqs) -> None:
        while stage.producing:
            name = f"{by}.{chance.randint(1, CONTENTS)}"
            stage.history.record(Sent(stage.now, name, by, UNIQUE, promise="dedup"))
            answer = await client.publish_one(UNIQUE, body_of(name))
            message_id = answer.headers.get("x-mqs-message-id", "")
            stage.history.record(Stored(stage.now, name, by, message_id, new=answer.status == 201))
            stage.answered("mqs")
            await stage.pace(chance, 1)

    await stage.visit(by, Mqs.open, work)


def clients(stage: Stage) -> list[Awaitable[None]]:
    return [
        produce(stage, "mqs-p", Mqs.open),
        consume(stage, "mqs-c", Mqs.open),
        publish_unique(stage, "mqs-unique"),
        consume(stage, "mqs-unique-c", Mqs.open, [UNIQUE]),
    ]
