"""One client for each dialect, all with the same three verbs: publish, take, finish.

They are plain sockets, one thread each. What is acknowledged is yielded as the acknowledgements come, so that a
connection that breaks in the middle leaves no doubt about what came before.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from tests.support.broker import Site
from tests.support.http_client import encode_request

LEASE_SECONDS = 5  # The shortest that every dialect allows.
BLOCK_SECONDS = 0.5
READ_SECONDS_MAX = 30.0
READ_BYTES = 1 << 16
RETRIES = 1000  # More than any message needs here.


class Taken(NamedTuple):
    """A message under lease, and what its dialect calls it."""

    body: str
    handle: Any


class Client(Protocol):
    def publish(self, queue: str, bodies: list[str]) -> Iterator[str]:
        """Each body once it is acknowledged."""

    def take(self, queue: str, count: int) -> list[Taken]:
        """Up to that many messages; none after a short wait for some."""

    def finish(self, queue: str, taken: list[Taken]) -> Iterator[tuple[Taken, bool]]:
        """Each message once its finish is answered, and whether it was granted."""

    def close(self) -> None: ...


class MqsClient:
    """Requests one behind the other on one connection."""

    def __init__(self, broker: Site) -> None:
        self._connection = broker.connect(READ_SECONDS_MAX)
        self.close = self._connection.close

    def publish(self, queue: str, bodies: list[str]) -> Iterator[str]:
        requests = [encode_request("POST", f"/messages/{queue}", body=body.encode()) for body in bodies]
        self._connection.send(b"".join(requests))
        for body in bodies:
            answer = self._connection.read_response(to="POST")
            assert answer.status == 201, answer
            yield body

    def take(self, queue: str, count: int) -> list[Taken]:
        headers = {"X-MQS-MAX-MESSAGES": str(count), "X-MQS-MAX-WAIT-TIME": "1"}
        answer = self._connection.request("GET", f"/messages/{queue}", headers)
        assert answer.status in (200, 204), answer
        return [Taken(each.body.decode(), each.header("X-MQS-MESSAGE-ID")) for each in answer.messages()]

    def finish(self, queue: str, taken: list[Taken]) -> Iterator[tuple[Taken, bool]]:
        requests = [encode_request("DELETE", f"/messages/{each.handle}") for each in taken]
        self._connection.send(b"".join(requests))
        for each in taken:
            answer = self._connection.read_response(to="DELETE")
            assert answer.status in (204, 404), answer
            yield each, answer.status == 204


class NqClient:
    """Many messages a request. The receivers of a queue that keeps only what is not finished are workers."""

    lease_seconds = LEASE_SECONDS

    def __init__(self, broker: Site) -> None:
        self._connection = broker.connect(READ_SECONDS_MAX)
        self.close = self._connection.close

    def _ask(self, path: str, **fields: Any) -> tuple[int, Any]:
        answer = self._connection.request("POST", path, body=json.dumps(fields).encode())
        assert answer.status in (200, 404), answer
        return answer.status, answer.json()

    def publish(self, queue: str, bodies: list[str]) -> Iterator[str]:
        _, answer = self._ask("/post", sender="torture", messages={queue: bodies})
        assert len(answer[queue]) == len(bodies), answer
        yield from bodies

    def take(self, queue: str, count: int) -> list[Taken]:
        options = {"max": count, "retry_num": RETRIES, "fail_timeout": self.lease_seconds}
        status, answer = self._ask("/pull", receiver="workers", timeout=BLOCK_SECONDS, queues={queue: options})
        if status == 404:
            return []
        return [Taken(each["message"], each["id"]) for each in answer["messages"][queue]]

    def finish(self, queue: str, taken: list[Taken]) -> Iterator[tuple[Taken, bool]]:
        results = {str(each.handle): "done" for each in taken}
        status, answer = self._ask("/pull", receiver="workers", timeout=0, results={queue: results})
        assert status == 200, answer
        for each in taken:
            yield each, True


class LinesClient:
    """Commands one behind the other; answers come in their order, wake-ups in between."""

    def __init__(self, broker: Site) -> None:
        self._socket = socket.create_connection(broker.lines, timeout=READ_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.close = self._socket.close

    def _send(self, commands: list[dict[str, Any]]) -> None:
        self._socket.sendall(b"".join(json.dumps(command).encode() + b"\n" for command in commands))

    def _read(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("closed by the broker")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read_answer(self) -> dict[str, Any]:
        """The next answer that is no wake-up: one may come late, when nobody sleeps any more."""
        while (answer := self._read())["cmd"] == "awk":
            pass
        return answer

    def publish(self, queue: str, bodies: list[str]) -> Iterator[str]:
        about = {"cmd": "PUB", "qname": queue, "timeout": LEASE_SECONDS}
        self._send([about | {"message": body} for body in bodies])
        for body in bodies:
            answer = self._read_answer()
            assert answer["cmd"] == "ok", answer
            yield body

    def take(self, queue: str, count: int) -> list[Taken]:
        self._send([{"cmd": "FET", "qname": queue}] * count)
        answers = [self._read_answer() for _ in range(count)]
        assert all(answer["cmd"] in ("msg", "nomsg") for answer in answers), answers
        taken = [Taken(answer["msg"], answer["uid"]) for answer in answers if answer["cmd"] == "msg"]
        if not taken:
            self._sleep(queue)
        return taken

    def _sleep(self, queue: str) -> None:
        """Until the broker says that there is something, or for a short while."""
        self._send([{"cmd": "ISLP", "qname": queue}])
        answer = self._read_answer()
        assert answer["cmd"] == "okslp", answer
        self._socket.settimeout(BLOCK_SECONDS)
        try:
            self._read()
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(READ_SECONDS_MAX)

    def finish(self, queue: str, taken: list[Taken]) -> Iterator[tuple[Taken, bool]]:
        self._send([{"cmd": "ACK", "qname": queue, "uid": each.handle} for each in taken])
        for each in taken:
            answer = self._read_answer()
            assert (answer["cmd"], answer["uid"]) == ("okack", each.handle), answer
            yield each, True


class WebSocketClient:
    """Many labelled requests in flight; answers in any order. The framing is that of an independent library."""

    def __init__(self, broker: Site) -> None:
        host, port = broker.http
        self._socket = socket.create_connection(broker.http, timeout=READ_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.close = self._socket.close
        self._protocol = ClientProtocol(parse_uri(f"ws://{host}:{port}/connect/"))
        self._protocol.send_request(self._protocol.connect())
        self._answers: list[dict[str, Any]] = []
        try:
            self._flush()
            hello = self._read()
            assert hello["type"] == "hello", hello
        except BaseException:
            self.close()  # A worker that is killed may have accepted it.
            raise

    def _flush(self) -> None:
        self._socket.sendall(b"".join(self._protocol.data_to_send()))

    def _send(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            self._protocol.send_text(json.dumps(request).encode())
        self._flush()

    def _read(self) -> dict[str, Any]:
        while not self._answers:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("closed by the broker")
            self._protocol.receive_data(data)
            self._answers = [json.loads(bytes(each.data)) for each in self._texts()][::-1]
            self._flush()  # A ping has been answered.
        return self._answers.pop()

    def _texts(self) -> list[Frame]:
        texts = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                texts.append(event)
            else:
                closing = isinstance(event, Frame) and event.opcode is Opcode.CLOSE
                assert not closing, f"the broker closed the WebSocket: {event}"
        assert self._protocol.handshake_exc is None, self._protocol.handshake_exc
        return texts

    def publish(self, queue: str, bodies: list[str]) -> Iterator[str]:
        about = {"type": "post", "queue": queue, "priority": 0, "notify": ["sync"]}
        self._send([about | {"label": label, "message": body} for label, body in enumerate(bodies)])
        for _ in bodies:
            answer = self._read()
            assert (answer["type"], answer.get("notice")) == ("notice", "sync"), answer
            yield bodies[answer["label"]]

    def take(self, queue: str, count: int) -> list[Taken]:
        about = {"type": "fetch", "queue": queue, "block_timeout": BLOCK_SECONDS, "work_timeout": LEASE_SECONDS}
        self._send([about | {"label": label, "sync": "sync"} for label in range(count)])
        answers = [self._read() for _ in range(count)]
        assert all(answer["type"] in ("message", "nomessage") for answer in answers), answers
        messages = [answer for answer in answers if answer["type"] == "message"]
        return [Taken(answer["body"], (answer["sequence"], answer["shard"])) for answer in messages]

    def finish(self, queue: str, taken: list[Taken]) -> Iterator[tuple[Taken, bool]]:
        requests = []
        for label, each in enumerate(taken):
            sequence, shard = each.handle
            about = {"type": "finish", "queue": queue, "label": label, "response": "sync"}
            requests.append(about | {"sequence": sequence, "shard": shard})
        self._send(requests)
        for _ in taken:
            answer = self._read()
            granted = answer["type"] == "notice"
            assert granted or answer.get("code") == "NoObject", answer
            yield taken[answer["label"]], granted


CLIENTS: dict[str, type[MqsClient | NqClient | LinesClient | WebSocketClient]] = {
    "mqs": MqsClient,
    "websocket": WebSocketClient,
    "lines": LinesClient,
    "nq": NqClient,
}
