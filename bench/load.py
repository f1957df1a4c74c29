"""The HTTP load: what a fast client of the message API sends, with as little parsing as possible.

Requests are built once. Only the status, the length and one header of an answer are read, by
searching for bytes. The functions at the end run on the other core (see `bench.cores`).
"""

import re
import sys

from bench.driver import Count, Latency, closed_loop, one_at_a_time, paced, until_finished

BODY = (b"0123456789abcdef" * 13)[:200]
CONNECTIONS = 256
QUEUE = "bench"
UNLIMITED = sys.maxsize
PARTS = 1000  # Messages of one multipart request.
FILLERS = 4
FILL_ROUND = FILLERS * PARTS  # `fill` stores a multiple of this.
BULK_SECONDS_MAX = 1800.0
ID_NAME = b"x-mqs-message-id"
LENGTH_NAME = b"content-length"
HEAD_END = b"\r\n\r\n"


def request(method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def post(queue: str = QUEUE, body: bytes = BODY) -> bytes:
    return request("POST", f"/messages/{queue}", body, {"Content-Type": "application/octet-stream"})


def multipart(queue: str, parts: int) -> bytes:
    """One request that publishes the body many times."""
    part = b"--bench\r\nContent-Type: application/octet-stream\r\n\r\n" + BODY + b"\r\n"
    body = part * parts + b"--bench--\r\n"
    return request("POST", f"/messages/{queue}", body, {"Content-Type": "multipart/mixed; boundary=bench"})


class Framing:
    """Finds where the answers to one kind of request end. One answer is awaited at a time."""

    def __init__(self) -> None:
        self._kept = b""
        # A server spells its header names the same way each time: learn the spelling once, and
        # later use a plain search instead of one that ignores case.
        self._spellings: dict[bytes, bytes] = {}
        # The last answer: its size, and where it stated the length of its body.
        self._size = -1
        self._length_at = slice(0, 0)
        self._length_line = b""

    def whole(self, data: bytes) -> bytes:
        """The complete answer, or nothing while it is incomplete."""
        # Nearly every answer arrives in one read and is as long as the one before, with the same length
        # stated at the same place: then it ends where that one ended.
        if len(data) == self._size and not self._kept and data[self._length_at] == self._length_line:
            return data
        if self._kept:
            data = self._kept + data
        head_end = data.find(HEAD_END)
        if head_end < 0 or len(data) < head_end + 4 + self._body_length(data, head_end):
            self._kept = data
            return b""
        self._kept = b""
        self._remember(data, head_end)
        return data

    def value(self, answer: bytes, name: bytes) -> bytes:
        """A header's value, or nothing if the answer does not have it."""
        spelling = self._spellings.get(name) or self._learn(answer, name)
        start = answer.find(spelling) if spelling else -1
        if start < 0:
            return b""
        start += len(spelling)
        return answer[start : answer.find(b"\r\n", start)]

    def _body_length(self, data: bytes, head_end: int) -> int:
        if data[9:12] == b"204":
            return 0  # A 204 has no body and no length.
        return int(self.value(data[: head_end + 2], LENGTH_NAME) or 0)

    def _remember(self, data: bytes, head_end: int) -> None:
        if data[9:12] == b"204":
            start = head_end
        else:
            spelling = self._spellings.get(LENGTH_NAME)
            start = data.find(spelling) if spelling else head_end
        self._size = len(data)
        self._length_at = slice(start, data.find(b"\r\n", start + 2) + 2)
        self._length_line = data[self._length_at]

    def _learn(self, answer: bytes, name: bytes) -> bytes:
        found = re.search(rb"\r\n" + name + rb": *", answer, re.IGNORECASE)
        if found is None:
            return b""
        return self._spellings.setdefault(name, found.group())


class Tally:
    """The counts of a conversation."""

    def __init__(self) -> None:
        self.finished = 0
        self.errors = 0
        self.complaint = ""

    def wrong(self, answer: bytes) -> None:
        self.errors += 1
        if not self.complaint:
            self.complaint = answer[:200].decode("latin-1")


class Publish(Tally):
    """Posts the same request again and again. Each has a number of messages."""

    def __init__(self, request: bytes, messages: int = 1, quota: int = UNLIMITED) -> None:
        super().__init__()
        self.request = request
        self.messages = messages
        self.quota = quota  # The connection stops after this many messages.
        self.whole = Framing().whole

    def open(self) -> bytes:
        return self.request

    def receive(self, data: bytes) -> bytes:
        answer = self.whole(data)
        if not answer:
            return b""
        if answer[9:12] == b"201":
            self.finished += self.messages
        else:
            self.wrong(answer)
        return self.request if self.finished < self.quota else b""


class Consume(Tally):
    """Receives a message, deletes it by its id, and repeats. Both together count as one operation."""

    def __init__(self, queue: str = QUEUE, quota: int = UNLIMITED) -> None:
        super().__init__()
        self.quota = quota
        self.get = request("GET", f"/messages/{queue}")
        self.delete_before, self.delete_after = request("DELETE", "/messages/*").split(b"*")
        self.deleting = False
        self.received = Framing()
        self.deleted = Framing()

    def open(self) -> bytes:
        return self.get

    def receive(self, data: bytes) -> bytes:
        if self.deleting:
            answer = self.deleted.whole(data)
            return self._after_delete(answer) if answer else b""
        answer = self.received.whole(data)
        if not answer:
            return b""
        if answer[9:12] != b"200":
            self.wrong(answer)
            return self.get
        self.deleting = True
        return self.delete_before + self.received.value(answer, ID_NAME) + self.delete_after

    def _after_delete(self, answer: bytes) -> bytes:
        self.deleting = False
        if answer[9:12] == b"204":
            self.finished += 1
        else:
            self.wrong(answer)
        return self.get if self.finished < self.quota else b""


def publish_rate(
    port: int, connections: int, warm_seconds: float, seconds: float, queue: str = QUEUE, body: bytes = BODY
) -> Count:
    conversations = [Publish(post(queue, body)) for _ in range(connections)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def consume_rate(port: int, connections: int, warm_seconds: float, seconds: float, queue: str = QUEUE) -> Count:
    conversations = [Consume(queue) for _ in range(connections)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def publish_paced(
    port: int, connections: int, rate: float, warm_seconds: float, seconds: float, queue: str = QUEUE
) -> Latency:
    conversations = [Publish(post(queue)) for _ in range(connections)]
    return paced(port, conversations, rate=rate, warm_seconds=warm_seconds, seconds=seconds)


def publish_alone(port: int, warm_seconds: float, seconds: float, queue: str = QUEUE) -> Latency:
    return one_at_a_time(port, Publish(post(queue)), warm_seconds=warm_seconds, seconds=seconds)


def fill(port: int, queue: str, messages: int) -> Count:
    """Store this many messages, a thousand a request."""
    assert messages % FILL_ROUND == 0, "a whole number of requests on each connection"
    each = messages // FILLERS
    conversations = [Publish(multipart(queue, PARTS), PARTS, each) for _ in range(FILLERS)]
    return until_finished(port, conversations, messages, seconds_max=BULK_SECONDS_MAX)


def drain(port: int, queue: str, messages: int) -> Count:
    """Receive and delete this many messages; each one received is also deleted."""
    quotas = [messages // CONNECTIONS + (number < messages % CONNECTIONS) for number in range(CONNECTIONS)]
    conversations = [Consume(queue, quota) for quota in quotas if quota]
    return until_finished(port, conversations, messages, seconds_max=BULK_SECONDS_MAX)
