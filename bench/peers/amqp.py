"""The part of AMQP 0-9-1 that is needed to publish with confirms and to consume with acknowledgements."""

import struct

from bench.driver import StoppedError
from bench.load import BODY, Tally

CHANNEL = 1
METHOD, HEADER, BODY_FRAME = 1, 2, 3
FRAME_END = b"\xce"
FRAME_HEAD = struct.Struct(">BHI")  # Type, channel, size.
METHOD_HEAD = struct.Struct(">HH")  # Class, method.
PROTOCOL = b"AMQP\x00\x00\x09\x01"
FRAME_BYTES_MAX = 131072
PERSISTENT = b"\x02"
DELIVERY_MODE_FLAG = 0x1000

CONNECTION_START, CONNECTION_TUNE, CONNECTION_OPEN_OK = (10, 10), (10, 30), (10, 41)
CHANNEL_OPEN_OK, CONFIRM_SELECT_OK = (20, 11), (85, 11)
QUEUE_DECLARE_OK, QOS_OK, CONSUME_OK = (50, 11), (60, 11), (60, 21)
DELIVER, ACK = (60, 60), (60, 80)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, number: tuple[int, int], arguments: bytes) -> bytes:
    return frame(METHOD, channel, METHOD_HEAD.pack(*number) + arguments)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def publish(queue: bytes) -> bytes:
    """A persistent message to the default exchange: three frames, always with the same bytes."""
    properties = struct.pack(">HHQH", 60, 0, len(BODY), DELIVERY_MODE_FLAG) + PERSISTENT
    return b"".join(
        [
            method(CHANNEL, (60, 40), b"\x00\x00" + short(b"") + short(queue) + b"\x00"),
            frame(HEADER, CHANNEL, properties),
            frame(BODY_FRAME, CHANNEL, BODY),
        ]
    )


# The opening of a connection: what to answer to each method of the server.
START_OK = method(0, (10, 11), long(b"") + short(b"PLAIN") + long(b"\x00guest\x00guest") + short(b"en_US"))
TUNE_OK_AND_OPEN = method(0, (10, 31), struct.pack(">HIH", CHANNEL, FRAME_BYTES_MAX, 0)) + method(
    0, (10, 40), short(b"/") + b"\x00\x00"
)
CHANNEL_OPEN = method(CHANNEL, (20, 10), short(b""))
CONFIRM_SELECT = method(CHANNEL, (85, 10), b"\x00")
# Durable, and of the replicated kind.
QUORUM = short(b"x-queue-type") + b"S" + long(b"quorum")
QUEUE_DECLARE = method(CHANNEL, (50, 10), b"\x00\x00" + short(b"bench") + b"\x02" + long(QUORUM))
OPENING = {CONNECTION_START: START_OK, CONNECTION_TUNE: TUNE_OK_AND_OPEN, CONNECTION_OPEN_OK: CHANNEL_OPEN}


class Opening(Tally):
    """Opens a connection and a channel, then goes through a list of methods, one answer each."""

    def __init__(self, steps: dict[tuple[int, int], bytes]) -> None:
        super().__init__()
        self.steps = OPENING | steps
        self.kept = b""

    def open(self) -> bytes:
        return PROTOCOL

    def receive(self, data: bytes) -> bytes:
        """Answers the methods of the list; after that, each read goes to `flow`."""
        data = self.kept + data
        if not self.steps:
            return self.flow(data)
        reply, position = b"", 0
        while len(data) - position >= FRAME_HEAD.size:
            _, _, size = FRAME_HEAD.unpack_from(data, position)
            frame_end = position + FRAME_HEAD.size + size + 1
            if len(data) < frame_end:
                break
            number = METHOD_HEAD.unpack_from(data, position + FRAME_HEAD.size)
            if number not in self.steps:
                self.wrong(data[position:frame_end])
            reply += self.steps.pop(number, b"")
            position = frame_end
            if not self.steps:
                self.kept = b""
                return reply + self.flow(data[position:])
        self.kept = data[position:]
        return reply

    def flow(self, data: bytes) -> bytes:
        """Handle what was read, and return what to send next. `kept` is empty on the first call."""
        self.kept = data
        return b""


