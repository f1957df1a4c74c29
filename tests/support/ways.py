"""All ways to publish and all ways to take, in one table each. Every answer says what became of its messages.

A client is one connection that its thread alone uses. What is answered is yielded as the answers come, so that a
connection that breaks in the middle leaves no doubt about what came before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from tests.support.broker import Site
from tests.support.http_client import Response, encode_multipart, encode_request
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient

LEASE_SECONDS = 30  # Longer than a client needs that is not cut off, and than a shard is away.
WAIT_SECONDS = 0.5
RETRIES = 1000


class Fate(Enum):
    """What became of a message, as an answer says."""

    DONE = "done"
    REFUSED = "refused"  # Nothing was done.
    UNKNOWN = "unknown"
    GONE = "gone"  # There is no such message to finish.


class Taken(NamedTuple):
    body: str
    handle: Any  # What its way calls it. Of what is taken for good: its sequence.


Told = Iterator[tuple[str, Fate]]
Answer = tuple[Fate, list[Taken]]


class Publisher(Protocol):
    def publish(self, queues: Sequence[str], bodies: Sequence[str]) -> Told:
        """Each body with what became of it. The queues: as many as the way can have at once, one at least."""

    def close(self) -> None: ...


class Taker(Protocol):
    def take(self, queue: str, count: int) -> Answer:
        """Up to so many messages, after a short wait for some."""

    def finish(self, queue: str, taken: Sequence[Taken]) -> Iterator[tuple[Taken, Fate]]: ...

    def close(self) -> None: ...


_BY_STATUS = {200: Fate.DONE, 201: Fate.DONE, 204: Fate.DONE, 503: Fate.REFUSED, 504: Fate.UNKNOWN, 404: Fate.GONE}
_BY_CODE = {
    **dict.fromkeys(("unavailable", "UNAVAILABLE", "Unavailable"), Fate.REFUSED),
    **dict.fromkeys(("outcome_unknown", "OUTCOME_UNKNOWN", "OutcomeUnknown"), Fate.UNKNOWN),
    **dict.fromkeys(("no_message", "NoObject"), Fate.GONE),
}


def _fate(answer: Response) -> Fate:
    assert answer.status in _BY_STATUS, answer
    return _BY_STATUS[answer.status]


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────────

Request = tuple[Sequence[str], bytes]  # With the bodies that it publishes.


def _post(target: str, document: Any, **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return encode_request("POST", target, named, body)


def _one_by_one(queues: Sequence[str], bodies: Sequence[str]) -> list[Request]:
    return [([body], _post(f"/messages/{queues[0]}", body.encode())) for body in bodies]


def _multipart(queues: Sequence[str], bodies: Sequence[str]) -> list[Request]:
    data = encode_multipart([({}, body.encode()) for body in bodies])
    return [(bodies, _post(f"/messages/{queues[0]}", data, Content_Type='multipart/mixed; boundary="penstock-test"'))]


def _list_of_a_queue(queues: Sequence[str], bodies: Sequence[str]) -> list[Request]:
    return [(bodies, _post(f"/v1/queues/{queues[0]}/messages", [{"message": body} for body in bodies]))]


def _documents(queues: Sequence[str], bodies: Sequence[str]) -> list[dict[str, Any]]:
    return [{"topics": [queues[number % len(queues)]], "message": body} for number, body in enumerate(bodies)]


def _over_shards(queues: Sequence[str], bodies: Sequence[str]) -> list[Request]:
    return [(bodies, _post("/v1/publish", _documents(queues, bodies)))]


def _with_key(queues: Sequence[str], bodies: Sequence[str]) -> list[Request]:
    return [(bodies, _post("/v1/publish", _documents(queues, bodies), Idempotency_Key=bodies[0]))]


class _OverHttp:
    def __init__(self, site: Site) -> None:
        self._connection = site.connect()
        self.close = self._connection.close


class HttpPublisher(_OverHttp):
    def __init__(self, site: Site, requests: Callable[[Sequence[str], Sequence[str]], list[Request]]) -> None:
        super().__init__(site)
        self._requests = requests

    def publish(self, queues: Sequence[str], bodies: Sequence[str]) -> Told:
        requests = self._requests(queues, bodies)
        self._connection.send(b"".join(data for _, data in requests))
        for some, _ in requests:
            fate = _fate(self._connection.read_response(to="POST"))
            yield from ((body, fate) for body in some)


class NqPublisher(_OverHttp):
    """A post to several queues ends at the first that is refused: the answer has the ids that are stored."""

    def publish(self, queues: Sequence[str], bodies: Sequence[str]) -> Told:
        messages = {queue: list(bodies[number :: len(queues)]) for number, queue in enumerate(queues)}
        messages = {queue: some for queue, some in messages.items() if some}
        answer = self._connection.request("POST", "/post", body=json.dumps({"messages": messages}).encode())
        stored, fate = answer.json(), _fate(answer)
        for queue, some in messages.items():
            yield from ((body, Fate.DONE if queue in stored else fate) for body in some)
            if queue not in stored:
                fate = Fate.REFUSED  # What comes after the first that failed is not begun.


class MqsTaker(_OverHttp):
    def take(self, queue: str, count: int) -> Answer:
        headers = {"X-MQS-MAX-MESSAGES": str(count), "X-MQS-MAX-WAIT-TIME": "1"}
        answer = self._connection.request("GET", f"/messages/{queue}", headers)
        fate = _fate(answer)
        parts = answer.messages() if fate is Fate.DONE else []
        return fate, [Taken(each.body.decode(), each.header("X-MQS-MESSAGE-ID")) for each in parts]

    def finish(self, queue: str, taken: Sequence[Taken]) -> Iterator[tuple[Taken, Fate]]:
        self._connection.send(b"".join(encode_request("DELETE", f"/messages/{each.handle}") for each in taken))
        for each in taken:
            yield each, _fate(self._connection.read_response(to="DELETE"))


class NativeTaker(_OverHttp):
    def take(self, queue: str, count: int) -> Answer:
        target = f"/v1/queues/{queue}/messages?max={count}&wait=1&lease={LEASE_SECONDS}"
        answer = self._connection.request("GET", target)
        fate = _fate(answer)
        documents = answer.json() if fate is Fate.DONE else []
        return fate, [Taken(each["message"], each["id"]) for each in documents]

    def finish(self, queue: str, taken: Sequence[Taken]) -> Iterator[tuple[Taken, Fate]]:
        settled = json.dumps([{"id": each.handle} for each in taken]).encode()
        answer = self._connection.request("POST", "/v1/confirm", body=settled)
        told = answer.json() if answer.status == 200 else [{"code": answer.json()["code"]}] * len(taken)
        for each, one in zip(taken, told, strict=True):
            yield each, _BY_CODE[one["code"]] if "code" in one else Fate.GONE if one["discarded"] else Fate.DONE


class _NqTaker(_OverHttp):
    def _pull(self, queue: str, **fields: Any) -> Response:
        body = {"receiver": "workers", "timeout": WAIT_SECONDS, **fields}
        return self._connection.request("POST", "/pull", body=json.dumps(body).encode())

    def _messages(self, answer: Response, queue: str) -> list[Taken]:
        found = answer.json()["messages"][queue] if answer.status == 200 else None
        return [Taken(each["message"], each["id"]) for each in found or ()]


class NqPopper(_NqTaker):
    """Without retries a message goes to somebody once, and needs no result. Unless that is said, it is leased."""

    def take(self, queue: str, count: int) -> Answer:
        answer = self._pull(queue, queues={queue: {"max": count, "retry_num": 0}})
        return Fate.DONE if answer.status == 404 else _fate(answer), self._messages(answer, queue)


class NqTaker(_NqTaker):
    """Results go with the next pull, which waits for messages."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._next: Answer | None = None  # What came with the answer to results.

    def take(self, queue: str, count: int) -> Answer:
        answer, self._next = self._next or self._taken(queue, self._drawn(queue, count)), None
        return answer

    def _drawn(self, queue: str, count: int, **fields: Any) -> Response:
        drawn = {"max": count, "retry_num": RETRIES, "fail_timeout": LEASE_SECONDS}
        return self._pull(queue, queues={queue: drawn}, **fields)

    def _taken(self, queue: str, answer: Response) -> Answer:
        found = [each._replace(handle=(queue, each.handle)) for each in self._messages(answer, queue)]
        return Fate.DONE if answer.status == 404 else _fate(answer), found

    def finish(self, queue: str, taken: Sequence[Taken]) -> Iterator[tuple[Taken, Fate]]:
        results: dict[str, dict[str, str]] = {}
        for each in taken:
            place, sequence = each.handle
            results.setdefault(place, {})[str(sequence)] = "done"
        answer = self._drawn(queue, len(taken), results=results)
        if answer.status == 400:  # It names those that are not there.
            fates = [_named_wrong(answer, each) for each in taken]
        else:
            self._next = self._taken(queue, answer)
            fates = [self._next[0]] * len(taken)
        yield from zip(taken, fates, strict=True)


