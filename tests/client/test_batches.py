"""What is sent together, and who gets which part of the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from penstock.client import errors
from penstock.client.batches import Batches


class Broker:
    """Answers each list with its documents, when the test says so."""

    def __init__(self) -> None:
        self.lists: list[list[int]] = []
        self._gate = asyncio.Event()
        self._gate.set()
        self.refuses: Callable[[list[int]], errors.ClientError | None] = lambda _: None

    def hold(self) -> None:
        self._gate.clear()

    def answer(self) -> None:
        self._gate.set()

    async def send(self, body: bytes, _: float) -> list[int]:
        documents: list[int] = json.loads(body)
        self.lists.append(documents)
        await self._gate.wait()
        if error := self.refuses(documents):
            raise error
        return [document * 10 for document in documents]


def run(scenario: Callable[[Broker, Batches[int]], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = Broker()
        await scenario(broker, Batches(broker.send))

    asyncio.run(main())


def document(number: int) -> bytes:
    return str(number).encode()


def test_a_call_that_comes_alone_is_sent_at_once_and_others_collect_meanwhile() -> None:
    async def scenario(broker: Broker, batches: Batches[int]) -> None:
        broker.hold()
        calls = []
        for number in range(1, 6):
            calls.append(batches.add(document(number)))
            await asyncio.sleep(0)
        assert broker.lists == [[1], [2]]
        broker.answer()
        assert await asyncio.gather(*calls) == [10, 20, 30, 40, 50]
        assert broker.lists == [[1], [2], [3, 4, 5]]

    run(scenario)


def test_calls_of_one_turn_go_together_in_full_batches() -> None:
    async def scenario(broker: Broker, batches: Batches[int]) -> None:
        calls = [batches.add(document(number)) for number in range(2500)]
        assert await asyncio.gather(*calls) == [number * 10 for number in range(2500)]
        assert [len(each) for each in broker.lists] == [1000, 1000, 500]

    run(scenario)


def test_full_batches_do_not_wait_for_each_other_but_only_so_many_are_under_way() -> None:
    async def scenario(broker: Broker, batches: Batches[int]) -> None:
        broker.hold()
        calls = [batches.add(document(number)) for number in range(10_000)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(broker.lists) == 4
        broker.answer()
        await asyncio.gather(*calls)
        assert len(broker.lists) == 10

    run(scenario)


def test_large_documents_make_smaller_batches() -> None:
    async def scenario(broker: Broker, batches: Batches[int]) -> None:
        large = b"1" + b" " * (100 << 10)
        await asyncio.gather(*[batches.add(large) for _ in range(6)])
        assert [len(each) for each in broker.lists] == [3, 3]

    run(scenario)


def test_a_caller_that_has_gone_is_not_sent_and_not_missed() -> None:
    async def scenario(broker: Broker, batches: Batches[int]) -> None:
        calls = [batches.add(document(number)) for number in range(3)]
        calls[1].cancel()
        assert await calls[0] == 0
        assert await calls[2] == 20
        assert broker.lists == [[0, 2]]
        broker.hold()
        late = batches.add(document(5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late.cancel()
        broker.answer()
        await batches.finish()
        assert batches.idle

    run(scenario)


def test_one_bad_entry_fails_alone() -> None:
    async def scenario(broker: Broker, batches: Batches[int]) -> None:
        broker.refuses = lambda documents: errors.BadRequest("7 is bad") if 7 in documents else None
        calls = [batches.add(document(number)) for number in range(16)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results].count(errors.BadRequest) == 1
        assert isinstance(results[7], errors.BadRequest)

    run(scenario)


def test_an_error_that_is_about_all_fails_all_with_exceptions_of_their_own() -> None:
    async def scenario(broker: Broker, batches: Batches[int]) -> None:
        broker.refuses = lambda _: errors.QueueNotFound("no queue")
        calls = [batches.add(document(number)) for number in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert len({id(result) for result in results}) == 3
        assert len(broker.lists) == 1
        with pytest.raises(errors.QueueNotFound):
            await batches.add(document(1))

    run(scenario)
