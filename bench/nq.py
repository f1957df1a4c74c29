"""The NQ load: posts with many messages, and pulls of as many, with and without results."""

import re

from bench.driver import Count, closed_loop
from bench.load import BODY, HEAD_END, QUEUE, Framing, Tally, request

MESSAGES = 100  # Of one post and of one pull.
ID = re.compile(rb'"id":(\d+)')
RECEIVER = "bench"
RETRIES = b',"retry_num":2'
JSON = {"Content-Type": "application/json"}


def post(queue: str = QUEUE, messages: int = MESSAGES, body: bytes = BODY) -> bytes:
    bodies = b",".join([b'"%b"' % body] * messages)
    content = b'{"sender":"bench","messages":{"%b":[%b]}}' % (queue.encode(), bodies)
    return request("POST", "/post", content, JSON)


def pull(queue: str = QUEUE, options: bytes = b"", results: bytes = b"", messages: int = MESSAGES) -> bytes:
    body = b'{"receiver":"%b","timeout":0,' % RECEIVER.encode()
    body += b'"queues":{"%b":{"max":%d%b}}%b}' % (queue.encode(), messages, options, results)
    return request("POST", "/pull", body, JSON)


class Post(Tally):
    """Posts the same messages again and again."""

    def __init__(self, queue: str = QUEUE, body: bytes = BODY) -> None:
        super().__init__()
        self.request = post(queue, body=body)
        self.whole = Framing().whole

    def open(self) -> bytes:
        return self.request

    def receive(self, data: bytes) -> bytes:
        answer = self.whole(data)
        if not answer:
            return b""
        # One id a message: a comma less than there are messages.
        if answer[9:12] == b"200" and answer.count(b",", answer.find(HEAD_END)) == MESSAGES - 1:
            self.finished += MESSAGES
        else:
            self.wrong(answer)
        return self.request


class Pull(Tally):
    """Pulls without results: each message is delivered once and never again, which is the default."""

    def __init__(self, queue: str = QUEUE) -> None:
        super().__init__()
        self.queue = queue
        self.request = pull(queue, b',"retry_num":0')
        self.whole = Framing().whole

    def open(self) -> bytes:
        return self.request

    def receive(self, data: bytes) -> bytes:
        answer = self.whole(data)
        if not answer:
            return b""
        if answer[9:12] == b"200" and answer.count(b'"id":') == MESSAGES:
            self.finished += MESSAGES
            return self.next(answer)
        self.wrong(answer)
        return self.request

    def next(self, _answer: bytes) -> bytes:
        return self.request


class PullWithResults(Pull):
    """Each pull sends the results of the one before, so this is consuming with acknowledgement."""

    def __init__(self, queue: str = QUEUE) -> None:
        super().__init__(queue)
        self.request = pull(queue, RETRIES)

    def next(self, answer: bytes) -> bytes:
        results = b",".join([b'"%b":"ok"' % number for number in ID.findall(answer)])
        return pull(self.queue, RETRIES, b',"results":{"%b":{%b}}' % (self.queue.encode(), results))


def post_rate(port: int, connections: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [Post() for _ in range(connections)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def pull_rate(port: int, connections: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [Pull() for _ in range(connections)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def result_rate(port: int, connections: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [PullWithResults() for _ in range(connections)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)
