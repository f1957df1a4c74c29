"""Figures of all shards together: health, and the figures of queues, now and live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from itertools import zip_longest
from typing import Any

import msgspec

from penstock.dialects.native.parameters import Given, number, parameters
from penstock.dialects.native.stats import COUNTED, Figures, sort_key
from penstock.dialects.wire import http
from penstock.limits import HEALTH_SECONDS_MAX, INT32_MAX
from penstock.model.access import is_own
from penstock.server.front.asking import Asking, Pieces, Responded
from penstock.server.front.merged_source import MergedSource, streams_of
from penstock.server.front.targets import target_with
from penstock.server.services.attention import shown, urgency
from penstock.server.services.disk import Disk, together
from penstock.server.shards.fellow import Fellow

Document = dict[str, Any]

_PAGE_DEFAULT, _PAGE_MAX = 100, 1000
_NO_STORE = b"Cache-Control: no-store\r\n"
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def health(asking: Asking) -> Responded:
    """The worst of all shards. A shard that cannot be asked is worse than any answer."""
    answers = await asking.ask_counted(HEALTH_SECONDS_MAX)
    shown = [_shown(shard, answer) for shard, answer in zip_longest(asking.counted(), answers)]
    return max(shown, key=lambda response: (response.status, response.body.startswith(b"yellow")))


def _shown(shard: int, answer: http.Response | Fellow) -> http.Response:
    if isinstance(answer, http.Response):
        if answer.headers == _TEXT:
            return answer
        return http.Response(503, b"red: shard %d cannot be reached" % shard, _TEXT)
    if answer.is_away:
        return http.Response(503, f"red: shard {shard} cannot be reached: {answer.state}".encode(), _TEXT)
    return http.Response(200, f"yellow: nothing is known of shard {shard} now: {answer.state}".encode(), _TEXT)


# ── Figures of queues ─────────────────────────────────────────────────────────────────────────────────────────


async def stats(asking: Asking) -> Responded:
    known = ("queue", "name", "dead_letters", "sort", "order", "offset", "limit", "history")
    given = parameters(asking.request, *known)
    offset = number(given, "offset", 0, INT32_MAX, 0)
    limit = number(given, "limit", 1, _PAGE_MAX, _PAGE_DEFAULT)
    documents = await asyncio.gather(
        *[_figures(asking, shard, offset + limit) for shard in range(asking.shards.shards)]
    )
    found = [row for document in documents for row in document["queues"]]
    rows = _sorted(_joined(found), given)
    page = rows[offset : offset + limit]
    total = sum(document["total"] for document in documents) - (len(found) - len(rows))
    following = offset + len(page)
    merged = _head(documents, given) | {
        "total": total,
        "next": following if page and following < total else None,
        "queues": page,
    }
    if "history" in documents[0]:
        merged["history"] = _history([document["history"] for document in documents], [row["name"] for row in page])
    return http.json_response(200, merged, _NO_STORE)


async def _figures(asking: Asking, shard: int, wanted: int) -> Document:
    """The figures of one shard, with its first queues: as many as the page may need."""
    document: Document = {}
    rows: list[Document] = []
    following: int | None = 0
    while following is not None and (not document or len(rows) < wanted):
        limit = min(max(wanted - len(rows), 1), _PAGE_MAX)
        target = target_with(asking.request.target, offset=following, limit=limit)
        page = _decode((await asking.whole(shard, target=target)).body)
        rows += page["queues"]
        document = _with_hours(document, page)
        following = page["next"]
    return document | {"queues": rows}


def _with_hours(before: Document, page: Document) -> Document:
    if "history" in before:
        page["history"]["queues"] |= before["history"]["queues"]
    return page


def _joined(rows: list[Document]) -> list[Document]:
    """One row for each queue: every shard has the broker's own."""
    own = [row for row in rows if is_own(row["name"])]
    by_name = {name: [row for row in own if row["name"] == name] for name in {row["name"] for row in own}}
    return [row for row in rows if not is_own(row["name"])] + [_sum_of(same) for same in by_name.values()]


def _sum_of(rows: list[Document]) -> Document:
    merged = dict(rows[0])
    for name, value in merged.items():
        values = [row[name] for row in rows if row[name] is not None]
        if name == "ready_since":
            merged[name] = min(values, default=None)
        elif not isinstance(value, bool | str) and values:
            merged[name] = round(sum(values), 2)
    return merged


