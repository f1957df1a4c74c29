"""Answers to publishes with an idempotency key, so that a repeated request gets the same answer and stores nothing.

The oldest key is first. Each `Answered` event contains how many of the oldest are forgotten with it, so that a replay
forgets the same ones, whatever the settings are by then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from penstock.engine.rows import Columns
from penstock.limits import IDEMPOTENCY_BYTES_MAX, IDEMPOTENCY_FORGOTTEN_AT_ONCE
from penstock.model.values import Nanos

_SECTION_KEYS_MAX = 4096
_TABLE = np.dtype([("time", "<i8"), ("key_bytes", "<u4"), ("answer_bytes", "<u4")])
DIGEST_BYTES = 32

# Messages with consecutive sequences: queue, first sequence, count, state, queues, channels.
Run = tuple[int, int, int, Literal["Q", "U"], tuple[str, ...], tuple[str, ...]]
encode_runs = msgspec.msgpack.Encoder().encode
decode_runs = msgspec.msgpack.Decoder(list[Run]).decode


class AnsweredRequest(Struct, frozen=True, gc=False):
    time: Nanos
    digest: bytes
    answer: bytes


class AnsweredRequests:
    def __init__(self) -> None:
        self.by_key: OrderedDict[bytes, AnsweredRequest] = OrderedDict()  # A dict is slow at removing the oldest.
        self.bytes = 0

    def add(self, key: bytes, request: AnsweredRequest) -> None:
        self.by_key[key] = request
        self.bytes += _size(key, request)

    def forget(self, count: int, key: bytes) -> None:
        """Forget the oldest ones, and `key` if it is known."""
        for _ in range(count):
            self.bytes -= _size(*self.by_key.popitem(last=False))
        if key in self.by_key:
            self.bytes -= _size(key, self.by_key.pop(key))

    def surplus(self, size: int, *, until: Nanos, keys_max: int) -> int:
        """How many of the oldest to forget for one more of `size` bytes: those for which there is no room, and some
        of those that were answered at `until` or before."""
        left, used, count = len(self.by_key), self.bytes + size, 0
        for key, request in self.by_key.items():
            fits = left < keys_max and used <= IDEMPOTENCY_BYTES_MAX
            if fits and (request.time > until or count >= IDEMPOTENCY_FORGOTTEN_AT_ONCE):
                break
            left, used, count = left - 1, used - _size(key, request), count + 1
        return count

    def part(self, is_mine: Callable[[int], bool]) -> AnsweredRequests:
        """The answers about some queues, by number, each without the messages of other queues. An answer without any
        message is in every part."""
        part = AnsweredRequests()
        for key, request in self.by_key.items():
            runs = decode_runs(request.answer)
            mine = [run for run in runs if is_mine(run[0])]
            if mine or not runs:
                part.add(key, AnsweredRequest(request.time, request.digest, encode_runs(mine)))
        return part

    # Snapshots

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        remaining = iter(self.by_key.items())
        while some := list(islice(remaining, _SECTION_KEYS_MAX)):
            facts = [(request.time, len(key), len(request.answer)) for key, request in some]
            parts = [part for key, request in some for part in (key, request.digest, request.answer)]
            yield "answered", b"", (np.array(facts, dtype=_TABLE), np.frombuffer(b"".join(parts), dtype=np.uint8))

    def restore(self, columns: Columns) -> None:
        table, parts, at = columns[0].view(_TABLE), columns[1].tobytes(), 0
        for time, key_bytes, answer_bytes in table.tolist():
            digest_at = at + key_bytes
            answer_at = digest_at + DIGEST_BYTES
            end = answer_at + answer_bytes
            self.add(parts[at:digest_at], AnsweredRequest(time, parts[digest_at:answer_at], parts[answer_at:end]))
            at = end


def _size(key: bytes, request: AnsweredRequest) -> int:
    return len(key) + len(request.answer)
