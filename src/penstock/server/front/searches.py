"""Searches and lists of delayed messages over all shards.

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
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.limits import (
    FETCH_BYTES_MAX,
    SEARCH_PAGE_DEFAULT,
    SEARCH_PAGE_MAX,
)
from penstock.model.access import is_own
from penstock.server.front.asking import Asking, Responded
from penstock.server.front.targets import target_with

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
