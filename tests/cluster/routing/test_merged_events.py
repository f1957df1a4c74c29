"""In which order the events of several shards are shown, and what each of them waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from penstock.cluster.routing.merged_events import EventsWriter, LogReader, Order, merged
from penstock.dialects.native.event_text import EventStreamText
from penstock.limits import SECOND_NS
from penstock.model.event_log import Events, EventText, Word

PATIENCE_SECONDS = 60

Pieces = AsyncIterator[Events]


def told(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test of this story."""

    def test() -> None:
        asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))

    test.__name__ = story.__name__
    return test


def event(second: int, shard: int = 0) -> Events:
    """The offset of each is its second."""
    following = b"%d" % (second + 1)
    return Events([following], [EventText(second * SECOND_NS, shard, second, following, b'"second":%d}' % second)])


def mark(word: Word, second: int) -> Events:
    return Events([b"%d" % (second + 1)], word=word, passed=second * SECOND_NS)


BEGIN = Events([b"0"], word="begin")


async def stream(*pieces: Events, ends: bool = False) -> Pieces:
    """The beginning of a shard, these pieces, and then silence."""
    yield BEGIN
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece
    if not ends:
        await asyncio.Event().wait()


async def marks_for_ever(word: Word, second: int, first: Events | None = None) -> Pieces:
    """A shard that comes further all the time, and not past one second."""
    yield BEGIN
    if first:
        yield first
    while True:
        await asyncio.sleep(0)
        yield mark(word, second)


class Shown:
    """What a client gets."""

    def __init__(self, *streams: Any, follows: bool = True, limit: int | None = None) -> None:
        self.order = Order([LogReader(*each) for each in enumerate(streams)], is_followed=follows)
        self.pieces = merged(self.order, EventsWriter(self.order), limit)
        self.text = EventStreamText(sent_events=True, shards=len(streams))

    async def blocks(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            found += [each for each in self.text(await anext(self.pieces)).split(b"\n\n") if each]
        return found

    async def seconds(self, count: int) -> list[int]:
        """Of the next events."""
        found: list[int] = []
        while len(found) < count:
            lines = [each for each in await self.blocks(1) if b"data: " in each]
            found += [int(each.rpartition(b'"second":')[2][:-1]) for each in lines]
        return found


@told
async def test_an_event_is_shown_when_the_others_have_passed_its_time() -> None:
    shown = Shown(stream(event(5), event(9)), stream(mark("past", 3), mark("past", 6)))
    assert await shown.seconds(1) == [5]
    assert shown.order.next() is None, "the other shard may have something before 9"


@told
async def test_the_past_is_shown_in_order_however_far_a_shard_lags_behind() -> None:
    slow = stream(*(mark("past", 1) for _ in range(1000)), event(3), event(7), mark("live", 9))
    shown = Shown(stream(event(5), event(8), mark("live", 9)), slow)
    assert await shown.seconds(4) == [3, 5, 7, 8]


@told
async def test_what_happens_now_does_not_wait_for_a_shard_that_lags_behind() -> None:
    shown = Shown(stream(mark("live", 1), event(5)), marks_for_ever("past", 2, mark("live", 1)))
    assert await shown.seconds(1) == [5]


@told
async def test_a_shard_without_news_holds_back_nothing() -> None:
    shown = Shown(stream(mark("live", 1), event(5), event(6), event(7)), stream(mark("live", 1)))
    assert await shown.seconds(3) == [5, 6, 7]


@told
async def test_an_event_that_comes_too_late_is_shown_all_the_same() -> None:
    is_shown = asyncio.Event()

    async def late() -> Pieces:
        yield BEGIN
        yield mark("live", 1)
        await is_shown.wait()
        yield event(3)

    shown = Shown(stream(mark("live", 1), event(5)), late())
    assert await shown.seconds(1) == [5]
    is_shown.set()
    assert await shown.seconds(1) == [3]


def past_of(shard: int) -> Pieces:
    """Every third second."""
    return stream(*[event(second, shard) for second in range(shard, 60, 3)], ends=True)


@told
async def test_without_following_the_order_is_that_of_times_and_a_limit_ends_it() -> None:
    shards = [past_of(shard) for shard in range(3)]
    assert await Shown(*shards, follows=False, limit=50).seconds(50) == list(range(50))
    shards = [past_of(shard) for shard in range(3)]
    shown = Shown(*shards, follows=False)
    assert await shown.seconds(60) == list(range(60))
    assert [piece async for piece in shown.pieces if piece.events] == [], "it ends"


@told
async def test_a_cursor_is_never_past_what_is_not_shown() -> None:
    """Marks that come while events are kept do not move it."""
    shown = Shown(stream(mark("live", 1), event(5), mark("live", 9)), stream(mark("live", 1), mark("past", 4)))
    for block in await shown.blocks(4):
        cursor = block.partition(b"id: ")[2].partition(b"\n")[0]
        assert b"data: " in block or int(cursor.partition(b",")[0].partition(b":")[2]) <= 2


@told
async def test_a_reader_that_finds_nothing_hears_how_far_it_has_come() -> None:
    shown = Shown(stream(mark("past", 3)), stream(mark("past", 6)))
    while await shown.blocks(1) != [b"id: 0:4,1:7"]:
        assert not any(reader.events for reader in shown.order.readers)
