"""The WebSocket load: posts that are answered once they are synced, and fetches with finishes.

Frames are built once. A mask key of zeros is legal and leaves the payload as it is. Labels are unique among the
requests in flight, so an answer's label tells which frame to send again. Answers are searched, not parsed.
"""

import re
import socket
import struct

from bench.driver import SILENCE_SECONDS_MAX, Count, StoppedError, closed_loop, connect
from bench.load import BODY, HEAD_END, QUEUE, Tally, request

PATH = "/connect/"
UPGRADE = request(
    "GET",
    PATH,
    headers={
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "cGVuc3RvY2stYmVuY2gtLQ==",
    },
)
EMPTY_PING = b"\x89\x00"
PONG = b"\x8a\x80" + bytes(4)
TEXT = 0x81  # A whole message in one frame.
MASKED = 0x80
NO_MASK = bytes(4)
SMALL_BYTES_MAX = 125  # A longer frame has its length in two more bytes.
LABEL_FIRST = 100  # All labels have three digits, so that frames of a kind have one size.
OBJECT_START = b'{"type"'
SYNCED = re.compile(rb'"type":"notice","label":(\d+),"notice":"sync"')
MESSAGE = re.compile(rb'"type":"message","label":(\d+),"shard":(\d+),"sequence":(\d+),')
NOTICE = b'"type":"notice"'
ANY = b'"type":"'


def frame(payload: bytes) -> bytes:
    size = len(payload)
    if size <= SMALL_BYTES_MAX:
        head = bytes((TEXT, MASKED | size))
    else:
        head = struct.pack(">BBH", TEXT, MASKED | 126, size)
    return head + NO_MASK + payload


def post(label: int, queue: str = QUEUE, body: bytes = BODY) -> bytes:
    head = b'{"type":"post","queue":"%b","message":"%b",' % (queue.encode(), body)
    return frame(head + b'"priority":0,"label":%d,"notify":["sync"]}' % label)


def fetch(label: int, queue: str = QUEUE, block_seconds: int = 0) -> bytes:
    head = b'{"type":"fetch","queue":"%b","block_timeout":%d,' % (queue.encode(), block_seconds)
    return frame(head + b'"work_timeout":60,"label":%d}' % label)


def finish(queue: str = QUEUE) -> bytes:
    """A template for sequence, shard and label. Missing digits become spaces, so all frames have one size."""
    payload = b'{"type":"finish","queue":"%b",' % queue.encode()
    payload += b'"sequence":%9b,"shard":%5b,"label":%3b,"response":"sync"}'
    filled = payload % (b"", b"", b"")
    return frame(filled)[: -len(filled)] + payload


class Upgraded(Tally):
    """Opens a WebSocket, and passes what follows the server's hello to `flow`, in complete objects."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = b""
        self.greeted = False

    def open(self) -> bytes:
        return UPGRADE

    def receive(self, data: bytes) -> bytes:
        data = self.kept + data
        if not self.greeted:
            return self._greet(data)
        # No body has a brace, so data that ends with one is complete. Otherwise keep the last object for later.
        cut = len(data) if data.endswith(b"}") else max(0, data.rfind(OBJECT_START))
        self.kept = data[cut:]
        return self.flow(data[:cut])

    def _greet(self, data: bytes) -> bytes:
        head_end = data.find(HEAD_END)
        if head_end >= 0 and data[9:12] != b"101":
            raise StoppedError(f"no WebSocket: {data[:200]!r}")
        self.greeted = head_end >= 0 and data.endswith(b"}") and b'"hello"' in data
        self.kept = b"" if self.greeted else data
        return self.first() if self.greeted else b""

    def first(self) -> bytes:
        """The first requests."""
        return b""

    def flow(self, data: bytes) -> bytes:
        """Handle complete answers, and return what to send next."""
        self.wrong(data)
        return b""


class Post(Upgraded):
    """Keeps a number of posts in flight, each answered when it is synced."""

    def __init__(self, depth: int, queue: str = QUEUE) -> None:
        super().__init__()
        self.frames = {b"%d" % label: post(label, queue) for label in range(LABEL_FIRST, LABEL_FIRST + depth)}

    def first(self) -> bytes:
        return b"".join(self.frames.values())

    def flow(self, data: bytes) -> bytes:
        labels = SYNCED.findall(data)
        if data.count(ANY) != len(labels):
            self.wrong(data)
        self.finished += len(labels)
        return b"".join(map(self.frames.__getitem__, labels))


class FetchAndFinish(Upgraded):
    """Keeps a number of fetches in flight. It finishes a message and fetches the next in one write.

    So it holds at most as many messages as there are fetches, which other brokers call a prefetch. A pair counts when
    the finish is answered, which is after its sync.
    """

    def __init__(self, depth: int, queue: str = QUEUE) -> None:
        super().__init__()
        self.fetches = {b"%d" % label: fetch(label, queue) for label in range(LABEL_FIRST, LABEL_FIRST + depth)}
        self.finish = finish(queue)

    def first(self) -> bytes:
        return b"".join(self.fetches.values())

    def flow(self, data: bytes) -> bytes:
        messages = MESSAGE.findall(data)
        finished = data.count(NOTICE)
        if data.count(ANY) != len(messages) + finished:
            self.wrong(data)
        self.finished += finished
        template, fetches = self.finish, self.fetches
        reply = []
        for label, shard, sequence in messages:
            reply.append(template % (sequence, shard, label))
            reply.append(fetches[label])
        return b"".join(reply)


def post_rate(port: int, depth: int, warm_seconds: float, seconds: float) -> Count:
    return closed_loop(port, [Post(depth)], warm_seconds=warm_seconds, seconds=seconds)


def finish_rate(port: int, depth: int, warm_seconds: float, seconds: float) -> Count:
    return closed_loop(port, [FetchAndFinish(depth)], warm_seconds=warm_seconds, seconds=seconds)


def greeted(port: int) -> socket.socket:
    """A blocking WebSocket that has received its hello."""
    link = connect(port, blocking=True)
    link.settimeout(SILENCE_SECONDS_MAX)
    opening = Upgraded()
    link.sendall(opening.open())
    while not opening.greeted:
        data = link.recv(4096)
        if not data:
            raise StoppedError("the server closed a WebSocket that was being opened")
        opening.receive(data)
    return link
