"""The log of a broker, read over HTTP."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import DamagedLogError, EventsLostError
from penstock.limits import RANGE_BYTES_DEFAULT
from penstock.model.values import Nanos
from penstock.pipeline.broker import Broker
from penstock.pipeline.source.log import Batches, Extent, NameTable
from penstock.storage.log.batch import HEADER_BYTES, is_whole, read_header

_SECOND_NS = 1_000_000_000


class BrokerLog:
    def __init__(self, url: str, token: str = "") -> None:
        self._broker = Broker(url, token)
        self._names = NameTable({}, {})
        self._names_known = 0

    def extent(self) -> Extent:
        told = self._describe()
        return Extent(told["log"], told["shard"], told["earliest"], told["end"], told["bytes"])

    def names(self) -> NameTable:
        return self._names  # They come with the extent.

    def offset_at(self, moment: Nanos) -> int:
        end = self._describe()["end"]
        since = f"{moment // _SECOND_NS}.{moment % _SECOND_NS:09d}"
        asked = {"since": since, "limit": 1, "bodies": "false"}
        lines = self._broker.ask("GET", "/v1/events", asked).body.splitlines()
        return int(json.loads(lines[0])["offset"]) if lines else int(end)

    def offset_within(self, start: int, bytes_max: int) -> int:
        answer = self._broker.ask("HEAD", "/v1/log/batches", {"from": start, "max_bytes": bytes_max})
        return int(answer.headers["X-Penstock-Next-Offset"])

    def batches(self, start: int, end: int) -> Batches:
        while start < end:
            asked = {"from": start, "to": end, "max_bytes": RANGE_BYTES_DEFAULT}
            answer = self._broker.ask("GET", "/v1/log/batches", asked)
            following = int(answer.headers["X-Penstock-Next-Offset"])
            if following <= start:
                raise EventsLostError(f"offset {start} is not at {self._broker.url}: its log ends there")
            yield from _split(answer.body)
            start = following

    def close(self) -> None:
        self._broker.close()

    def _describe(self) -> Any:
        told = json.loads(self._broker.ask("GET", "/v1/log", {"names_from": self._names_known}).body)
        self._names.texts.update({int(number): text for number, text in told["texts"].items()})
        self._names.queues.update({int(number): name for number, name in told["queues"].items()})
        self._names_known = told["names_to"]
        return told


def _split(data: bytes) -> Batches:
    """Whole batches, one after the other."""
    at = 0
    while at < len(data):
        header = read_header(data[at : at + HEADER_BYTES])
        if header is None:
            raise DamagedLogError("the broker has sent something that is not a batch")
        payload = data[at + HEADER_BYTES : at + header.total_bytes]
        if not is_whole(header, payload):
            raise DamagedLogError(f"the batch of offset {header.base_offset} is damaged")
        yield header, payload
        at += header.total_bytes
