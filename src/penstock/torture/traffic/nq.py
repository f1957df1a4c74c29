"""NQ: workers, and receivers that read a queue that keeps its messages, with results that others read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any

from penstock.torture.history import Pulled, Pulling, ResultRead, ResultSent, ResultStored
from penstock.torture.process import Process
from penstock.torture.traffic.stage import BATCH_MAX, LEASE_SECONDS, Stage, body_of, name_of, names
from penstock.torture.traffic.wire import Http, UnexpectedAnswer
from penstock.torture.traffic.work import Held, consume, produce

BLOCK_SECONDS = 0.5
RETRIES = 1000  # More than any message needs.
KEPT = "kept"
READ_SHARE = 0.2  # Of the results: read back.
LATER_SHARE = 0.1  # Of the deliveries: their result is not sent, so that they come again.


class Nq:
    dialect = "nq"

    def __init__(self, http: Http) -> None:
        self.http = http
        self.close = http.close

    @classmethod
    async def open(cls, process: Process) -> Nq:
        return cls(await Http.open(process))

    async def ask(self, path: str, **fields: Any) -> tuple[int, Any]:
        answer = await self.http.ask("POST", path, fields)
        if answer.status not in (200, 400, 404):
            raise UnexpectedAnswer(f"{path}: {answer.status} {answer.body[:200]!r}")
        return answer.status, answer.json()

    async def post(self, sender: str, queue: str, bodies: list[str]) -> list[int]:
        status, answer = await self.ask("/post", sender=sender, messages={queue: bodies})
        if status != 200 or len(answer[queue]) != len(bodies):
            raise UnexpectedAnswer(f"/post: {status} {answer}")
        ids: list[int] = answer[queue]
        return ids

    async def publish(self, queue: str, bodies: list[str]) -> AsyncIterator[tuple[str, str]]:
        await self.post("torture", queue, bodies)
        for body in bodies:
            yield body, ""

    async def pull(self, receiver: str, queue: str, **options: Any) -> list[Any]:
        status, answer = await self.ask("/pull", receiver=receiver, timeout=BLOCK_SECONDS, queues={queue: options})
        if status == 400:
            raise UnexpectedAnswer(f"/pull: {answer}")
        messages: list[Any] = answer["messages"][queue] if status == 200 else []
        return messages

    async def take(self, queue: str, count: int) -> list[Held]:
        options = {"max": count, "retry_num": RETRIES, "fail_timeout": LEASE_SECONDS}
        messages = await self.pull("workers", queue, **options)
        return [Held(each["message"], each["id"]) for each in messages]

    async def finish(self, queue: str, held: list[Held]) -> AsyncIterator[tuple[Held, bool]]:
        """400: some of them are not held any more. Which ones does not matter: they stay in doubt."""
        results = {str(each.handle): "done" for each in held}
        status, answer = await self.ask("/pull", receiver="workers", timeout=0, results={queue: results})
        if status == 404:
            raise UnexpectedAnswer(f"/pull with results: {answer}")
        for each in held:
            yield each, status == 200


async def post_kept(stage: Stage, by: str) -> None:
    """Messages for the receivers. What is lost on the way shows as a gap that a receiver sees."""
    chance, fresh = stage.chance(by), names(by)

    async def work(client: Nq) -> None:
        while stage.producing:
            await client.post(by, KEPT, [body_of(next(fresh)) for _ in range(chance.randint(1, BATCH_MAX))])
            stage.answered("nq")
            await stage.pace(chance)

    await stage.visit(by, Nq.open, work)


class Receiver:
    """Reads the queue in order. One that owes results sends most of them, and reads some of them back."""

    def __init__(self, stage: Stage, name: str, owes: bool) -> None:
        self._stage = stage
        self._name = name
        self._about = f"{KEPT}/{name}"
        self._fail_timeout = LEASE_SECONDS if owes else 0.0
        self._chance = stage.chance(f"nq-{name}")
        self._options: dict[str, Any] = {"max": 2 * BATCH_MAX}
        if owes:
            self._options |= {"retry_num": RETRIES, "fail_timeout": LEASE_SECONDS}

    async def run(self) -> None:
        await self._stage.visit(f"nq-{self._name}", Nq.open, self._work)

    async def _work(self, client: Nq) -> None:
        while not self._stage.over:
            asked_at = self._stage.now
            self._stage.history.record(Pulling(asked_at, self._about))
            found = await client.pull(self._name, KEPT, **self._options)
            messages = {each["id"]: _sound_name(each["message"]) for each in found}
            event = Pulled(self._stage.now, self._about, asked_at, messages, self._fail_timeout)
            self._stage.history.record(event)
            self._stage.answered("nq")
            if self._fail_timeout:
                await self._send_results(client, list(messages))

    async def _send_results(self, client: Nq, sequences: list[int]) -> None:
        for sequence in sequences:
            if self._chance.random() < LATER_SHARE:
                continue
            stage, result = self._stage, f"{self._name} {sequence} {self._chance.random()}"
            stage.history.record(ResultSent(stage.now, self._about, sequence, result))
            results = {KEPT: {str(sequence): result}}
            status, _ = await client.ask("/pull", receiver=self._name, timeout=0, results=results)
            stage.answered("nq")
            if status == 200:
                stage.history.record(ResultStored(stage.now, self._about, sequence))
            if self._chance.random() < READ_SHARE:
                await self._read_result(client, self._chance.choice(sequences))

    async def _read_result(self, client: Nq, sequence: int) -> None:
        asked_at = self._stage.now
        path = f"/v1/results/{KEPT}/{sequence}?receiver={self._name}&timeout=0"
        answer = await client.http.ask("GET", path)
        if answer.status not in (200, 404):
            raise UnexpectedAnswer(f"{path}: {answer.status} {answer.body[:200]!r}")
        result = answer.json()["result"] if answer.status == 200 else None
        self._stage.history.record(ResultRead(self._stage.now, self._about, sequence, result, asked_at))


def _sound_name(body: str) -> str:
    """The name in the body, or all of it if it is not what was sent under this name."""
    name = name_of(body)
    return name if body == body_of(name) else f"damaged: {body}"


def clients(stage: Stage) -> list[Awaitable[None]]:
    return [
        produce(stage, "nq-p", Nq.open),
        consume(stage, "nq-c", Nq.open),
        post_kept(stage, "nq-kept"),
        Receiver(stage, "once", owes=False).run(),
        Receiver(stage, "sure", owes=True).run(),
    ]
