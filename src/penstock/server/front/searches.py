"""Searches and lists of delayed messages over all shards, and waiting for messages of several.

The cursor of a merged page has a part for each shard that has more: `0:…,2:…`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from penstock.dialects.native.parameters import Given, number, parameters
from penstock.dialects.native.search import CRITERIA, MERGED, cursor_text, read_cursor
from penstock.dialects.native.wait import Wait, decode_wait
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.limits import BATCH_MESSAGES_MAX, FETCH_BYTES_MAX, SEARCH_PAGE_DEFAULT, SEARCH_PAGE_MAX
from penstock.model.access import is_own
from penstock.server.front.asking import Asking, Responded
from penstock.server.front.targets import target_with
from penstock.server.shards.destinations import ADMINISTRATION

Cursor = tuple[int, ...]

_PAGING = ("limit", "cursor", "bodies", "raw")
_WRONG = "cursor must be the next of an earlier page"


async def search(asking: Asking) -> Responded:
    return await _paged(asking, (*CRITERIA, *_PAGING), 2)


async def scheduled(asking: Asking) -> Responded:
    return await _paged(asking, ("queue", *_PAGING), 3)


async def _paged(asking: Asking, known: Sequence[str], parts: int) -> Responded:
    """`parts`: how many numbers the cursor of one shard has."""
    given = parameters(asking.request, *known)
    queue = given["queue"][0] if len(given.get("queue", ())) == 1 else ""
    if queue and not is_own(queue):
        return await asking.at(asking.shards.of_name(queue))
    limit = number(given, "limit", 1, SEARCH_PAGE_MAX, SEARCH_PAGE_DEFAULT)
    begun = _cursors(given, parts, asking.shards.shards)
    pages = await asyncio.gather(*[_page(asking, shard, cursor, parts) for shard, cursor in begun.items()])
    return _merged(pages, limit, by_time=bool(queue))


# ── Pages ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Found(Struct):
    """What matters of a message here."""

    cursor: list[int]
    created: str = ""


class _Answer(Struct):
    messages: list[Raw]
    next: str | None


_decode = msgspec.json.Decoder(_Answer).decode
_decode_found = msgspec.json.Decoder(_Found).decode


class _Message(NamedTuple):
    place: Cursor
    created: str
    data: bytes


class _Page:
    """The page of one shard."""

    def __init__(self, shard: int, begun: Cursor, answer: _Answer, parts: int) -> None:
        self.shard = shard
        self.messages = [_message(bytes(raw)) for raw in answer.messages]
        self.next = read_cursor(answer.next, parts) if answer.next else None
        self.reached = begun  # What was used so far.


def _message(data: bytes) -> _Message:
    """The cursor is the last field of the document, and so is found from its end."""
    found = _decode_found(data)
    return _Message(tuple(found.cursor), found.created, data[: data.rindex(b',"cursor":[')] + b"}")


async def _page(asking: Asking, shard: int, cursor: str, parts: int) -> _Page:
    target = target_with(asking.request.target, cursor=cursor or None)
    answer = await asking.whole(shard, target=target, headers={MERGED: b""})
    return _Page(shard, read_cursor(cursor, parts) if cursor else (), _decode(answer.body), parts)


def _merged(pages: Sequence[_Page], limit: int, *, by_time: bool) -> http.Response:
    """In order, as far as every shard has looked. `by_time`: of a queue that every shard has."""

    def key(message: _Message) -> tuple[Any, ...]:
        return (message.created, message.place) if by_time else (message.place,)

    def bound(page: _Page) -> tuple[Any, ...]:
        return (key(page.messages[-1]) if page.messages else ()) if by_time else (page.next,)

    last = min([bound(page) for page in pages if page.next], default=None)
    found = sorted([(key(message), message, page) for page in pages for message in page.messages], key=itemgetter(0))
    shown: list[bytes] = []
    room = FETCH_BYTES_MAX
    for order, message, page in found:
        if len(shown) == limit or (last is not None and order > last) or (room < len(message.data) and shown):
            break
        shown.append(message.data)
        room -= len(message.data)
        page.reached = message.place
    parts = [f"{page.shard}:{text}" for page in pages if (text := _following(page)) is not None]
    following = msgspec.json.encode(",".join(parts) or None)
    return http.Response(200, b'{"messages":[%b],"next":%b}\n' % (b",".join(shown), following), http.JSON)


def _following(page: _Page) -> str | None:
    """Where the next page of a shard begins; None if it has nothing more."""
    if page.messages and page.reached != page.messages[-1].place:
        return cursor_text(page.reached) if page.reached else ""
    return cursor_text(page.next) if page.next else None


def _cursors(given: Given, parts: int, shards: int) -> dict[int, str]:
    """The shards that have more, each with where its next page begins. Raises `ProtocolError`."""
    if "cursor" not in given:
        return dict.fromkeys(range(shards), "")
    found: dict[int, str] = {}
    for each in given["cursor"][0].split(","):
        match = re.fullmatch(r"([0-9]{1,4}):(.*)", each)
        if match is None or int(match[1]) >= shards or int(match[1]) in found:
            raise ProtocolError(_WRONG)
        found[int(match[1])] = match[2]
        if match[2]:
            read_cursor(match[2], parts)
    return found


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Waited(Struct):
    messages: list[dict[str, Any]]


_decode_waited = msgspec.json.Decoder(_Waited).decode


async def wait(asking: Asking) -> Responded:
    """First all shards say what they know. If that is nothing, they wait, and the first answer is that to the
    client; the others answer with what they have by then."""
    asked = http.decoded(decode_wait, asking.request.body)
    if len(asked.ids) > BATCH_MESSAGES_MAX:
        raise http.too_many_messages(len(asked.ids))
    by_shard: dict[int, list[str]] = {}
    for text in dict.fromkeys(asked.ids):
        place = asking.ids.find(text.encode())
        by_shard.setdefault(asking.shards.of_number(place[0]) if place else ADMINISTRATION, []).append(text)
    if len(by_shard) <= 1:
        return await asking.at(next(iter(by_shard), ADMINISTRATION))
    found = await _reached(asking, by_shard, asked, 0)
    if not found and asked.wait:
        found = await _reached(asking, by_shard, asked, asked.wait)
    return http.json_response(200, {"messages": [found[text] for text in dict.fromkeys(asked.ids) if text in found]})


async def _reached(
    asking: Asking, by_shard: dict[int, list[str]], asked: Wait, seconds: float
) -> dict[str, dict[str, Any]]:
    """What each message has come to, by id."""
    bodies = {shard: {"ids": some, "until": asked.until, "wait": seconds} for shard, some in by_shard.items()}
    tasks = [
        asyncio.create_task(asking.whole(shard, body=msgspec.json.encode(body))) for shard, body in bodies.items()
    ]
    try:
        if seconds:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            asking.give_up()
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return {each["id"]: each for answer in answers for each in _decode_waited(answer.body).messages}
