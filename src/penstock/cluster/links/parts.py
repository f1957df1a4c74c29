"""Answers to questions that cross a link in pieces: long ones, and those that go on. The next piece is sent when it
is wanted, so that commands pass between two of them, and a stream goes no faster than its client reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.broker.writer.port import Reply
from penstock.cluster.links.codec import (
    BeginFlow,
    EndStream,
    FinishStream,
    SendPart,
    SendPiece,
    WantPart,
    decode_answer,
    encode,
)
from penstock.limits import LINK_PART_BYTES
from penstock.model.answer_bytes import pack, unpack
from penstock.model.answers import Refused
from penstock.model.queries import INTERNAL
from penstock.model.streams import Flow, Sink

logger = logging.getLogger(__name__)

Send = Callable[[Any], None]


def _encoded(answer: Any) -> bytes:
    try:
        return encode(pack(answer))
    except (TypeError, NotImplementedError):
        logger.exception("answer_failed")
        return encode(INTERNAL)


def _decoded(data: bytes) -> Any:
    try:
        return unpack(decode_answer(data))
    except msgspec.DecodeError:
        logger.exception("answer_failed")
        return INTERNAL


# ── In the process that has answered ──────────────────────────────────────────────────────────────────────────


class ServedParts:
    """The bytes of an answer: one that cannot be read takes nothing else with it."""

    def __init__(self, number: int, answer: Any, send: Send, over: Callable[[], None]) -> None:
        self._number, self._data = number, _encoded(answer)
        self._sent = 0
        self._send, self._over = send, over

    def pull(self) -> None:
        part = self._data[self._sent : self._sent + LINK_PART_BYTES]
        self._sent += len(part)
        self._send(SendPart(self._number, part))
        if self._sent == len(self._data):
            self._over()
            self._send(EndStream(self._number, has_failed=False))

    def cancel(self) -> None:
        """It is forgotten."""

    def give_up(self) -> None:
        """It is made already."""


class ServedFlow:
    """The sink of a flow."""

    def __init__(self, number: int, flow: Flow, send: Send, over: Callable[[], None]) -> None:
        self._number, self._source = number, flow.source
        self._send, self._over = send, over
        self.finish, self.cancel = flow.source.finish, flow.source.close
        send(BeginFlow(number, b"" if flow.head is None else _encoded(flow.head)))

    def give_up(self) -> None:
        """It goes on until it is not wanted any more."""

    def pull(self) -> None:
        self._source.pull(self)

    def give(self, data: Any) -> None:
        is_bytes = type(data) is bytes
        self._send(SendPart(self._number, data) if is_bytes else SendPiece(self._number, _encoded(data)))

    def end(self) -> None:
        self._end(has_failed=False)

    def fail(self) -> None:
        self._end(has_failed=True)

    def cut_off(self) -> None:
        self.fail()

    def _end(self, *, has_failed: bool) -> None:
        self._over()
        self._source.close()
        self._send(EndStream(self._number, has_failed))


# ── In the process that has asked ─────────────────────────────────────────────────────────────────────────────


class Parts:
    """Takes what comes back, and replies with the whole, or with a flow whose source it is."""

    def __init__(self, send: Send, withdraw: Callable[[int], object], reply: Reply) -> None:
        """`withdraw`: the other process need not go on."""
        self._send, self._withdraw, self._reply = send, withdraw, reply
        self._parts: list[bytes] = []
        self._flow = 0  # The number of a flow that has begun.
        self._sink: Sink | None = None  # What waits for the next piece.
        self._is_lost = False

    def __call__(self, entry: Any) -> None:
        kind = type(entry)
        if kind is BeginFlow:
            self._flow = entry.number
            self._reply(Flow(self, _decoded(entry.head) if entry.head else None))
        elif self._flow:
            self._go_on(entry)
        elif kind is SendPart:
            self._parts.append(entry.data)
            if len(entry.data) == LINK_PART_BYTES:
                self._send(WantPart(entry.number))
        elif kind is EndStream:
            self._reply(_decoded(b"".join(self._parts)))
        else:
            self._reply(entry)

    def _go_on(self, entry: SendPart | SendPiece | EndStream | Refused) -> None:
        sink, self._sink = self._sink, None
        if type(entry) is SendPart or type(entry) is SendPiece:
            piece = entry.data if type(entry) is SendPart else _decoded(entry.data)
            if sink and piece == INTERNAL:
                sink.fail()  # Without it, the others are not the whole.
            elif sink:
                sink.give(piece)
            return
        has_failed = type(entry) is Refused or (type(entry) is EndStream and entry.has_failed)
        self._is_lost = True
        if sink:
            sink.fail() if has_failed else sink.end()

    def pull(self, sink: Sink) -> None:
        self._sink = sink
        if self._is_lost:
            asyncio.get_running_loop().call_soon(sink.fail)
        else:
            self._send(WantPart(self._flow))

    def finish(self) -> None:
        self._send(FinishStream(self._flow))

    def close(self) -> None:
        self._sink = None
        self._withdraw(self._flow)