def _named_wrong(answer: Response, each: Taken) -> Fate:
    return Fate.GONE if "results.{}.{}:".format(*each.handle) in answer.json()["_error"] else Fate.DONE


# ── Lines ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _OverLines:
    def __init__(self, site: Site) -> None:
        self._lines = LineClient(site.lines)
        self.close = self._lines.close

    def _asked(self, commands: list[dict[str, Any]]) -> Iterator[tuple[Fate, dict[str, Any]]]:
        self._lines.say(*commands)
        for _ in commands:
            answer = self._lines.hear()
            yield _BY_CODE[answer["err"]] if answer["cmd"] == "nok" else Fate.DONE, answer


class LinesPublisher(_OverLines):
    def publish(self, queues: Sequence[str], bodies: Sequence[str]) -> Told:
        about = {"cmd": "PUB", "timeout": LEASE_SECONDS}
        places = [queues[number % len(queues)] for number in range(len(bodies))]
        commands = [about | {"qname": queue, "message": body} for queue, body in zip(places, bodies, strict=True)]
        for body, (fate, _) in zip(bodies, self._asked(commands), strict=True):
            yield body, fate


class LinesTaker(_OverLines):
    def take(self, queue: str, count: int) -> Answer:
        answers = list(self._asked([{"cmd": "FET", "qname": queue}] * count))
        fates = [fate for fate, _ in answers if fate is not Fate.DONE]
        taken = [Taken(answer["msg"], answer["uid"]) for _, answer in answers if answer["cmd"] == "msg"]
        return fates[0] if fates else Fate.DONE, taken

    def finish(self, queue: str, taken: Sequence[Taken]) -> Iterator[tuple[Taken, Fate]]:
        commands = [{"cmd": "ACK", "qname": queue, "uid": each.handle} for each in taken]
        for each, (fate, _) in zip(taken, self._asked(commands), strict=True):
            yield each, fate


