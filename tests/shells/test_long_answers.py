"""Long answers: few at a time, and one for all clients that ask the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from penstock.broker.turns import Turns
from penstock.dialects.wire.http import Response, Steps
from penstock.limits import WORKS_AT_ONCE_MAX
from penstock.shells.long_answers import Asker, LongAnswers
from tests.support.live_loop import until


class Office:
    """Makes answers in parts, as long as it is held up, and notes which were begun and who got what."""

    def __init__(self) -> None:
        self.long_answers = LongAnswers(Turns())
        self.begun: list[str] = []
        self.got: dict[str, Response] = {}
        self.held_up = True
        self.at_work = 0
        self.most_at_work = 0

    def ask(self, key: str, name: str) -> Asker:
        return self.long_answers.ask(
            key, self._steps(key), lambda _, __: None, partial(self.got.__setitem__, name), None
        )

    def _steps(self, key: str) -> Steps:
        self.begun.append(key)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            yield None
            while self.held_up:
                yield None
        finally:
            self.at_work -= 1
        return Response(200, f"{key} {len(self.begun)}".encode())


def told(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


def test_clients_that_ask_the_same_get_one_answer_which_began_after_they_asked() -> None:
    async def story() -> None:
        office = Office()
        office.ask("list", "first")
        await until(lambda: office.begun == ["list"])
        for number in range(100):
            office.ask("list", f"later {number}")
        office.held_up = False
        await until(lambda: len(office.got) == 101)
        assert office.begun == ["list", "list"]
        assert office.got["first"].body == b"list 1"
        assert {office.got[f"later {number}"].body for number in range(100)} == {b"list 2"}

    told(story())


def test_only_a_few_long_answers_are_made_at_a_time() -> None:
    async def story() -> None:
        office = Office()
        for number in range(100):
            office.ask(f"list {number}", f"client {number}")
        await until(lambda: office.at_work == WORKS_AT_ONCE_MAX)
        office.held_up = False
        await until(lambda: len(office.got) == 100)
        assert office.most_at_work == WORKS_AT_ONCE_MAX
        assert {each.body.partition(b" ")[0] for each in office.got.values()} == {b"list"}

    told(story())


def test_an_answer_is_made_as_long_as_one_client_waits_for_it() -> None:
    async def story() -> None:
        office = Office()
        one, other = office.ask("list", "one"), office.ask("list", "other")
        await until(lambda: office.begun == ["list"])
        one.cancel()
        office.held_up = False
        await until(lambda: "other" in office.got)
        third, fourth = office.ask("list", "third"), office.ask("list", "fourth")
        third.cancel()
        fourth.cancel()
        office.ask("list", "fifth")
        await until(lambda: "fifth" in office.got)
        assert office.got.keys() == {"other", "fifth"}
        assert office.at_work == 0
        one.cancel()
        other.cancel()

    told(story())
