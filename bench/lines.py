"""The load of JSON lines: publishes, and fetches with acknowledgements, many in flight on one connection.

Lines are built once; answers are counted and searched, not parsed.
"""

import re

from bench.driver import Count, closed_loop
from bench.load import BODY, QUEUE, Tally

MESSAGE = re.compile(rb'^\{"cmd":"msg",.*?"uid":"([^"]+)"', re.MULTILINE)
PUBLISHED = b'{"cmd":"ok",'
ACKNOWLEDGED = b'{"cmd":"okack",'


def line(command: str, queue: str = QUEUE, more: bytes = b"") -> bytes:
    return b'{"cmd":"%b","qname":"%b"%b}\n' % (command.encode(), queue.encode(), more)


def publish(queue: str = QUEUE, body: bytes = BODY) -> bytes:
    return line("PUB", queue, b',"message":"%b"' % body)


class Talk(Tally):
    """Passes complete lines to `flow`."""

    def __init__(self, depth: int, first: bytes) -> None:
        super().__init__()
        self.depth = depth
        self.request = first
        self.kept = b""

    def open(self) -> bytes:
        return self.request * self.depth

    def receive(self, data: bytes) -> bytes:
        data = self.kept + data
        end = data.rfind(b"\n") + 1
        self.kept = data[end:]
        return self.flow(data[:end])

    def flow(self, data: bytes) -> bytes:
        """Handle complete answers, and return what to send next."""
        raise NotImplementedError


class Publish(Talk):
    """Keeps a number of publishes unanswered."""

    def __init__(self, depth: int, queue: str = QUEUE) -> None:
        super().__init__(depth, publish(queue))

    def flow(self, data: bytes) -> bytes:
        answered = data.count(b"\n")
        if data.count(PUBLISHED) != answered:
            self.wrong(data)
        self.finished += answered
        return self.request * answered


class FetchAndAcknowledge(Talk):
    """Keeps a number of fetches unanswered. It acknowledges a message and fetches the next in one write."""

    def __init__(self, depth: int, queue: str = QUEUE) -> None:
        super().__init__(depth, line("FET", queue))
        self.reply = line("ACK", queue, b',"uid":"*"').replace(b"*", b"%b") + self.request

    def flow(self, data: bytes) -> bytes:
        messages = MESSAGE.findall(data)
        acknowledged = data.count(ACKNOWLEDGED)
        if data.count(b"\n") != len(messages) + acknowledged:
            self.wrong(data)
        self.finished += acknowledged
        template = self.reply
        return b"".join([template % uid for uid in messages])


def publish_rate(port: int, depth: int, warm_seconds: float, seconds: float) -> Count:
    return closed_loop(port, [Publish(depth)], warm_seconds=warm_seconds, seconds=seconds)


def acknowledge_rate(port: int, depth: int, warm_seconds: float, seconds: float) -> Count:
    return closed_loop(port, [FetchAndAcknowledge(depth)], warm_seconds=warm_seconds, seconds=seconds)
