"""Both clients, over a real broker: what is published arrives, and every answer has its type."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from msgspec import Struct

from penstock import AsyncClient, Client
from penstock.client import errors
from penstock.client.core import Core
from tests.support.broker import Broker, StartBroker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.url, timeout=60) as client:
        yield client


class Order(Struct):
    number: int
    lines: list[str]


def test_what_is_published_is_received_to_the_byte(client: Client) -> None:
    client.queues.create("client-bytes")
    contents = ["text", b"\x00\xff", {"a": [1, None]}, Order(7, ["x"]), 17, "", b"", '"quoted"']
    client.publish_many("client-bytes", contents)
    bodies = [message.body for message in client.receive("client-bytes", 10)]
    assert bodies == [
        b"text",
        b"\x00\xff",
        b'{"a":[1,null]}',
        b'{"number":7,"lines":["x"]}',
        b"17",
        b"",
        b"",
        b'"quoted"',
    ]


def test_a_message_has_all_that_it_was_published_with(client: Client) -> None:
    client.queues.create("client-facts")
    sent = client.publish("client-facts", Order(1, []), priority=3, key="k", object="o", sender="me", expires=60)
    (message,) = client.receive("client-facts")
    assert (message.id, message.queue, message.receives) == (sent.id, "client-facts", 1)
    assert (message.priority, message.key, message.object, message.sender) == (3, "k", "o", "me")
    assert message.content_type == "application/json"
    assert message.json() == {"number": 1, "lines": []}
    assert message.decode(Order) == Order(1, [])
    assert message.created.tzinfo is not None


def test_headers_come_back_and_results_may_be_bytes(client: Client) -> None:
    client.queues.create("client-headers")
    sent = client.publish("client-headers", "x", headers={"trace": "7f"})
    (message,) = client.receive("client-headers", lease=300)
    assert message.headers == {"trace": "7f"}
    assert (message.visible_at - message.created).total_seconds() > 250
    message.confirm(b"\xff")
    assert sent.result().body == b"\xff"


def test_a_message_that_is_confirmed_is_gone_and_one_that_is_given_back_comes_again(client: Client) -> None:
    client.queues.create("client-settled")
    client.publish_many("client-settled", ["confirmed", "given back"])
    first, second = client.receive("client-settled", 2)
    assert not first.confirm(result={"done": True}).discarded
    assert first.confirm().discarded
    second.extend(60)
    second.retry()
    (again,) = client.receive("client-settled")
    assert (again.text, again.receives) == ("given back", 2)
    with pytest.raises(errors.LeaseGone, match="the message is not leased to this consumer"):
        second.retry()
    again.invalid()
    assert client.queues.get("client-settled").status.messages == 0


def test_a_topic_reaches_its_queue_and_the_channels_that_subscribe(client: Client) -> None:
    client.channels.create("client-mail", ["client-fruit.*"])
    sent = client.publish_to(["client-fruit.sweet"], "12 apples", key="apple")
    assert (sent.queues, sent.channels, sent.unchanged) == (("client-fruit",), ("client-mail",), False)
    assert client.publish_to(["client-fruit.sweet"], "12 apples", key="apple").unchanged
    (message,) = client.receive("client-mail")
    assert message.topics == ("client-fruit.sweet",)
    assert "client-mail" in [channel.name for channel in client.channels.list()]
    client.channels.delete("client-mail")


def test_a_loop_confirms_what_it_has_done_and_gives_back_what_it_has_not(client: Client) -> None:
    client.queues.create("client-loop")
    client.publish_many("client-loop", [str(number) for number in range(5)])
    seen = []

    def work() -> None:
        for message in client.consume("client-loop"):
            seen.append(message.text)
            if message.text == "2":
                raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert seen == ["0", "1", "2"]
    status = client.queues.get("client-loop").status
    assert (status.ready, status.leased) == (3, 0)
    assert [message.text for message in client.consume("client-loop", idle=0)] == ["2", "3", "4"]
    assert client.queues.get("client-loop").status.messages == 0


def test_queues_are_listed_changed_purged_and_deleted(client: Client) -> None:
    client.queues.create("client-admin", max_attempts=3)
    assert client.queues.change("client-admin", lease=5).lease == 5
    with pytest.raises(errors.QueueExists):
        client.queues.create("client-admin", max_attempts=4)
    client.publish_many("client-admin", ["a", "b"])
    assert client.queues.purge("client-admin").deleted == 2
    assert "client-admin" in [queue.name for queue in client.queues.list()]
    client.queues.delete("client-admin")
    with pytest.raises(errors.QueueNotFound, match=r"the queue does not exist: client-admin .*queues.create"):
        client.queues.get("client-admin")


def test_messages_are_found_followed_and_redriven(client: Client) -> None:
    client.queues.create("client-lost")
    client.queues.create("client-found", redrive_policy={"max_receives": 1, "dead_letter_queue": "client-lost"})
    sent = client.publish("client-found", "needle")
    client.receive("client-found", consumer="me")[0].retry()
    assert [found.body for found in client.search(queue="client-lost", text="needle")] == [b"needle"]
    assert client.redrive("client-lost").moved == 1
    assert client.message(sent.id)["queue"] == "client-found"
    events = [event.state for event in client.events(queue=["client-found", "client-lost"], follow=False)]
    assert events[:3] == ["L", "Q", "F"]
    assert client.health().color == "green"
    assert "penstock_" in client.metrics()


def test_the_reason_for_which_a_message_is_given_back_is_found_with_the_dead_letter(client: Client) -> None:
    client.queues.create("client-why-lost")
    client.queues.create("client-why", redrive_policy={"max_receives": 2, "dead_letter_queue": "client-why-lost"})
    sent = [client.publish("client-why", text) for text in ("a", "b", "c")]
    for _ in range(6):
        (message,) = client.receive("client-why", consumer="me")
        reason = ("the bank is closed", "card 4711 expired\ntrace")[message.receives - 1]
        message.retry(delay=0.001, reason="ü" * 8000 if message.text == "b" else reason)
    found = {each.body.decode(): each.reason for each in client.search(queue="client-why-lost")}
    assert found == {"a": "card 4711 expired", "b": "ü" * 128, "c": "card 4711 expired"}
    assert [each["reason"] for each in client.message(sent[0].id)["consumed"]] == [
        "the bank is closed",
        "card 4711 expired\ntrace",
    ]
    assert len(client.message(sent[1].id)["consumed"][0]["reason"].encode()) == 10 << 10
    retries = [event for event in client.message(sent[0].id)["events"] if event["state"] == "R"]
    assert [event["reason"] for event in retries] == ["the bank is closed"]
    assert client.redrive("client-why-lost", filter={"reason": "card * expired"}).moved == 2
    assert [each.body for each in client.search(queue="client-why-lost")] == [b"b"]


def test_schedules_are_made_changed_run_and_removed(client: Client) -> None:
    client.queues.create("client-reports")
    made = client.schedules.create("client-nightly", {"report": 1}, queue="client-reports", cron="30 2 * * *")
    assert (made.cron, made.time_zone, made.message, made.runs) == ("30 2 * * *", "UTC", {"report": 1}, 0)
    assert client.schedules.change("client-nightly", paused=True, message=b"\xff").paused
    identity = client.schedules.run("client-nightly")
    (message,) = client.receive("client-reports")
    assert (message.id, message.body, message.sender) == (identity, b"\xff", "schedule:client-nightly")
    assert client.schedules.get("client-nightly").last_id == identity
    assert "client-nightly" in [schedule.name for schedule in client.schedules.list()]
    client.schedules.delete("client-nightly")
    with pytest.raises(errors.ScheduleNotFound):
        client.schedules.get("client-nightly")


def test_a_publisher_waits_for_the_result(client: Client) -> None:
    client.queues.create("client-squares")

    def square() -> None:
        for message in client.consume("client-squares", idle=2):
            message.confirm({"square": message.json() ** 2}) if message.json() else message.invalid()

    worker = threading.Thread(target=square)
    worker.start()
    sent = [client.publish("client-squares", number) for number in range(1, 4)]
    assert [each.result(timeout=60).json() for each in sent] == [{"square": 1}, {"square": 4}, {"square": 9}]
    outcome = client.publish("client-squares", 5, wait="done").outcome
    assert outcome
    assert (outcome.outcome, outcome.json()) == ("success", {"square": 25})
    with pytest.raises(errors.MessageFailed, match="ended as invalid"):
        client.publish("client-squares", 0).result()
    worker.join()
    late = client.publish("client-squares", 6)
    with pytest.raises(errors.Timeout, match=r"not all of 1 messages were taken within 0\.1 s"):
        client.wait([late.id], "taken", timeout=0.1)
    with pytest.raises(errors.MessageNotFound):
        client.result("00000000-0000-8000-8000-000000000000")


def test_many_wait_for_their_results_at_once(broker: Broker) -> None:
    async def run() -> list[int]:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("client-many-results")
            answering = asyncio.create_task(answer(client))
            asking = [ask(client, number) for number in range(100)]
            results = await asyncio.gather(*asking)
            answering.cancel()
            return results

    async def answer(client: AsyncClient) -> None:
        async for message in client.consume("client-many-results"):
            await message.confirm(message.json() + 1)

    async def ask(client: AsyncClient, number: int) -> int:
        await asyncio.sleep(number / 200)  # Not all at once, so that there are many requests.
        sent = await client.publish("client-many-results", number)
        return (await sent.result(timeout=60)).decode(int)

    assert asyncio.run(run()) == list(range(1, 101))


def test_a_refused_message_does_not_harm_those_published_with_it(broker: Broker) -> None:
    async def publish() -> None:
        async with AsyncClient(broker.url) as client:
            await client.queues.create("client-mixed")
            keys = ["k" * 2000 if number == 5 else "" for number in range(10)]
            results = await asyncio.gather(
                *[client.publish("client-mixed", "x", key=key) for key in keys], return_exceptions=True
            )
            assert [type(each) for each in results].count(errors.BadRequest) == 1
            assert (await client.queues.get("client-mixed")).status.messages == 9

    asyncio.run(publish())


def test_many_threads_share_a_client(client: Client) -> None:
    client.queues.create("client-threads")

    def publish() -> None:
        for number in range(50):
            client.publish("client-threads", str(number))

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.queues.get("client-threads").status.messages == 400


def test_a_broker_that_is_not_there_is_named_with_what_to_do() -> None:
    sentence = r"cannot reach http://127.0.0.1:1 .*Nothing was sent.*PENSTOCK_URL"
    with Client("http://127.0.0.1:1", timeout=0.2) as client, pytest.raises(errors.Unavailable, match=sentence):
        client.health()


def test_a_token_is_shown(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret")
    with Client(broker.url) as client, pytest.raises(errors.Unauthorized, match="PENSTOCK_TOKEN"):
        client.queues.list()
    with Client(broker.url, token="secret") as client:
        assert client.queues.list() == []


def test_url_and_token_come_from_the_environment(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", broker.url)
    with Client() as client:
        assert client.url == broker.url


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        public = {name: each for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")}
        return {name: list(inspect.signature(each).parameters) for name, each in public.items()}

    blocking = methods(Client)
    del blocking["after_fork"]  # An event loop cannot be used after a fork.
    assert blocking == methods(Core)


def test_importing_penstock_loads_nothing_that_is_heavy() -> None:
    heavy = ("asyncio", "uvloop", "pyarrow", "msgspec", "httptools", "numpy")
    code = f"import sys, penstock; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
