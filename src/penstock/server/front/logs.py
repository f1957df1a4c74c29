"""The events of all shards, merged by time. A reader has a cursor with one part a shard: `0:17.1,1:5,…`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

from penstock.cluster.links.flows import MergedSource, Pieces
from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.dialects.native.event_log import MERGED, format_of
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.limits import SHARD_MAX
from penstock.model.event_log import Format
from penstock.server.front.asking import Asking, Responded
from penstock.server.front.merged_events import LogReader, Order, TextWriter, Writer, merged
from penstock.server.front.merged_source import streams_of
from penstock.server.front.targets import target_with

_EACH = {
    "0": "earliest",
    "earliest": "earliest",
    "latest": "latest",
    "now": "now",
}  # What names a place in every shard.
_NO_STORE = b"Cache-Control: no-store\r\n"
_CONTENT_TYPE = re.compile(rb"Content-Type: [^\r]*")
_UNBUFFERED = re.compile(rb"X-Accel-Buffering: [^\r]*\r\n")
_LAST_SEEN = b"last-event-id"
_LIMIT = re.compile("[1-9][0-9]{0,9}")


def _given(asking: Asking) -> dict[str, str]:
    """The parameters as far as they matter here. The shards look at all of them."""
    return dict(parse_qsl(asking.request.query.decode("latin-1"), keep_blank_values=True))


def _shard(asking: Asking) -> int | None:
    """The shard that a request names; one that does not exist is refused by another."""
    given = _given(asking)
    if "shard" not in given:
        return None
    shard = http.whole_number(given["shard"].encode(), "shard", 0, SHARD_MAX)
    return shard if shard < asking.shards.shards else ADMINISTRATION


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────


async def events(asking: Asking) -> Responded:
    shard, chosen = _shard(asking), format_of(asking.request.headers.get(b"accept", b""))
    if shard is not None or chosen is None:
        return await asking.at(shard or ADMINISTRATION)
    given = _given(asking)
    targets = [target_with(asking.request.target, **{"from": each}) for each in _starts(asking, given)]
    # As Server-Sent Events a stream says where it begins, and how far it has come when nothing matches.
    accepted = asking.request.headers[b"accept"] if chosen == "arrow" else b"text/event-stream"
    streams = await streams_of(asking, targets, headers={b"accept": accepted, _LAST_SEEN: b"", MERGED: b""})
    pieces = [Pieces(stream.source) for stream in streams]
    headers, is_followed = streams[0].headers, given.get("follow") == "true"
    order, writer = _merging(chosen, pieces, given, is_followed=is_followed)
    limit = int(given["limit"]) if _LIMIT.fullmatch(given.get("limit", "")) else None
    if chosen == "json":
        headers = _CONTENT_TYPE.sub(b"Content-Type: application/x-ndjson", _UNBUFFERED.sub(b"", headers), count=1)
    return http.Stream(200, headers, MergedSource(merged(order, writer, limit), pieces), endless=is_followed)


def _merging(
    chosen: Format, pieces: Sequence[Pieces], given: dict[str, str], *, is_followed: bool
) -> tuple[Order, Writer]:
    """What reads the streams of all shards, and what writes them as one."""
    if chosen != "arrow":
        order = Order([LogReader(*each) for each in enumerate(pieces)], is_followed=is_followed)
        return order, TextWriter(order, as_sent_events=chosen == "sse")
    from penstock.server.front.merged_arrow import ArrowReader, ArrowWriter

    order = Order([ArrowReader(*each) for each in enumerate(pieces)], is_followed=is_followed)
    return order, ArrowWriter(order, bodies=given.get("bodies") != "false")


def _starts(asking: Asking, given: dict[str, str]) -> list[str]:
    """Where the readers of all shards begin. Raises `ProtocolError`."""
    last_seen, shards = asking.request.headers.get(_LAST_SEEN, b"").decode("latin-1"), asking.shards.shards
    text = last_seen or given.get("from", "earliest")
    if text in _EACH:
        return [_EACH[text]] * shards
    found = dict(re.findall(r"([0-9]{1,4}):([0-9]{1,18}(?:\.[0-9])?)", text))
    parts = [f"{shard}:{found.get(str(shard))}" for shard in range(shards)]
    if ",".join(parts) != text:
        name = "Last-Event-ID" if last_seen else "from"
        raise ProtocolError(
            f"{name} must be the next of an event, such as 0:17,1:4 with an offset for each of {shards} shards, or"
            " earliest, latest or now, or 0 for the beginning of every shard; another number needs shard"
        )
    return [found[str(shard)] for shard in range(shards)]