def _sorted(rows: list[Document], given: Given) -> list[Document]:
    key = sort_key(given.get("sort", ["name"])[0])
    is_descending = given.get("order", ["ascending"])[0] == "descending"
    return sorted(rows, key=lambda row: key(msgspec.convert(row, Figures)), reverse=is_descending)


def _head(documents: Iterable[Document], given: Given) -> Document:
    """What is about all queues of a client."""
    documents = list(documents)
    rows = [row for document in documents for row in document["attention"]]
    couriers = [row for document in documents for row in document.get("couriers", ())]
    return {
        "time": max(document["time"] for document in documents),
        "totals": _totals([document["totals"] for document in documents]),
        "attention": shown(sorted(rows, key=urgency), frozenset(given.get("queue", ()))),
        "disk": together([Disk.of(document["disk"]) for document in documents]).document(),
        "commits": _commits([document["commits"] for document in documents]),
        **({"couriers": couriers} if couriers else {}),
    }


def _commits(shards: list[Document]) -> Document:
    """Of the slowest shard."""
    return {
        "count": sum(each["count"] for each in shards),
        "p99": max((each["p99"] for each in shards if each["p99"] is not None), default=None),
        "busy": max(each["busy"] for each in shards),
    }


def _totals(all_totals: list[Document]) -> Document:
    """What was not counted in a shard is not known at all, unless the shard has no queues."""
    merged: Document = {}
    for name in all_totals[0]:
        values = [each[name] for each in all_totals if each[name] is not None]
        if name == "ready_since":
            merged[name] = min(values, default=None)
        elif name in COUNTED and any(each[name] is None for each in all_totals if each["queues"]):
            merged[name] = None
        else:
            merged[name] = round(sum(values), 2)
    return merged


def _history(hours: list[Document], names: list[str]) -> Document:
    """The samples of the shards are taken at times of their own: each is shown with the nearest before its end."""
    longest = max(hours, key=lambda hour: len(hour["times"]))
    size = len(longest["times"])
    totals = {
        field: [_sum(values) for values in zip(*[_last(hour["totals"][field], size) for hour in hours], strict=True)]
        for field in longest["totals"]
    }
    queues = {
        name: {field: _last(values, size) for field, values in hour["queues"][name].items()}
        for hour in hours
        for name in hour["queues"]
        if name in names
    }
    return {"times": longest["times"], "totals": totals, "queues": queues}


def _last(values: list[float | None], size: int) -> list[float | None]:
    return [*[None] * (size - len(values)), *values]


def _sum(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if known else None


# ── Live ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def stats_stream(asking: Asking) -> Responded:
    streams = await streams_of(asking)
    pieces = [Pieces(stream.source) for stream in streams]
    given = parameters(asking.request, "queue", "queues", "consumers")
    return http.Stream(200, streams[0].headers, MergedSource(_live(pieces, given), pieces), endless=True)


async def _live(pieces: list[Pieces], given: Given) -> AsyncGenerator[bytes, None]:
    """One event for one of each shard: each has one a second."""
    own: dict[tuple[int, str], Document] = {}  # The last row of each shard about a queue that all have.
    while True:
        events = await asyncio.gather(*[_event(each) for each in pieces])
        documents = [_decode(event) for event in events if event]
        if len(documents) < len(pieces):
            return
        changed = [(shard, row) for shard, document in enumerate(documents) for row in document["queues"]]
        own |= {(shard, row["name"]): row for shard, row in changed if is_own(row["name"])}
        merged = _head(documents, given) | {
            "queues": _joined([row for _, row in changed if not is_own(row["name"])] + list(own.values())),
            "removed": [name for document in documents for name in document["removed"]],
        }
        if "consumers" in documents[0]:
            merged["consumers"] = {
                name: found for document in documents for name, found in document["consumers"].items()
            }
        yield b"data: %b\n\n" % _encode(merged)


async def _event(pieces: Pieces) -> bytes:
    """The data of the next event; nothing at the end."""
    async for piece in pieces:
        if piece:
            return piece.removeprefix(b"data: ")
    return b""