class Declare(Opening):
    """Creates the queue."""

    def __init__(self) -> None:
        super().__init__({CHANNEL_OPEN_OK: QUEUE_DECLARE, QUEUE_DECLARE_OK: b""})

    def flow(self, data: bytes) -> bytes:
        self.finished = 1
        return super().flow(data)


class ConfirmedPublish(Opening):
    """Keeps a number of publishes unconfirmed."""

    CONFIRM = struct.Struct(">BHIHHQBB")  # A whole frame with basic.ack: tag, and whether all below it too.

    def __init__(self, depth: int) -> None:
        self.request = publish(b"bench")
        super().__init__({CHANNEL_OPEN_OK: CONFIRM_SELECT, CONFIRM_SELECT_OK: self.request * depth})
        self.confirmed_below = 1  # All tags below this one are confirmed,
        self.confirmed_alone: set[int] = set()  # and these above it.

    def flow(self, data: bytes) -> bytes:
        size = self.CONFIRM.size
        whole = len(data) - len(data) % size
        self.kept = data[whole:]
        confirmed = 0
        for _, _, _, kind, number, tag, multiple, _ in self.CONFIRM.iter_unpack(data[:whole]):
            if (kind, number) != ACK:
                self.wrong(data)
            confirmed += self._confirm(tag) if not multiple else self._confirm_up_to(tag)
        self.finished += confirmed
        return self.request * confirmed

    def _confirm(self, tag: int) -> int:
        self.confirmed_alone.add(tag)
        while self.confirmed_below in self.confirmed_alone:
            self.confirmed_alone.remove(self.confirmed_below)
            self.confirmed_below += 1
        return 1

    def _confirm_up_to(self, tag: int) -> int:
        known = sum(1 for alone in self.confirmed_alone if alone <= tag)
        confirmed = tag + 1 - self.confirmed_below - known
        self.confirmed_alone = {alone for alone in self.confirmed_alone if alone > tag}
        self.confirmed_below = tag + 1
        return confirmed


class Consume(Opening):
    """Acknowledges the messages of each read: each by itself, or all at once."""

    ACKNOWLEDGE = struct.Struct(">BHIHHQBB")
    TAG_AT = FRAME_HEAD.size + METHOD_HEAD.size + 2  # After the consumer's name, which is one letter.

    def __init__(self, prefetch: int, *, each: bool) -> None:
        qos = method(CHANNEL, (60, 10), struct.pack(">IHB", 0, prefetch, 0))
        consume = method(CHANNEL, (60, 20), b"\x00\x00" + short(b"bench") + short(b"c") + b"\x00" + long(b""))
        super().__init__({CHANNEL_OPEN_OK: qos, QOS_OK: consume, CONSUME_OK: b""})
        self.each = each
        self.size = 0  # Of one delivery: three frames, of the same size each time.
        self.tag = 0

    def flow(self, data: bytes) -> bytes:
        if not self.size:
            self.size = self._delivery_size(data)
        count = len(data) // self.size if self.size else 0
        if not count:
            self.kept = data
            return b""
        self.kept = data[count * self.size :]
        self.tag += count
        # Tags count up by one, so if the last is where it should be, so were all before it.
        (last,) = struct.unpack_from(">Q", data, (count - 1) * self.size + self.TAG_AT)
        if last != self.tag:
            raise StoppedError(f"delivery {self.tag} is not where it should be; was one delivered twice?")
        self.finished += count
        if self.each:
            return b"".join([self._acknowledge(tag, 0) for tag in range(self.tag - count + 1, self.tag + 1)])
        return self._acknowledge(self.tag, 1)

    def _acknowledge(self, tag: int, multiple: int) -> bytes:
        return self.ACKNOWLEDGE.pack(METHOD, CHANNEL, 13, *ACK, tag, multiple, 0xCE)

    def _delivery_size(self, data: bytes) -> int:
        position = 0
        for _ in range(3):
            if len(data) < position + FRAME_HEAD.size:
                return 0
            _, _, size = FRAME_HEAD.unpack_from(data, position)
            position += FRAME_HEAD.size + size + 1
        return position
