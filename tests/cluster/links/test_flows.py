"""Streams of several shards that become one: a piece at a time, when it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from penstock.cluster.links.flows import MergedSource


class Taker:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.ended = self.failed = self.was_cut_off = False

    def give(self, data: Any) -> None:
        self.pieces.append(data)

    def end(self) -> None:
        self.ended = True

    def fail(self) -> None:
        self.failed = True

    def cut_off(self) -> None:
        self.was_cut_off = True


async def all_turns() -> None:
    """Until nothing more happens by itself."""
    for _ in range(20):
        await asyncio.sleep(0)


async def counted(end: int) -> AsyncGenerator[int, None]:
    for number in range(end):
        yield number


async def broken() -> AsyncGenerator[int, None]:
    yield 1
    raise ValueError("what was read makes no sense")


def test_the_next_piece_comes_when_the_last_one_was_taken() -> None:
    async def run() -> None:
        taker, source = Taker(), MergedSource(counted(2), [])
        for pieces in ([0], [0, 1]):
            source.pull(taker)
            await all_turns()
            assert (taker.pieces, taker.ended) == (pieces, False)
        source.pull(taker)
        await all_turns()
        assert (taker.pieces, taker.ended, taker.failed) == ([0, 1], True, False)

    asyncio.run(run())


def test_a_stream_that_breaks_off_fails_and_does_not_end() -> None:
    async def run() -> None:
        taker, source = Taker(), MergedSource(broken(), [])
        for _ in range(2):
            source.pull(taker)
            await all_turns()
        assert (taker.pieces, taker.ended, taker.failed) == ([1], False, True)

    asyncio.run(run())


def test_a_stream_that_is_closed_gives_nothing_more() -> None:
    async def run() -> None:
        taker, source = Taker(), MergedSource(counted(9), [])
        source.pull(taker)
        await all_turns()
        source.close()
        await all_turns()
        source.pull(taker)
        await all_turns()
        assert (taker.pieces, taker.ended, taker.failed) == ([0], False, False)

    asyncio.run(run())
