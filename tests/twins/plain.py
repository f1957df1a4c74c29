"""Answers without what differs from one broker to the next: ids, times and places in the log.

Each id is replaced by the number of its first appearance. What a later step of a program may name is kept on the way.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.http_client import Headers, Response

_ID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-8[0-9a-fA-F]{3}-8[0-9a-fA-F]{3}-[0-9a-fA-F]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_SECRET = re.compile(r"pst_[\w-]{43}")
_JOB = re.compile(r"\b(?!0123456789abcdef)[0-9a-f]{16}\b")
_FAR = 2100  # Years from here on were given by a program.

TIMES = frozenset(
    ("time", "ready_since", "since", "heard", "oldest_message_age", "seconds", "lag", "durationMS", "oldest_lease")
)
"""Fields with times as numbers."""
PLACES = frozenset(("offset", "queue_number", "to_queue_number", "shard"))
"""Fields with places in the log, or numbers that depend on the order in which queues were made."""
_RATES = frozenset(("in", "out", "growth", "delivered", "retried", "failed", "taken_per_minute", "commits", "disk"))
_SHARED = frozenset(
    ("redrives", "purges", "schedules", "tokens", "workers", "queues", "channels", "consumers", "waiting")
)
"""Lists that have what other programs have left, too."""
_TOTALS = frozenset(("total", "totals", "attention", "total_waiting", "connections"))
_HEADERS = frozenset(("date", "content-length", "server"))


class Known:
    """What one twin has shown: what `{id:2}` and the like stand for there, and the numbers of its ids."""

    def __init__(self, stamp: str) -> None:
        """`stamp`: in the names of the program. Lists leave out what has none of them."""
        self._mark = f"-{stamp}"
        self._seen: dict[str, list[str]] = {}
        self._numbers: dict[str, int] = {}
        self.is_log = False  # What is read is the Event Log.
        self.claimed: list[list[int]] = []  # What a stream processor has leased last.
        self._places: dict[tuple[str, int, int], None] = {}

    def note(self, kind: str, value: str) -> int:
        seen = self._seen.setdefault(kind, [])
        if value not in self._numbers:
            seen.append(value)
            self._numbers[value] = len(seen)
        return self._numbers[value]

    def note_place(self, queue: str, sequence: int, place: int) -> None:
        self._places[queue, sequence, place] = None

    def fill(self, text: str) -> Any:
        """The text with its references replaced; a number where it is nothing else than a reference to one."""
        if text == "{claimed}":
            return self.claimed
        whole = re.fullmatch(r"\{(sequence|place):(\d+)\}", text)
        if whole:
            return self._place(int(whole[2]))[1 if whole[1] == "sequence" else 2]
        return re.sub(r"\{(\w+):(\d+)\}", lambda match: self._find(match[1], int(match[2])), text)

    def _place(self, back: int) -> tuple[str, int, int]:
        places = list(self._places)
        return places[-1 - back % len(places)] if places else ("nobody", 1, 1)

    def _find(self, kind: str, back: int) -> str:
        if kind == "place_queue":
            return self._place(back)[0]
        seen = self._seen.get(kind, ())
        return seen[-1 - back % len(seen)] if seen else "00000000-0000-8000-8000-000000000000"

    def fill_all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.fill(value)
        if isinstance(value, dict):
            return {name: self.fill_all(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.fill_all(each) for each in value]
        return value

    # ── Plain ───────────────────────────────────────────────────────────────────────────────────────────────

    def text(self, text: str) -> str:
        text = _ID.sub(lambda match: f"<id {self.note('id', match[0].lower())}>", text)
        text = _SECRET.sub("<secret>", text)
        text = _JOB.sub(lambda match: f"<job {self.note('job', match[0])}>", text)
        return _TIME.sub(lambda match: match[0] if int(match[0][:4]) >= _FAR else "<time>", text)

    def value(self, value: Any, name: str = "") -> Any:
        if value is not None and not isinstance(value, dict | list | bool):
            if name in TIMES:
                return "<time>"
            if name in PLACES:
                return "<place>"
            if name in ("next", "cursor") and isinstance(value, str):
                self.note("next" if self.is_log else "cursor", value)
                return f"<{name}>"
            if name == "job":
                return f"<job {self.note('job', value)}>"
        if name in _RATES or name in _TOTALS:
            return "<figures>"
        if name == "claimed" and isinstance(value, list):
            self.claimed = value
            return [["<place>", *rest] for _, *rest in value]
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            if name in _SHARED:
                value = [each for each in value if self._is_ours(each)]
            return [self.value(each, name) for each in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(each, key) for key, each in value.items()}
        return value

    def _is_ours(self, entry: Any) -> bool:
        return re.search(re.escape(self._mark) + r"\b", json.dumps(entry)) is not None

    def headers(self, headers: Headers) -> dict[str, str]:
        return {name.lower(): self.text(value) for name, value in headers if name.lower() not in _HEADERS}

    def response(self, response: Response) -> dict[str, Any]:
        headers = self.headers(response.headers)
        return {"status": response.status, "headers": headers, "body": self._body(response, headers)}

    def _body(self, response: Response, headers: dict[str, str]) -> Any:
        media_type = headers.get("content-type", "").partition(";")[0]
        if media_type == "multipart/mixed":
            headers["content-type"] = media_type
            return [[self.headers(part.headers), part.body.decode("utf-8", "replace")] for part in response.parts()]
        text = response.body.decode("utf-8", "replace")
        try:
            if media_type == "application/json":
                return self.value(json.loads(text))
            if media_type == "application/x-ndjson":
                return [self.value(json.loads(line)) for line in text.splitlines()]
            if media_type == "text/event-stream":
                return [self.value(json.loads(line[6:])) for line in text.splitlines() if line.startswith("data: ")]
        except ValueError:
            pass
        return self.text(text)
