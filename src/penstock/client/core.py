"""All that a client can do, written once.

`AsyncClient` is this class, and `Client` runs it on a thread of its own. They differ only in the types of sent and
delivered messages, whose methods are awaited in one and block in the other.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from math import ceil
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar, Unpack, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from penstock.client import errors
from penstock.client.administration import AsyncChannels, AsyncQueues
from penstock.client.batches import Batches
from penstock.client.causes import with_cause
from penstock.client.connection import Answer
from penstock.client.consuming import consumed
from penstock.client.encoding import (
    OutcomeName,
    PublishDocument,
    content_of,
    encode,
    list_of,
    path,
    query,
    refuse_nowhere,
)
from penstock.client.events import event_pages
from penstock.client.jobs import finished
from penstock.client.looking import Looks
from penstock.client.pages import Pages
from penstock.client.results import (
    Confirmed,
    Event,
    Found,
    Job,
    MessageFacts,
    Outcome,
    SentFacts,
    Until,
)
from penstock.client.schedules import AsyncSchedules
from penstock.client.search import found_pages
from penstock.client.session import Session
from penstock.client.settling import Settling
from penstock.client.tokens import AsyncTokens
from penstock.client.transport import Request
from penstock.client.trust import FilePath, Trust
from penstock.client.waiting import Waits
from penstock.client.workers import AsyncWorkers
from penstock.limits import LONG_POLL_SECONDS_MAX
from penstock.renamed import deprecated

S = TypeVar("S", bound=SentFacts)
M = TypeVar("M", bound=MessageFacts)

_OUTBOXES_MAX = 1000
_MANY = 10_000  # Messages of one call that are encoded at once.


class CommonOptions(TypedDict, total=False):
    """What the messages of one call have in common."""

    delay: float | None
    priority: int
    object: str | None
    expires: float | None
    headers: Mapping[str, str] | None
    content_type: str | None
    sender: str | None
    timeout: float | None


class PublishOptions(CommonOptions, total=False):
    """How one message is published."""

    key: str | None
    wait: Literal["sync", "taken", "done"]
    idempotency_key: str | None


class Core(Looks, Generic[S, M]):
    """Publishing, receiving and following messages."""

    sent_type: ClassVar[type[SentFacts]]
    message_type: ClassVar[type[MessageFacts]]

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 30,
        name: str | None = None,
        ca: FilePath = "",
        certificate: FilePath = "",
        certificate_key: FilePath = "",
    ) -> None:
        self._session = Session(url, token, timeout, name, Trust(ca, certificate, certificate_key))
        self.owner: object = self  # Whose methods sent and delivered messages call.
        self._decode_sent = msgspec.json.Decoder(list[self.sent_type]).decode  # type: ignore[name-defined]
        self._decode_messages = msgspec.json.Decoder(list[self.message_type]).decode  # type: ignore[name-defined]
        self._outboxes: dict[tuple[str | None, float], Batches[S]] = {}
        self._settling = Settling(self._session)
        self._waits: dict[Until, Waits] = {
            "taken": Waits(self._session, "taken"),
            "done": Waits(self._session, "done"),
        }
        self.queues = AsyncQueues(self._session)
        self.channels = AsyncChannels(self._session)
        self.schedules = AsyncSchedules(self._session)
        self.tokens = AsyncTokens(self._session)
        self.workers = AsyncWorkers(self._session)

    @property
    def url(self) -> str:
        return self._session.transport.url

    async def close(self) -> None:
        """Send what is still to be sent, and close the connections."""
        try:
            for outbox in self._outboxes.values():
                await outbox.finish()
            await self._settling.finish()
        finally:
            for waits in self._waits.values():
                waits.close()
            await self._session.transport.close()

    # ── Publishing ──────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, queue: str, message: object, **options: Unpack[PublishOptions]) -> Coroutine[Any, Any, S]:
        """Publish one message, and return when it is on disk; or when a consumer has taken it, or is done with it.

        `client.publish("orders", {"id": 17}, delay=5)`

        Text is stored as text, bytes as bytes, and anything else as the JSON that msgspec makes of it. What is
        published at the same time goes to the broker in one request. If an answer is lost, the message is sent again
        with the same key, and stored once. Your own `idempotency_key` keeps it from being stored twice over several
        runs too. `wait="done"` follows the message until it is done with, and `outcome` says how.
        """
        if "topics" in options or queue is None:
            return self._as_before("publish", queue, message, dict(options))
        return self._publish(queue, (), message, **options)

    def publish_to(
        self, topics: str | Sequence[str], message: object, **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, S]:
        """Publish one message to a topic, or to several: to the queues and channels that they name.

        `client.publish_to("fruit.sweet", "12 apples", key="apple")`
        """
        return self._publish(None, list_of(topics), message, **options)

    def publish_many(
        self, queue: str, messages: Iterable[object], **options: Unpack[CommonOptions]
    ) -> Coroutine[Any, Any, list[S]]:
        """Publish many messages that have everything but their content in common.

        `client.publish_many("orders", [{"id": 17}, {"id": 18}])`

        Each thousand of them, or each 256 KiB, is stored whole or not at all.
        """
        if "topics" in options or queue is None:
            return self._as_before("publish_many", queue, messages, dict(options))
        return self._publish_many(queue, (), messages, **options)

    def publish_many_to(
        self, topics: str | Sequence[str], messages: Iterable[object], **options: Unpack[CommonOptions]
    ) -> Coroutine[Any, Any, list[S]]:
        """Publish many messages to a topic, or to several, as `publish_many` does.

        `client.publish_many_to("fruit.sweet", ["12 apples", "3 pears"])`
        """
        return self._publish_many(None, list_of(topics), messages, **options)

    def _as_before(
        self, method: str, queue: str | None, message: object, options: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """A call with `topics=`, which once went with `None` for the queue."""
        topics = options.pop("topics", None)
        if queue is None:
            if not topics:
                raise TypeError(f"{method} needs the name of a queue; {method}_to publishes to topics")
            row = deprecated("client.", f"{method}(None, …)")
            return getattr(self, row.new)(topics or (), message, **options)  # type: ignore[no-any-return]
        if topics:
            raise TypeError(f"{method} is for a queue: use {method}_to for topics")
        return getattr(self, method)(queue, message, **options)  # type: ignore[no-any-return]

    async def _publish(
        self,
        queue: str | None,
        topics: Sequence[str],
        message: object,
        *,
        delay: float | None = None,
        priority: int = 0,
        key: str | None = None,
        object: str | None = None,
        expires: float | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        sender: str | None = None,
        wait: Literal["sync", "taken", "done"] = "sync",
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> S:
        refuse_nowhere(queue, topics, object)
        content = content_of(message, content_type)
        sender = sender or self._session.name or ""
        document = PublishDocument(
            *content, topics, object or "", key or "", with_cause(headers), sender, priority, delay, expires
        )
        limit = self._session.limit(timeout)
        if idempotency_key is not None:
            sent = (await self._publish_list(queue, limit, idempotency_key, b"[%b]" % encode(document)))[0]
        else:
            sent = await self._outbox(queue, limit).add(encode(document))
        if wait != "sync":
            sent.outcome = (await self.wait([sent.id], wait, limit))[0]
        return sent

    async def _publish_many(
        self,
        queue: str | None,
        topics: Sequence[str],
        messages: Iterable[object],
        *,
        delay: float | None = None,
        priority: int = 0,
        object: str | None = None,
        expires: float | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        sender: str | None = None,
        timeout: float | None = None,
    ) -> list[S]:
        refuse_nowhere(queue, topics, object)
        outbox = self._outbox(queue, self._session.limit(timeout))
        sender = sender or self._session.name or ""
        common = PublishDocument(
            "", UNSET, "", topics, object or "", "", with_cause(headers), sender, priority, delay, expires
        )
        sent: list[S] = []
        remaining = iter(messages)
        while part := list(islice(remaining, _MANY)):  # So that any number of messages takes little memory.
            contents = [content_of(each, content_type) for each in part]
            documents = [replace(common, message=m, message_base64=b, mimeType=t) for m, b, t in contents]
            sent += await asyncio.gather(*[outbox.add(encode(document)) for document in documents])
        return sent

    def _outbox(self, queue: str | None, timeout: float) -> Batches[S]:
        outbox = self._outboxes.get((queue, timeout))
        if outbox is None:
            self._session.transport.check_open()
            if len(self._outboxes) >= _OUTBOXES_MAX:
                self._outboxes = {place: each for place, each in self._outboxes.items() if not each.idle}
            outbox = Batches(partial(self._publish_list, queue, timeout, None))
            self._outboxes[queue, timeout] = outbox
        return outbox

    async def _publish_list(
        self, queue: str | None, timeout: float, key: str | None, body: bytes, since: float | None = None
    ) -> list[S]:
        """Store a list of documents. The key makes sure that it is stored once, however often it is sent."""
        target = "/v1/publish" if queue is None else path("queues", queue, "messages")
        line = f"Idempotency-Key: {key or secrets.token_hex(16)}\r\n"
        request = Request("POST", target, body, line, pipelined=True)
        reply = await self._session.ask(request, timeout, since)
        sent = cast("list[S]", self._session.decoded(request, reply, self._decode_sent))
        owner = self.owner
        for each in sent:
            each.bind(owner)
        return sent

    # ── Receiving ───────────────────────────────────────────────────────────────────────────────────────────

    async def receive(
        self,
        queue: str,
        max: int = 1,
        *,
        wait: float = LONG_POLL_SECONDS_MAX,
        lease: float | None = None,
        consumer: str | None = None,
        ahead: bool = False,
    ) -> list[M]:
        """Take up to `max` messages of a queue or channel; wait so many whole seconds for a first one.

        `for message in client.receive("orders", 10): message.confirm()`

        Each message is leased to this consumer, for `lease` seconds or for as long as the queue says. If it is
        neither confirmed nor given back before its lease ends, another consumer gets it. With `ahead`, a delivery
        counts as an attempt from `extend(seconds, begin=True)`: if its lease ends before, it has cost nothing.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        consumer = consumer or self._session.name
        while True:
            seconds = min(ceil(end - loop.time()), LONG_POLL_SECONDS_MAX)
            messages = await self._receive(queue, max, seconds if seconds > 0 else 0, lease, consumer, ahead=ahead)
            if messages or loop.time() >= end:
                return messages

    async def _receive(
        self, queue: str, count: int, seconds: int, lease: float | None, consumer: str | None, *, ahead: bool
    ) -> list[M]:
        wanted = query(max=count, wait=seconds, lease=lease, consumer=consumer, raw=True, ahead=ahead or None)
        target = path("queues", queue, "messages") + wanted
        request = Request("GET", target, when_late=partial(self._give_back, consumer, ahead=ahead))
        reply = await self._session.ask(request, self._session.timeout + seconds)
        messages = cast("list[M]", self._session.decoded(request, reply, self._decode_messages))
        for message in messages:
            message.bind(self.owner, consumer, ahead=ahead)
        return messages

    def _give_back(self, consumer: str | None, answer: Answer, *, ahead: bool) -> None:
        """Give back what was delivered to a caller that has gone."""
        for message in self._decode_messages(answer.body) if answer.status == 200 else ():
            message.bind(self.owner, consumer, ahead=ahead)
            self._settling.give_back(message)

    def consume(
        self,
        queue: str,
        *,
        prefetch: int = 16,
        idle: float | None = None,
        lease: float | None = None,
        consumer: str | None = None,
    ) -> Pages[M]:
        """Loop over the messages of a queue or channel.

        `for message in client.consume("orders"): print(message.json())`

        A message is confirmed when the body of the loop has ended normally, unless the body has settled it itself.
        If the loop is left in another way (an exception, `break` or `return`), the message and those that were
        fetched ahead are given back. Leases of messages that the loop holds are extended while it runs. With `idle`,
        the loop ends when no message came for so many seconds.
        """
        return Pages(consumed(self, self._session, queue, prefetch, idle, lease, consumer or self._session.name))

    async def confirm_many(self, messages: Iterable[M]) -> list[Confirmed]:
        """Confirm messages: they are done with.

        `client.confirm_many(client.receive("orders", 100))`
        """
        return list(await asyncio.gather(*[self._settling.settle(message, "success") for message in messages]))

    async def settle(
        self,
        message: M,
        outcome: OutcomeName,
        *,
        result: object = None,
        delay: float | None = None,
        reason: str = "",
        begun: bool = True,
    ) -> Confirmed:
        """Report an outcome for a message: what its methods `confirm`, `retry`, … do. `begun=False`: it was fetched
        ahead and is given back as it was, so this delivery does not count."""
        return await self._settling.settle(message, outcome, result, delay, reason, begun=begun)

    async def extend(self, message: M, seconds: float, *, begin: bool = False) -> None:
        """Let the lease of a message run so long from now. `begin`: a delivery that was fetched ahead counts now."""
        await self._settling.extend(message, seconds, begin=begin)

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────────────────────

    async def wait(self, ids: Sequence[str], until: Until = "done", timeout: float | None = None) -> list[Outcome]:
        """Wait until all these messages are taken by a consumer, or done; the outcomes in the same order.

        `client.wait([sent.id for sent in all_sent], until="done", timeout=60)`
        """
        limit = self._session.limit(timeout)
        try:
            async with asyncio.timeout(limit):
                return list(await asyncio.gather(*map(self._waits[until].wait, ids)))
        except TimeoutError:
            raise errors.Timeout(
                f"not all of {len(ids)} messages were {until} within {limit:g} s (POST {self.url}/v1/wait, first:"
                f" {ids[0]}). They are stored: wait again, or check that a consumer runs"
            ) from None

    async def result(self, id: str, timeout: float | None = None) -> Outcome:
        """Wait until a message is done with success; its result is in `text`, `json()` and `decode(Type)`.

        `client.result(sent.id, timeout=5).json()`

        Raises `MessageFailed` if the message ended in another way.
        """
        (outcome,) = await self.wait([id], "done", timeout)
        if not outcome.success:
            sentence = f"message {id} ended as {outcome.outcome}, without a result ({self.url})"
            raise errors.MessageFailed.with_outcome(sentence, outcome)
        return outcome

    # ── Following ───────────────────────────────────────────────────────────────────────────────────────────

    def events(
        self,
        *,
        from_: str | int = "earliest",
        queue: str | Sequence[str] | None = None,
        topic: str | Sequence[str] | None = None,
        state: str | None = None,
        text: str | None = None,
        bodies: bool = True,
        follow: bool = True,
    ) -> Pages[Event]:
        """The events of the log, in order; each once, also if the connection is lost or the broker starts again.

        `for event in client.events(from_="now", queue="orders"): print(event.event, event.id)`

        To go on later, keep the `next` of the last event that you have dealt with and give it as `from_`.

        `text` finds messages whose body contains it, finished or not, by the events with which they entered a queue.
        """
        wanted = query(queue=queue, topic=topic, state=state, text=text, bodies=bodies, raw=True, follow=follow)
        return Pages(event_pages(self._session, str(from_), wanted.removeprefix("?"), follow=follow))

    def search(
        self,
        *,
        queue: str | None = None,
        topic: str | None = None,
        state: str | None = None,
        id: str | Sequence[str] | None = None,
        object: str | None = None,
        key: str | None = None,
        since: datetime | float | str | None = None,
        until: datetime | float | str | None = None,
        ready_since: datetime | float | str | None = None,
        ready_until: datetime | float | str | None = None,
        origin: str | None = None,
        reason: str | None = None,
        text: str | None = None,
        bodies: bool = True,
    ) -> Pages[Found]:
        """The messages that queues hold now, page by page. Nothing is taken.

        `for found in client.search(queue="orders", state="delayed"): print(found.id)`
        """
        about: dict[str, Any] = {"queue": queue, "topic": topic, "state": state, "object": object, "key": key}
        about |= {"ready_since": ready_since, "ready_until": ready_until, "origin": origin}
        about |= {"reason": reason, "text": text, "id": id if id is None or isinstance(id, str) else ",".join(id)}
        return Pages(found_pages(self._session, query(**about, since=since, until=until, bodies=bodies, raw=True)))

    async def message(self, id: str) -> dict[str, Any]:
        """The whole life of a message, also of one that is gone, as the API documents it.

        `client.message(sent.id)["state"]`
        """
        return await self._session.get(path("messages", id), dict[str, Any])

    async def delete_message(self, id: str) -> None:
        """Delete a message that no consumer has."""
        await self._session.delete(path("messages", id))

    async def redrive(
        self,
        from_: str,
        to: str | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Job:
        """Move messages out of a dead-letter queue: back to where they came from, or to another queue.

        `client.redrive("orders-failed", dry_run=True).matched`

        Returns when all are moved, or when the time of the client is up: `state` is then `running`.
        """
        given = {"from": from_, "to": to, "filter": filter, "rate": rate, "dry_run": dry_run}
        document = {name: value for name, value in given.items() if value is not None}
        return await finished(
            self._session, await self._session.change("POST", "/v1/redrive", Job, document), "redrive"
        )