# ── WebSocket ─────────────────────────────────────────────────────────────────────────────────────────────────


class _OverWebSocket:
    def __init__(self, site: Site) -> None:
        self._socket = WsClient(site.http)
        self.close = self._socket.drop
        try:
            assert self._socket.hear()["type"] == "hello"
        except BaseException:
            self.close()  # What has accepted it was killed.
            raise

    def _asked(self, requests: list[dict[str, Any]]) -> Iterator[tuple[int, Fate, dict[str, Any]]]:
        """The answers, each with the number of its request, in any order."""
        self._socket.say(*[request | {"label": label} for label, request in enumerate(requests)])
        for _ in requests:
            answer = self._socket.hear()
            yield answer["label"], _BY_CODE[answer["code"]] if answer["type"] == "error" else Fate.DONE, answer


class WebSocketPublisher(_OverWebSocket):
    def publish(self, queues: Sequence[str], bodies: Sequence[str]) -> Told:
        about = {"type": "post", "priority": 0, "notify": ["sync"]}
        posts = [
            about | {"queue": queues[number % len(queues)], "message": body} for number, body in enumerate(bodies)
        ]
        for label, fate, _ in self._asked(posts):
            yield bodies[label], fate


class WebSocketPopper(_OverWebSocket):
    def take(self, queue: str, count: int) -> Answer:
        return self._one({"type": "pop", "queue": queue, "timeout": WAIT_SECONDS})

    def _one(self, request: dict[str, Any]) -> Answer:
        ((_, fate, answer),) = self._asked([request])
        return fate, [Taken(answer["body"], answer["sequence"])] if answer["type"] == "message" else []


class WebSocketTaker(_OverWebSocket):
    def take(self, queue: str, count: int) -> Answer:
        fetch = {"type": "fetch", "queue": queue, "block_timeout": WAIT_SECONDS, "work_timeout": LEASE_SECONDS}
        answers = [(fate, answer) for _, fate, answer in self._asked([fetch] * count)]
        fates = [fate for fate, _ in answers if fate is not Fate.DONE]
        found = [answer for _, answer in answers if answer["type"] == "message"]
        return fates[0] if fates else Fate.DONE, [
            Taken(each["body"], (each["sequence"], each["shard"])) for each in found
        ]

    def finish(self, queue: str, taken: Sequence[Taken]) -> Iterator[tuple[Taken, Fate]]:
        about = {"type": "finish", "queue": queue}
        finishes = [about | {"sequence": each.handle[0], "shard": each.handle[1]} for each in taken]
        for label, fate, _ in self._asked(finishes):
            yield taken[label], fate


# ── The tables ────────────────────────────────────────────────────────────────────────────────────────────────


def _by(requests: Callable[[Sequence[str], Sequence[str]], list[Request]]) -> Callable[[Site], Publisher]:
    return lambda site: HttpPublisher(site, requests)


class ToPublish(NamedTuple):
    connect: Callable[[Site], Publisher]
    queues_max: int = 1  # In one request, or in one go.


PUBLISHING: Mapping[str, ToPublish] = {
    "mqs": ToPublish(_by(_one_by_one)),
    "mqs multipart": ToPublish(_by(_multipart)),
    "native queue": ToPublish(_by(_list_of_a_queue)),
    "native over shards": ToPublish(_by(_over_shards), 6),
    "native with a key": ToPublish(_by(_with_key), 3),
    "nq": ToPublish(NqPublisher, 3),
    "etzel": ToPublish(LinesPublisher, 6),
    "glovebox": ToPublish(WebSocketPublisher, 6),
}
TAKING: Mapping[str, Callable[[Site], Taker]] = {
    "mqs": MqsTaker,
    "native": NativeTaker,
    "nq with retries": NqTaker,
    "etzel": LinesTaker,
    "glovebox fetch": WebSocketTaker,
}


class Popper(Protocol):
    def take(self, queue: str, count: int) -> Answer: ...

    def close(self) -> None: ...


POPPING: Mapping[str, Callable[[Site], Popper]] = {"nq without retries": NqPopper, "glovebox pop": WebSocketPopper}
