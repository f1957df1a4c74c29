"""The log of a broker, read over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.client.trust import Trust
from penstock.errors import DamagedLogError, EventsLostError
from penstock.limits import RANGE_BYTES_DEFAULT
from penstock.model.values import Nanos, Position
from penstock.pipeline.broker import SYSTEM, Broker
from penstock.pipeline.source.log import Batches, Extent, NameTable
from penstock.storage.log.batch import HEADER_BYTES, is_whole, read_header
from penstock.storage.log.snapshot import snapshot_path

_SECOND_NS = 1_000_000_000


class BrokerLog:
    def __init__(self, url: str, token: str = "", trust: Trust = SYSTEM, shard: int | None = None) -> None:
        """`shard`: which one, if the broker has several."""
        self._broker = Broker(url, token, trust)
        self._asked: dict[str, Any] = {} if shard is None else {"shard": shard}
        self._names = NameTable({}, {})
        self._names_known = 0

    def extent(self) -> Extent:
        log = self._describe()
        ancestors = tuple((each["log"], each["end"]) for each in log.get("ancestors", ()))
        shards = log.get("shards", 1)  # Brokers before this version have one, and do not report it.
        return Extent(log["log"], log["shard"], log["earliest"], log["end"], log["bytes"], ancestors, shards)

    def shards(self) -> int:
        """How many shards the broker has."""
        return int(json.loads(self._broker.ask("GET", "/v1/log").body).get("shards", 1))

    def names(self) -> NameTable:
        return self._names  # `extent` has fetched them.

    @property
    def named_to(self) -> int:
        return self._names_known + len(self._names.queues)

    def offset_at(self, moment: Nanos) -> int:
        end = self._describe()["end"]
        since = f"{moment // _SECOND_NS}.{moment % _SECOND_NS:09d}"
        asked = self._asked | {"since": since, "limit": 1, "bodies": "false"}
        lines = self._broker.ask("GET", "/v1/events", asked).body.splitlines()
        return int(json.loads(lines[0])["offset"]) if lines else int(end)

    def offset_within(self, start: int, bytes_max: int) -> int:
        asked = self._asked | {"from": start, "max_bytes": bytes_max}
        answer = self._broker.ask("HEAD", "/v1/log/batches", asked)
        return int(answer.headers["X-Penstock-Next-Offset"])

    def batches(self, start: int, end: int) -> Batches:
        while start < end:
            asked = self._asked | {"from": start, "to": end, "max_bytes": RANGE_BYTES_DEFAULT}
            answer = self._broker.ask("GET", "/v1/log/batches", asked)
            following = int(answer.headers["X-Penstock-Next-Offset"])
            if following <= start:
                raise EventsLostError(f"the log at {self._broker.url} ends at offset {start}, before {end}")
            yield from _split(answer.body)
            start = following

    def snapshot(self, folder: Path) -> Path | None:
        state = json.loads(self._broker.ask("GET", "/v1/backup", self._asked).body)
        if state["snapshot"] is None:
            return None
        offset = state["snapshot"]["offset"]
        path = snapshot_path(folder, offset)
        with path.open("wb") as file:
            self._broker.ask("GET", "/v1/backup/snapshot", self._asked | {"offset": offset}, into=file)
        return path

    def raw(self, start: Position, end: Position) -> bytes:
        return self._broker.ask("GET", "/v1/backup/log", self._asked | {"from": start, "to": end}).body

    def close(self) -> None:
        self._broker.close()

    def _describe(self) -> Any:
        asked = self._asked | {"names_from": self._names_known}
        log = json.loads(self._broker.ask("GET", "/v1/log", asked).body)
        self._names.texts.update({int(number): text for number, text in log["texts"].items()})
        self._names.queues.update({int(number): name for number, name in log["queues"].items()})
        self._names_known = log["names_to"]
        return log


def _split(data: bytes) -> Batches:
    """Split an answer into batches, and check them."""
    at = 0
    while at < len(data):
        header = read_header(data[at : at + HEADER_BYTES])
        if header is None:
            raise DamagedLogError("the broker sent something that is not a batch of the log")
        payload = data[at + HEADER_BYTES : at + header.total_bytes]
        if not is_whole(header, payload):
            raise DamagedLogError(f"the batch at offset {header.base_offset} is damaged")
        yield header, payload
        at += header.total_bytes
