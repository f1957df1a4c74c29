"""Push, from a real queue on a real disk to a real endpoint, in the test's own event loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.broker.services.push import PushChannels
from penstock.broker.writer.loop import Loop
from penstock.config.config import PushConfig
from penstock.dialects.wire.http import Request
from penstock.engine.engine import Engine
from penstock.errors import LogFailedError
from penstock.ids import ID_KEY_BYTES, MessageIds
from penstock.limits import SECOND_NS
from penstock.model.answers import Refused
from penstock.model.commands import CreateQueue, DeleteQueue, DescribeQueue, Fetch, NewMessage, Publish, UpdateQueue
from penstock.model.happening import Happening
from penstock.model.kinds import Kind
from penstock.model.pushes import CheckPush
from penstock.model.settings import Push, QueueSettings, RedrivePolicy
from penstock.model.values import Nanos, Stage
from penstock.storage.log.segments import SegmentLog
from penstock.storage.memory import MemoryLog
from penstock.storage.port import Progress
from tests.support.certificates import self_signed
from tests.support.endpoint import OK, Endpoint, HangUp, Pushed, answer
from tests.support.live_loop import a_loop, ask
from tests.support.ports import free_port

IDS = MessageIds(bytes(ID_KEY_BYTES))
ENDS = {Kind.SUCCEEDED, Kind.INVALID, Kind.NOT_INTERESTED, Kind.FAILED, Kind.HANDED_OVER, Kind.DELETED}
QUICK = PushConfig(private_addresses="allow", retry_seconds=0.001, retry_seconds_max=0.002, circuit_failures=1000)


NOT_INTERESTED = b"HTTP/1.1 204 No Content\r\nX-Penstock-Outcome: not-interested\r\n\r\n"


class Scene:
    """A loop, its pushers, and what becomes of the messages of the channel `c`."""

    def __init__(self, loop: Loop, pushers: PushChannels) -> None:
        self.loop = loop
        self.pushers = pushers

    async def channel(self, push: Push, name: str = "c", **settings: Any) -> None:
        await ask(self.loop, CreateQueue(name, QueueSettings(push=push, **settings)))

    async def refusal(self, channel: str, push: Push) -> str:
        """Why it is known already that the channel cannot be pushed like this."""
        return (await self.pushers.check(Request(b"PUT", b"/", {}), CheckPush(channel, push))).refusal

    async def publish(self, *messages: bytes | NewMessage, channel: str = "c") -> list[asyncio.Future[list[Kind]]]:
        """Publish; for each message its events from the publish to the end."""
        fates: list[asyncio.Future[list[Kind]]] = []

        def follow(receipts: Any) -> None:
            for receipt in receipts:
                fate: asyncio.Future[list[Kind]] = asyncio.get_running_loop().create_future()
                self._follow(receipt.queue, receipt.sequence, fate)
                fates.append(fate)
            published.set()

        published = asyncio.Event()
        new = [message if isinstance(message, NewMessage) else NewMessage(message) for message in messages]
        self.loop.submit(Publish(channel, new), follow)
        await published.wait()
        return fates

    def _follow(self, queue: int, sequence: int, fate: asyncio.Future[list[Kind]]) -> None:
        kinds: list[Kind] = []

        def tell(what: Happening) -> None:
            kinds.append(what.kind)
            if what.kind in ENDS:
                fate.set_result(kinds)

        self.loop.follow(queue, sequence, tell)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - Endpoints live in threads of their own.
                await asyncio.sleep(0.001)

    def figure(self, metric: str, *labels: str) -> float:
        return dict(dict(self.pushers.state())[metric])[labels]

    async def messages(self, channel: str = "c") -> int:
        found: int = (await ask(self.loop, DescribeQueue(channel))).messages
        return found


@asynccontextmanager
async def a_scene(log: SegmentLog | MemoryLog, config: PushConfig = QUICK) -> AsyncIterator[Scene]:
    loop = a_loop(log)
    pushers = PushChannels(loop, IDS, config, random.Random(1).random)
    pushers.start()
    yield Scene(loop, pushers)
    stopping = asyncio.create_task(pushers.stop())
    await asyncio.sleep(0)
    await pushers.close()
    await stopping
    await asyncio.wait_for(_committed(loop), 60)


async def _committed(loop: Loop) -> None:
    """Everything that was decided is on the disk."""
    done = asyncio.get_running_loop().create_future()
    loop.decide_collected()
    loop.reach(Stage.SYNC, done.set_result)
    await done


def to(endpoint: Endpoint, max_in_flight: int = 4, seconds: float = 10) -> Push:
    return Push(endpoint.url, max_in_flight, int(seconds * SECOND_NS))


async def came(endpoint: Endpoint) -> Pushed:
    return await asyncio.to_thread(endpoint.next)


# ── Outcomes ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_is_posted_with_its_facts_and_confirmed_by_200(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint() as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                kept = msgspec.msgpack.encode({b"timestamp": "1ª May, 01:01".encode()})
                message = NewMessage(
                    b'{"n": 1}', "application/json", 7, "pump/ä", "fruit", ("fruit.a,b", "food"), b"k 1", kept
                )
                (fate,) = await scene.publish(message)
                pushed = await came(endpoint)
                assert (await fate)[-1] is Kind.SUCCEEDED
                assert await scene.messages() == 0
            assert pushed.line == "POST /take?from=penstock HTTP/1.1"
            assert pushed.body == b'{"n": 1}'
            assert pushed.header("Host") == f"127.0.0.1:{endpoint.port}"
            assert pushed.header("Content-Type") == "application/json"
            assert pushed.header("X-Penstock-Channel") == "c"
            assert pushed.header("X-Penstock-Id") == IDS.make(1, 1).decode()
            assert pushed.header("X-Penstock-Receives") == "1"
            assert pushed.header("X-Penstock-Topics") == "fruit.a%2Cb, food"
            assert pushed.header("X-Penstock-Object") == "fruit"
            assert pushed.header("X-Penstock-Key") == "k%201"
            assert pushed.header("X-Penstock-Sender") == "pump/%C3%A4"
            assert pushed.header("X-Penstock-Priority") == "7"
            assert pushed.header("X-Penstock-Timestamp") == "1%C2%AA May%2C 01:01"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "said",
    [
        OK,
        answer(201, body=b"made"),
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" + OK,
        answer(200, body=bytes(1 << 20)),
    ],
    ids=["200", "201", "204", "chunked", "interim", "long body"],
)
def test_whatever_2xx_is_answered_the_message_is_done_with(log: SegmentLog, said: bytes) -> None:
    async def scenario() -> None:
        with Endpoint(said) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                for fate in await scene.publish(b"a", b"b", b"c"):
                    assert (await fate)[-1] is Kind.SUCCEEDED
            assert scene.pushers._tools.outcomes["success"] == 3

    asyncio.run(scenario())


def test_an_answer_that_ends_with_the_connection_is_an_answer(log: SegmentLog) -> None:
    def say(_: Pushed) -> bytes:
        raise HangUp(b"HTTP/1.0 200 OK\r\n\r\nthat is all")

    async def scenario() -> None:
        with Endpoint(say) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                (fate,) = await scene.publish(b"a")
                assert (await fate)[-1] is Kind.SUCCEEDED
            assert scene.pushers._tools.outcomes["retry"] == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("said", "outcome", "kind"),
    [
        (answer(422), "invalid", Kind.INVALID),
        (NOT_INTERESTED, "not_interested", Kind.NOT_INTERESTED),
    ],
    ids=["invalid", "not interested"],
)
def test_an_endpoint_can_refuse_a_message_for_good(log: SegmentLog, said: bytes, outcome: Any, kind: Kind) -> None:
    async def scenario() -> None:
        with Endpoint(said) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                (fate,) = await scene.publish(b"a")
                assert (await fate)[-1] is kind
                assert await scene.messages() == 0
            assert scene.pushers._tools.outcomes[outcome] == 1

    asyncio.run(scenario())


def close_in_the_middle(_: Pushed) -> bytes:
    raise HangUp(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly")


def say_nothing(_: Pushed) -> bytes:
    raise HangUp


@pytest.mark.parametrize(
    "said",
    [
        answer(500),
        answer(404),
        answer(301, "Location: http://example.org/\r\n"),
        answer(409, body=b"no"),
        b"this is not HTTP\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + bytes(1 << 17).replace(b"\0", b"x") + b"\r\n\r\n",
        close_in_the_middle,
        say_nothing,
    ],
    ids=["500", "404", "301", "409", "garbage", "101", "long head", "closed in the middle", "closed"],
)
def test_anything_else_is_tried_again_until_the_retries_are_used_up(log: SegmentLog, said: Any) -> None:
    async def scenario() -> None:
        with Endpoint(said) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint), retries=3)
                (fate,) = await scene.publish(b"a")
                kinds = await fate
                assert kinds[-1] is Kind.FAILED
                assert kinds.count(Kind.RETRIED) == 2
                told = [(await came(endpoint)).header("X-Penstock-Receives") for _ in range(3)]
                assert told == ["1", "2", "3"]
                assert scene.pushers.describe("c")["last_error"]
            assert scene.pushers._tools.outcomes["retry"] == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_whatever_an_endpoint_does_every_message_comes_to_one_end(log: SegmentLog, seed: int) -> None:
    chance = random.Random(seed)
    retries = 4

    def misbehave(pushed: Pushed) -> bytes:
        if chance.random() < 0.1:
            raise HangUp(chance.choice([b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\n\r\n", b"what?"]))
        close = answer(200, "Connection: close\r\n")
        return chance.choice(
            [OK, OK, close, answer(422), NOT_INTERESTED, answer(500), answer(503), b"what?", OK + OK]
        )

    async def scenario() -> None:
        with Endpoint(misbehave) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint, max_in_flight=chance.randint(1, 9)), retries=retries)
                fates = await scene.publish(*[b"%d" % number for number in range(150)])
                ends = [(await fate)[-1] for fate in fates]
                assert {Kind.SUCCEEDED, Kind.INVALID, Kind.NOT_INTERESTED, Kind.FAILED} >= set(ends)
                assert await scene.messages() == 0
                assert scene.loop.events_by_kind[Kind.FETCHED] == sum(scene.pushers._tools.outcomes.values())
                assert scene.pushers.in_flight == 0
                assert endpoint.under_way_most <= 9
            seen: dict[str | None, list[int]] = {}
            while not endpoint.is_quiet:
                pushed = endpoint.next()
                seen.setdefault(pushed.header("X-Penstock-Id"), []).append(
                    int(pushed.header("X-Penstock-Receives") or 0)
                )
            assert len(seen) == 150
            for receives in seen.values():  # The same one twice: its connection was an old one, and closed.
                assert receives == sorted(receives)
                assert set(receives) == set(range(1, max(receives) + 1))
                assert max(receives) <= retries

    asyncio.run(scenario())


def test_a_message_that_failed_too_often_ends_in_the_dead_letter_queue(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint(answer(500)) as endpoint:
            async with a_scene(log) as scene:
                await ask(scene.loop, CreateQueue("dead", QueueSettings()))
                await scene.channel(to(endpoint), retries=2, redrive_policy=RedrivePolicy(9, "dead"))
                await scene.publish(b"a")
                await scene.until(lambda: scene.loop.events_by_kind[Kind.DEAD_LETTERED] == 1)
                (delivery,) = await ask(scene.loop, Fetch("dead"))
                assert delivery.body == b"a"

    asyncio.run(scenario())


def test_an_endpoint_that_takes_too_long_is_not_waited_for(log: SegmentLog) -> None:
    release = threading.Event()

    def dawdle(pushed: Pushed) -> bytes:
        if pushed.header("X-Penstock-Receives") == "1":
            release.wait(20)
        return OK

    async def scenario() -> None:
        with Endpoint(dawdle) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint, seconds=0.2))
                (fate,) = await scene.publish(b"a")
                assert await fate == [Kind.FETCHED, Kind.RETRIED, Kind.FETCHED, Kind.SUCCEEDED]
                assert "0.2 s" in scene.pushers.describe("c")["last_error"]
            release.set()

    asyncio.run(scenario())


def test_retry_after_is_honoured(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint(answer(503, "Retry-After: 3600\r\n")) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                await scene.publish(b"a")
                await scene.until(lambda: scene.loop.events_by_kind[Kind.RETRIED] == 1)
                queue = scene.loop.engine.queue("c")
                assert queue is not None
                row = queue.rows.get(1)
                assert row is not None
                assert row.visible_at - row.created > 3599 * SECOND_NS

    asyncio.run(scenario())


def test_a_message_that_fails_for_the_last_time_is_ready_in_the_dead_letters(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint(answer(500)) as endpoint:
            async with a_scene(log) as scene:
                await ask(scene.loop, CreateQueue("dead", QueueSettings()))
                policy = RedrivePolicy(max_receives=1, dead_letter_queue="dead")
                await scene.channel(to(endpoint), redrive_policy=policy, retries=1)
                await scene.publish(b"a")
                dead = scene.loop.engine.queue("dead")
                assert dead is not None
                await scene.until(lambda: dead.ready == 1)

    asyncio.run(scenario())


def test_a_channel_without_confirmations_tries_once(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint(answer(500)) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint), confirm=False)
                await scene.publish(b"a")
                await came(endpoint)
                await scene.until(lambda: scene.pushers._tools.outcomes["retry"] == 1)
                assert await scene.messages() == 0
                assert scene.loop.events_by_kind[Kind.HANDED_OVER] == 1

    asyncio.run(scenario())


# ── Connections ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_connection_is_used_again(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint() as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint, max_in_flight=1))
                for fate in await scene.publish(*[b"%d" % number for number in range(50)]):
                    await fate
                assert [(await came(endpoint)).body for _ in range(50)] == [b"%d" % number for number in range(50)]
                assert endpoint.connections == 1

    asyncio.run(scenario())


def test_no_more_requests_are_under_way_than_the_channel_allows(log: SegmentLog) -> None:
    gate = threading.Semaphore(0)

    def wait(_: Pushed) -> bytes:
        gate.acquire(timeout=60)
        return OK

    async def scenario() -> None:
        with Endpoint(wait) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint, max_in_flight=3))
                fates = await scene.publish(*[b"%d" % number for number in range(12)])
                await scene.until(lambda: endpoint.under_way == 3)
                assert scene.pushers.describe("c")["in_flight"] == 3
                assert len(await ask(scene.loop, Fetch("c", 20))) == 9, "the others are anybody's"
                gate.release(100)
                await asyncio.gather(*fates[:3])
                assert endpoint.under_way_most == 3
                assert endpoint.connections == 3

    asyncio.run(scenario())


def test_one_that_was_closed_while_it_rested_costs_no_retry(log: SegmentLog) -> None:
    """The endpoint closes after its answer without saying so, as one that restarts does."""

    async def scenario() -> None:
        with Endpoint() as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint, max_in_flight=1))
                (fate,) = await scene.publish(b"a")
                await fate

                def hang_up_on_old_ones(pushed: Pushed) -> bytes:
                    if pushed.connection == 1:
                        raise HangUp
                    return OK

                endpoint.answer = hang_up_on_old_ones
                (fate,) = await scene.publish(b"b")
                assert (await fate) == [Kind.SUCCEEDED] or (await fate) == [Kind.FETCHED, Kind.SUCCEEDED]
            assert scene.pushers._tools.outcomes == {"success": 2, "invalid": 0, "not_interested": 0, "retry": 0}

    asyncio.run(scenario())


def test_connection_close_is_obeyed(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint(answer(200, "Connection: close\r\n")) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint, max_in_flight=4))
                fates = await scene.publish(*[b"%d" % number for number in range(40)])
                assert all(kinds[-1] is Kind.SUCCEEDED for kinds in await asyncio.gather(*fates))
                assert endpoint.connections >= 40
            assert scene.pushers._tools.outcomes["retry"] == 0
            assert scene.loop.events_by_kind[Kind.RETRIED] == 0

    asyncio.run(scenario())


def test_large_bodies_arrive_whole(log: SegmentLog) -> None:
    async def scenario() -> None:
        body = random.Random(2).randbytes(1 << 20)
        with Endpoint() as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint, max_in_flight=8))
                for fate in await scene.publish(*[body] * 8):
                    await fate
                assert all([(await came(endpoint)).body == body for _ in range(8)])

    asyncio.run(scenario())


def test_tls_with_an_authority_that_is_trusted(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def scenario() -> None:
        with Endpoint(tls=context) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint, max_in_flight=2))
                fates = await scene.publish(*[bytes([number]) * 100_000 for number in range(10)])
                assert all(kinds[-1] is Kind.SUCCEEDED for kinds in await asyncio.gather(*fates))
                bodies = {(await came(endpoint)).body for _ in range(10)}
                assert bodies == {bytes([number]) * 100_000 for number in range(10)}
                assert endpoint.connections <= 2

    asyncio.run(scenario())


def test_an_endpoint_that_cannot_prove_who_it_is_gets_nothing(log: SegmentLog, tmp_path: Path) -> None:
    context, _ = self_signed(tmp_path)

    async def scenario() -> None:
        with Endpoint(tls=context) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                await scene.publish(b"secret")
                await scene.until(lambda: "certificate" in (scene.pushers.describe("c")["last_error"] or ""))
                assert scene.loop.events_by_kind[Kind.FETCHED] == 0
            assert endpoint.is_quiet

    asyncio.run(scenario())


# ── The circuit ───────────────────────────────────────────────────────────────────────────────────────────────


def test_an_endpoint_that_cannot_be_reached_uses_up_no_retries(log: SegmentLog) -> None:
    async def scenario() -> None:
        endpoint = Endpoint(port=free_port())
        endpoint.close()
        async with a_scene(log) as scene:
            await scene.channel(to(endpoint), retries=1)
            fates = await scene.publish(b"a", b"b")
            await scene.until(lambda: scene.pushers.describe("c")["last_error"] is not None)
            assert scene.loop.events_by_kind[Kind.FETCHED] == 0
            with Endpoint(port=endpoint.port) as endpoint:
                assert [await fate for fate in fates] == [[Kind.FETCHED, Kind.SUCCEEDED]] * 2
                assert scene.pushers.describe("c")["circuit"] == "closed"

    asyncio.run(scenario())


def test_the_circuit_opens_after_failures_in_a_row_and_closes_with_a_success(log: SegmentLog) -> None:
    config = PushConfig(
        private_addresses="allow",
        retry_seconds=0.05,
        retry_seconds_max=0.05,
        circuit_failures=3,
        circuit_seconds_max=0.1,
    )

    async def scenario() -> None:
        with Endpoint(answer(500)) as endpoint:
            async with a_scene(log, config) as scene:
                await scene.channel(to(endpoint, max_in_flight=1))
                (fate,) = await scene.publish(b"a")
                await scene.until(lambda: scene.pushers.describe("c")["circuit"] == "open")
                assert scene.loop.events_by_kind[Kind.FETCHED] == 3
                assert scene.figure("penstock_push_channels", "open") == 1
                await scene.until(lambda: scene.loop.events_by_kind[Kind.FETCHED] == 4)
                endpoint.answer = OK
                assert (await fate)[-1] is Kind.SUCCEEDED
                assert scene.pushers.describe("c")["circuit"] == "closed"

    asyncio.run(scenario())


def test_while_the_circuit_is_half_open_one_message_at_a_time_is_tried(log: SegmentLog) -> None:
    config = PushConfig(
        private_addresses="allow",
        retry_seconds=0.01,
        retry_seconds_max=0.01,
        circuit_failures=1,
        circuit_seconds_max=0.02,
    )

    async def scenario() -> None:
        gate = threading.Event()

        def fail_once_then_wait(_: Pushed) -> bytes:
            if endpoint.under_way_most > 1 or seen:
                gate.wait(20)
                return OK
            seen.append(True)
            return answer(500)

        seen: list[bool] = []
        with Endpoint(fail_once_then_wait) as endpoint:
            async with a_scene(log, config) as scene:
                await scene.channel(to(endpoint, max_in_flight=1))
                await scene.publish(b"first")
                await scene.until(lambda: bool(seen))
                await ask(scene.loop, UpdateQueue("c", QueueSettings(push=to(endpoint, max_in_flight=8))))
                fates = await scene.publish(*[b"%d" % number for number in range(8)])
                await scene.until(lambda: endpoint.under_way == 1)
                described = scene.pushers.describe("c")
                assert (described["circuit"], described["in_flight"]) == ("half-open", 1)
                assert described["last_error"] == "the endpoint answered 500"
                assert described["failing_since"] is not None
                assert endpoint.under_way == 1
                gate.set()
                await asyncio.gather(*fates)
                assert scene.pushers.describe("c")["failing_since"] is None

    asyncio.run(scenario())


def test_a_dead_endpoint_does_not_hold_up_a_good_one(log: SegmentLog) -> None:
    async def scenario() -> None:
        stuck = threading.Event()

        def never(_: Pushed) -> bytes:
            stuck.wait(60)
            return OK

        with Endpoint(never) as dead, Endpoint() as good:
            async with a_scene(log) as scene:
                await scene.channel(to(dead), "dead")
                await scene.channel(to(good), "good")
                await scene.publish(*[b"x"] * 50, channel="dead")
                fates = await scene.publish(*[b"x"] * 200, channel="good")
                await asyncio.gather(*fates)
                assert scene.pushers.describe("dead")["in_flight"] == 4
            stuck.set()

    asyncio.run(scenario())


# ── Channels that come, change and go ─────────────────────────────────────────────────────────────────────────


def test_messages_that_were_there_before_the_push_are_pushed(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint() as endpoint:
            async with a_scene(log) as scene:
                await ask(scene.loop, CreateQueue("c", QueueSettings()))
                (fate,) = await scene.publish(b"a")
                await ask(scene.loop, UpdateQueue("c", QueueSettings(push=to(endpoint))))
                assert await fate == [Kind.FETCHED, Kind.SUCCEEDED]

    asyncio.run(scenario())


def test_a_channel_can_be_aimed_elsewhere_and_then_nowhere(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint() as one, Endpoint() as two:
            async with a_scene(log) as scene:
                await scene.channel(to(one))
                await (await scene.publish(b"a"))[0]
                await ask(scene.loop, UpdateQueue("c", QueueSettings(push=to(two))))
                await (await scene.publish(b"b"))[0]
                await ask(scene.loop, UpdateQueue("c", QueueSettings()))
                await scene.until(lambda: scene.figure("penstock_push_connections") == 0)
                await scene.publish(b"c")
                assert await scene.messages() == 1
                assert scene.pushers.describe("c") == {}
                assert (await came(one)).body == b"a"
                assert (await came(two)).body == b"b"
                assert one.is_quiet
                assert two.is_quiet

    asyncio.run(scenario())


def test_a_channel_that_is_deleted_ends_what_is_on_its_way(log: SegmentLog) -> None:
    gate = threading.Event()

    def wait(_: Pushed) -> bytes:
        gate.wait(20)
        return OK

    async def scenario() -> None:
        with Endpoint(wait) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                (fate,) = await scene.publish(b"a")
                await came(endpoint)
                await ask(scene.loop, DeleteQueue("c"))
                assert (await fate)[-1] is Kind.DELETED
                assert scene.pushers.in_flight == 1
                gate.set()
                await scene.until(
                    lambda: scene.pushers.in_flight == 0 and scene.figure("penstock_push_connections") == 0
                )

    asyncio.run(scenario())


def test_a_clean_stop_gives_back_what_is_still_on_its_way(log: SegmentLog) -> None:
    gate = threading.Event()

    def wait(_: Pushed) -> bytes:
        gate.wait(20)
        return OK

    async def scenario() -> None:
        with Endpoint(wait) as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                await scene.publish(b"a")
                await came(endpoint)
                stopping = asyncio.create_task(scene.pushers.stop())
                await asyncio.sleep(0)
                assert scene.pushers.in_flight == 1
                await scene.pushers.close()
                await stopping
                (delivery,) = await ask(scene.loop, Fetch("c"))
                assert (delivery.body, delivery.receives) == (b"a", 2)
            gate.set()

    asyncio.run(scenario())


class BreakingLog(MemoryLog):
    """Its disk can be taken away."""

    broken = False

    def commit(self, now: Nanos, progress: Progress) -> None:
        if self.broken:
            progress(LogFailedError("the disk is gone"))
        else:
            super().commit(now, progress)


def test_after_the_log_has_failed_and_is_there_again_pushing_goes_on_with_what_it_holds() -> None:
    async def scenario() -> None:
        log = BreakingLog()
        with Endpoint() as endpoint:
            async with a_scene(log) as scene:
                await scene.channel(to(endpoint))
                await asyncio.gather(*await scene.publish(b"before"))
                log.broken = True
                refused = await ask(scene.loop, CreateQueue("never", QueueSettings(push=to(endpoint))))
                assert isinstance(refused, Refused)
                assert scene.loop.failure
                engine, again = Engine(), BreakingLog(log.durable)
                for event, position in again.recover().events:
                    engine.evolve(event, position)
                scene.loop.revive(engine, again)
                scene.pushers.start()
                await asyncio.gather(*await scene.publish(b"after"))
                assert scene.pushers.describe("never") == {}
                assert [(await came(endpoint)).body for _ in range(2)] == [b"before", b"after"]

    asyncio.run(scenario())


# ── What is refused ───────────────────────────────────────────────────────────────────────────────────────────


def test_private_addresses_are_refused_unless_they_are_allowed(log: SegmentLog) -> None:
    async def scenario() -> None:
        with Endpoint() as endpoint:
            async with a_scene(log, PushConfig()) as scene:
                assert "private_addresses" in await scene.refusal("c", to(endpoint))
                await scene.channel(to(endpoint))  # As one that was made when it was still allowed.
                await scene.publish(b"a")
                state = scene.pushers.describe("c")
                assert state["circuit"] == "open"
                assert "private_addresses" in state["last_error"]
            assert endpoint.connections == 0

    asyncio.run(scenario())


def test_a_name_that_leads_to_a_private_address_is_refused_when_it_is_looked_up(
    log: SegmentLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        with Endpoint() as endpoint:
            running = asyncio.get_running_loop()

            async def resolve(host: str, port: int, **_: Any) -> list[Any]:
                assert host == "hooks.example"
                return [(2, 1, 6, "", ("127.0.0.1", port))]

            monkeypatch.setattr(running, "getaddrinfo", resolve)
            async with a_scene(log, PushConfig(retry_seconds=0.001)) as scene:
                await scene.channel(Push(f"http://hooks.example:{endpoint.port}/"))
                await scene.publish(b"a")
                await scene.until(lambda: scene.pushers.describe("c")["last_error"] is not None)
                assert "127.0.0.1" in scene.pushers.describe("c")["last_error"]
                assert scene.loop.events_by_kind[Kind.FETCHED] == 0
            assert endpoint.connections == 0

    asyncio.run(scenario())


def test_a_channel_for_which_there_is_no_room_waits_for_room(log: SegmentLog) -> None:
    config = PushConfig(private_addresses="allow", connections_max=5)

    async def scenario() -> None:
        with Endpoint() as endpoint:
            async with a_scene(log, config) as scene:
                await scene.channel(to(endpoint, max_in_flight=4), "one")
                assert "leaves room for 1" in await scene.refusal("two", to(endpoint, max_in_flight=2))
                assert not await scene.refusal("one", to(endpoint, max_in_flight=5))
                await scene.channel(to(endpoint, max_in_flight=2), "two")
                assert scene.pushers.describe("two")["circuit"] == "open"
                (fate,) = await scene.publish(b"a", channel="two")
                await ask(scene.loop, DeleteQueue("one"))
                assert (await fate)[-1] is Kind.SUCCEEDED
                assert scene.pushers.describe("two")["circuit"] == "closed"

    asyncio.run(scenario())
