"""The document of a message that was moved to another shard, or has copies there. Each shard knows what has happened
to it there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.cluster.routing.destinations import ADMINISTRATION
from penstock.dialects.native.parameters import parameters
from penstock.dialects.native.wait import Wait
from penstock.dialects.wire import http
from penstock.errors import Fault
from penstock.limits import ARRIVAL_LOOK_SECONDS, ARRIVAL_SECONDS_MAX
from penstock.model.access import Access, allowed
from penstock.model.kinds import Kind
from penstock.server.front.asking import Asking, Responded, collected
from penstock.server.front.targets import target_with
from penstock.server.front.waits import Waits

Document = dict[str, Any]

_OK = 200
_KNOWN = (_OK, Fault.NOT_FOUND.status, Fault.MESSAGE_REMOVED.status)  # A shard knows what it has of a message.
_GONE, _QUEUED, _CONFIRMED, _COMPLETED = "gone", "Q", "S", "X"
_AWAY = Kind.SENT.row.reason

_CURRENT = ("state", "status", "queued", "visible_at", "expires_at", "receives")  # As the last shard knows them.
_ANY = ("delivered", "success", "confirmed")
_LATEST = ("modified", "failed")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def message(asking: Asking) -> Responded:
    """The shard that the id of a message names is asked first: the message may have left it, and keeps its id, and
    one with topics may have copies in channels and queues of others."""
    place = asking.ids.find(http.segments_of(asking.request.target)[2])
    home = asking.shards.of_number(place[0]) if place else ADMINISTRATION
    others = [shard for shard in range(asking.shards.shards) if shard != home and place]
    now = await _after_wait(asking)
    found = await collected(await asking.at(home, target=now))
    if found.status == Fault.NOT_FOUND.status:
        return await first_of(asking, others, target=now) if others else found
    if found.status != _OK or not _may_be_elsewhere(_decode(found.body)):
        return found
    time = asyncio.get_running_loop().time
    until = time() + ARRIVAL_SECONDS_MAX
    while True:
        found, *answers = await asyncio.gather(*[_document(asking, shard, now, home) for shard in (home, *others)])
        if found.status != _OK:
            return found
        access = asking.request.access
        documents = [_visible(_decode(each.body), access) for each in (found, *answers) if each.status == _OK]
        if not _is_on_its_way(documents) or time() > until:
            is_whole = all(each.status in _KNOWN for each in answers)
            is_alone = is_whole and len(documents) == 1
            return found if is_alone else _document_of(documents, is_whole=is_whole)
        await asyncio.sleep(ARRIVAL_LOOK_SECONDS)


def _document_of(documents: Sequence[Document], *, is_whole: bool) -> http.Response:
    """`is_whole`: all shards have answered."""
    document = joined(_with_originals(documents))
    return http.json_response(_OK, document | {"complete": is_whole and document["complete"]})


async def _document(asking: Asking, shard: int, target: bytes, home: int) -> http.Response:
    """As one shard knows it. The home decides whether the client may see it."""
    access = asking.request.access
    return await collected(await asking.at(shard, target=target, access=access if shard == home else allowed(access)))


def _visible(document: Document, access: Access) -> Document:
    """Without what is about queues that the client may not read, and without the names of these queues."""
    if access.sees_all:
        return document
    shown = {
        name: [each for each in document[name] if access.reads(each["queue"])]
        for name in ("events", "consumed", "places")
    }
    shown["events"] = [
        event if access.reads(event.get("to_queue")) or not event.get("to_queue") else event | {"to_queue": None}
        for event in shown["events"]
    ]
    return document | shown


def _with_originals(documents: Sequence[Document]) -> list[Document]:
    """Copies name their original. The first document is about that; the shards of the others do not know its name."""
    home, *others = documents
    number = next((event["queue_number"] for event in home["events"] if event["id"] == home["id"]), None)
    place = {"queue": home["queue"], "queue_number": number, "sequence": home["sequence"], "id": home["id"]}
    if not home["topics"] or _left(documents):
        return [*documents]
    return [home, *[each | {"events": [_copied(event, place) for event in each["events"]]} for each in others]]


def _copied(event: Document, original: Document) -> Document:
    """Events of the original itself are in all shards if they are from before the store had several."""
    is_copy = event["state"] == _QUEUED and event["id"] != original["id"]
    return event | {f"to_{name}": value for name, value in original.items()} if is_copy else event


def _may_be_elsewhere(document: Document) -> bool:
    """Whether other shards may know more."""
    return document["status"] == _GONE or bool(document["topics"] or _left([document]))


def _left(documents: Iterable[Document]) -> set[str]:
    """The places that it has left for other shards, by their ids."""
    return {event["id"] for each in documents for event in each["events"] if event.get("reason") == _AWAY}


def _is_on_its_way(documents: Sequence[Document]) -> bool:
    """Whether it has left every place that is known: one shard owes it to another."""
    left, places = _left(documents), {place["id"] for each in documents for place in each["places"]}
    return bool(left) and left >= places


async def _after_wait(asking: Asking) -> bytes:
    """What to ask for, when the message has come so far that its client waits for, or the time is over."""
    target = asking.request.target
    given = parameters(asking.request, "raw", "until", "wait")
    if "wait" not in given:
        return target
    identifier = http.segments_of(target)[2].decode("latin-1")
    wanted = {"ids": [identifier], "until": given.get("until", ["done"])[0], "wait": given["wait"][0]}
    try:
        await Waits(asking, msgspec.convert(wanted, Wait, strict=False)).found()
    except msgspec.ValidationError:
        return target  # Refused where the document is made.
    return target_with(target, until=None, wait=None)


async def first_of(asking: Asking, shards: Sequence[int], **changes: Any) -> Responded:
    """The answer of the first shard that knows what the request is about; else that of the first one."""
    refusals: list[http.Response] = []
    for shard in shards:
        response = await asking.at(shard, **changes)
        if response.status != Fault.NOT_FOUND.status:
            return response
        refusals.append(await collected(response))
    return refusals[0]


def joined(documents: Sequence[Document]) -> Document:
    """One document. The first shard is that of the id, and has the beginning."""
    begun, last = documents[0], max(documents, key=lambda each: (each["status"] != _GONE, each["modified"] or ""))
    left = _left(documents)
    events = {_identity(event): event for each in documents for event in each["events"]}
    places = {place["id"]: place for each in documents for place in each["places"]}
    taken = {_delivery(entry): entry for each in documents for entry in each["consumed"]}
    consumed = [each["timestamps"] for each in documents]
    still = [each for each in documents if any(place["id"] not in left for place in each["places"])]
    is_complete = last["state"] == _COMPLETED or all(each["completed"] for each in still)
    return begun | {
        **{name: last[name] for name in _CURRENT},
        **{name: any(each[name] for each in documents) for name in _ANY},
        **{name: max(_known(documents, name), default=None) for name in _LATEST},
        "processed": min(_known(documents, "processed"), default=None),
        "completed": max(_known(documents, "completed"), default=None) if is_complete else None,
        "archived": all(each["archived"] for each in documents),
        "confirmedCount": sum(entry["state"] == _CONFIRMED for entry in taken.values()),
        "timestamps": {"consumed": min(_known(consumed, "consumed"), default=None)},
        "consumed": list(taken.values()),
        "places": [place for place in places.values() if place["id"] not in left],
        "events": _told(sorted(events.values(), key=lambda event: event["time"])),
    }


def _told(events: list[Document]) -> list[Document]:
    """The events as a store with one shard has them: a dead letter names where it went, and a move is no event."""
    told: list[Document] = []
    for index, event in enumerate(events):
        if event.get("reason") == _AWAY:
            arrived = next((each for each in events[index:] if each["queue_number"] != event["queue_number"]), None)
            event = {name: value for name, value in event.items() if name != "reason"} | _where(arrived)
            if event["state"] != "E":
                continue
        told.append(event)
    return told


def _where(arrived: Document | None) -> Document:
    names = ("queue", "queue_number", "sequence", "id")
    return {f"to_{name}": arrived[name] for name in names} if arrived else {}


def _delivery(entry: Document) -> tuple[Any, ...]:
    return entry["queue"], entry["fetchedTS"], entry["consumerId"]


def _identity(event: Document) -> tuple[Any, ...]:
    """Two shards have the same event if it is from before the store had several."""
    return event["offset"], event["next"], event["time"], event["queue_number"]


def _known(documents: Iterable[Document], name: str) -> list[str]:
    return [each[name] for each in documents if each[name] is not None]
