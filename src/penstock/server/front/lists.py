"""Lists that each shard has a part of: jobs, connections, consumers, channels."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.dialects.native.consumers import Consumer, query_of
from penstock.dialects.native.parameters import number, parameters
from penstock.dialects.wire import http
from penstock.limits import INT32_MAX
from penstock.server.front.asking import Asking, Responded, collected
from penstock.server.front.targets import target_with

Document = dict[str, Any]

_PAGE_DEFAULT, _PAGE_MAX = 100, 1000
_OK = 200
_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def jobs(asking: Asking) -> Responded:
    """All redrives, or all purges."""
    merged: dict[str, list[Document]] = {}
    for answer in await asking.all():
        for word, found in _decode(answer.body).items():
            merged.setdefault(word, []).extend(found)
    return http.json_response(200, merged)


async def connections(asking: Asking) -> Responded:
    """Each worker has connections, and each shard has clients that wait: those of the first shard come first."""
    given = parameters(asking.request, "queue", "offset", "limit")
    offset = number(given, "offset", 0, INT32_MAX, 0)
    limit = number(given, "limit", 1, _PAGE_MAX, _PAGE_DEFAULT)
    end = offset + limit
    documents = await asyncio.gather(*[_connections(asking, shard, end) for shard in range(asking.shards.shards)])
    merged: Document = {name: [each for found in documents for each in found[name]] for name in _LISTS}
    totals = {name: sum(found[name] for found in documents) for name in _TOTALS}
    document = {
        **totals,
        "next": end if end < max(totals.values()) else None,
        **{name: found[offset:end] for name, found in merged.items()},
    }
    return http.json_response(200, document, b"Cache-Control: no-store\r\n")


_LISTS = ("connections", "waiting")
_TOTALS = ("total", "total_waiting")


async def _connections(asking: Asking, shard: int, wanted: int) -> Document:
    """Those of one shard: as many as the page may need."""
    merged: Document = {}
    following: int | None = 0
    while following is not None and following < wanted:
        limit = min(wanted - following, _PAGE_MAX)
        target = target_with(asking.request.target, offset=following, limit=limit)
        page = _decode((await asking.whole(shard, target=target)).body)
        merged = page | {name: merged.get(name, []) + page[name] for name in _LISTS}
        following = page["next"]
    return merged


async def consumers(asking: Asking) -> Responded:
    query = query_of(asking.request)
    end = query.offset + query.limit
    documents = await asyncio.gather(*[_consumers(asking, shard, end) for shard in range(asking.shards.shards)])
    now = max(each["time"] for each in documents)
    found = query.sorted(msgspec.convert([row for each in documents for row in each["consumers"]], list[Consumer]))
    total = sum(each["total"] for each in documents)
    merged = {
        "time": now,
        "seconds": min(each["seconds"] for each in documents),
        "total": total,
        "next": end if end < total else None,
        "consumers": msgspec.to_builtins(found[query.offset : end]),
    }
    return http.json_response(200, merged, b"Cache-Control: no-store\r\n")


async def _consumers(asking: Asking, shard: int, wanted: int) -> Document:
    """Those of one shard: as many as the page may need."""
    rows: list[Document] = []
    following: int | None = 0
    page: Document = {}
    while following is not None and following < wanted:
        target = target_with(asking.request.target, offset=following, limit=min(wanted - following, _PAGE_MAX))
        page = _decode((await asking.whole(shard, target=target)).body)
        rows += page["consumers"]
        following = page["next"]
    return page | {"consumers": rows}


async def channels(asking: Asking) -> Responded:
    """The list is made here. Only the shard of a channel knows how its push goes."""
    response = await asking.here()
    page = _decode(response.body)
    page["channels"] = await asyncio.gather(*[_with_push(asking, channel) for channel in page["channels"]])
    return http.json_response(200, page)


async def _with_push(asking: Asking, channel: Document) -> Document:
    if not channel.get("push"):
        return channel
    name = channel["name"]
    target = b"/v1/channels/" + quote(name, safe="").encode()
    found = await collected(await asking.at(asking.shards.of_name(name), method=b"GET", target=target))
    return _decode(found.body) if found.status == _OK else channel
