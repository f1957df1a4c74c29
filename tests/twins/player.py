"""Plays programs on one twin, and notes what is answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct, field, structs
from websockets.exceptions import ConnectionClosed

from tests.support.http_client import Connection, Response
from tests.support.line_client import LineClient
from tests.support.raw_client import RawClient
from tests.support.ws_client import WsClient
from tests.twins.differences import CUT_OFF
from tests.twins.plain import Known
from tests.twins.programs import ADMIN, GUEST, PART, Back, Hang, Http, Say, Step, Watch

MARKS = "marks"  # A queue where the ends of steps are marked.
_PATHS = {"etzel": "/connect", "glovebox": "/connect/"}


class Twin(Protocol):
    """A broker, or several that serve the same queues."""

    tokens: dict[str, str]  # By who shows them.

    def connect(self) -> Connection: ...

    def connect_lines(self) -> LineClient: ...

    def connect_websocket(self, path: str, token: str) -> WsClient: ...

    def pass_time(self, seconds: float) -> None:
        """For all twins."""

    def hang(self, step: Hang) -> None: ...

    def is_away(self, queue: str) -> bool:
        """Whether the process that has it stands still."""

    def back(self) -> None: ...

    def has_come(self, socket: Any) -> bool:
        """Whether there is something to read."""

    def until(self, condition: Callable[[], bool]) -> None:
        """Look until it holds, or it is unlikely that it ever will."""


class Seen(Struct):
    """What a step has led to, without ids and times."""

    answer: Any = None
    heard: dict[str, list[Any]] = field(default_factory=dict)  # So far, by conversation or waiting connection.
    state: dict[str, Any] = field(default_factory=dict)  # Of its queues, if they can be seen.


class Player:
    def __init__(self, twin: Twin, stamp: str) -> None:
        self._twin, self._stamp = twin, stamp
        self._known = Known(stamp)
        self._connections: dict[str, Connection] = {}
        self._conversations: dict[str, LineClient | WsClient] = {}
        self._asked_last: Http | None = None
        self._asked: dict[str, str] = {}  # The method of the request that waits on a connection.
        self._queues: dict[tuple[str, int], str] = {}  # By conversation and label.
        self._heard: dict[str, list[Any]] = {}
        self._turn = 0
        self.is_hanging = False  # A process stands still: what others have cannot be seen.

    def close(self) -> None:
        for client in (*self._connections.values(), *self._conversations.values()):
            client.close()

    def play(self, step: Step) -> Seen:
        seen = Seen(heard=self._heard)
        if isinstance(step, Http):
            step = self._asked_last = self._filled(step)
        if isinstance(step, Hang):
            self._hang(step)
        elif isinstance(step, Back):
            self._twin.back()
            self.is_hanging = False
        elif isinstance(step, Watch):
            seen.answer = self._watch(step)
        elif isinstance(step, Http) and step.on:
            self._begin(step)
        elif isinstance(step, Http):
            seen.answer = self._known.response(self._request(step))
        elif isinstance(step, Say):
            self._say(step)
        if self._conversations or self._asked:
            self._end_step()
        if not self.is_hanging:
            self._look(seen)
        return seen

    def _hang(self, step: Hang) -> None:
        """Who was connected to it connects to another one."""
        self.close()
        self._connections.clear()
        self.is_hanging = True
        self._twin.hang(step)

    def is_unavailable(self, step: Step, seen: Seen) -> bool:
        """Whether nothing was done, because the process that had to do it stands still."""
        if not isinstance(step, Http) or step.target == "/health" or seen.answer["status"] != 503:
            return False
        pulled = step.body.get("queues") if step.target == "/pull" and isinstance(step.body, dict) else None
        return not pulled or "results" in step.body or all(map(self._twin.is_away, pulled))

    def look_again(self, step: Step, seen: Seen) -> None:
        """Something may have been under way. The same is asked as before, whatever the twin has shown since."""
        if isinstance(step, Http) and _is_look(step) and self._asked_last:
            seen.answer = self._known.response(self._request(self._asked_last))
        self._look(seen)

    def _look(self, seen: Seen) -> None:
        seen.state = self._state()
        self._hear()

    # ── Requests ────────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, step: Http) -> Response:
        """On two connections in turn, which may end at different workers."""
        self._known.is_log = step.target.startswith("/v1/events")
        self._turn += 1
        name = f"{self._turn % 2}"
        if name not in self._connections:
            self._connections[name] = self._twin.connect()
        connection = self._connections[name]
        self._send(connection, step)
        try:
            response = connection.read_response(to=step.method)
        except TimeoutError:
            response = _no_answer("it did not come")
        except ConnectionError:
            response = _no_answer(CUT_OFF)
        if (response.header("Connection") or "").lower() == "close":
            self._connections.pop(name).close()
        return response

    def _send(self, connection: Connection, step: Http) -> None:
        headers, body = dict(step.headers), step.body
        if step.who != GUEST:
            headers["Authorization"] = f"Bearer {self._twin.tokens[step.who]}"
        if body is not None and not isinstance(body, str):
            headers.setdefault("Content-Type", "application/json")
        connection.send_request(step.method, step.target, headers, None if body is None else _encoded(body))

    def _filled(self, step: Http) -> Http:
        """With what it refers to."""
        body = step.body if isinstance(step.body, str) else self._known.fill_all(step.body)
        return structs.replace(step, target=self._known.fill(step.target), body=body)

    def _begin(self, step: Http) -> None:
        if step.on in self._asked:
            return  # It still waits.
        if step.on not in self._connections:
            self._connections[step.on] = self._twin.connect()
            self._connections[step.on].request("GET", "/health")  # Now it is accepted.
        self._asked[step.on] = step.method
        self._send(self._connections[step.on], step)

    def _watch(self, step: Watch) -> Any:
        headers = {"Authorization": f"Bearer {self._twin.tokens[ADMIN]}"}
        with self._twin.connect() as follower:
            head = follower.begin(f"/v1/events?queue={step.queue}&follow=true&from=latest", headers)
            if head.status != 200:
                return head.status
            self._request(Http(ADMIN, "POST", f"/messages/{step.queue}", "watched"))
            for _ in range(30):
                self._request(Http(ADMIN, "POST", f"/messages/{step.busy}", "busy"))
                self._twin.pass_time(0.01)
            seen = b""
            while self._can_hear(follower):
                seen += follower.read_chunk()
        return seen.count(b'"watched"')

    # ── Conversations ───────────────────────────────────────────────────────────────────────────────────────

    def _say(self, step: Say) -> None:
        client = self._conversations.get(step.on) or self._open(step.on)
        said = _encoded(step.what if isinstance(step.what, str) else self._known.fill_all(step.what))
        if isinstance(step.what, dict) and isinstance(step.what.get("label"), int):
            self._queues[step.on, step.what["label"]] = str(step.what.get("queue"))
        if isinstance(client, LineClient):
            client.send(said + b"\n")
        else:
            client.say_raw((said, False))

    def _open(self, name: str) -> LineClient | WsClient:
        kind, _, who = name.partition(" ")
        token = self._twin.tokens[PART if who == PART else ADMIN]
        if kind == "lines":
            client: LineClient | WsClient = self._twin.connect_lines()
            client.say({"cmd": "AUTH", "token": token})
        else:
            client = self._twin.connect_websocket(_PATHS[kind], token)
        if kind != "etzel":
            client.hear()  # The greeting, or the answer to the token.
        self._conversations[name] = client
        return client

    def _hear(self) -> None:
        """What has come for those who wait."""
        for name, client in list(self._conversations.items()):
            while name in self._conversations and self._can_hear(client):
                self._heard.setdefault(name, []).append(self._next_frame(name, client))
        for name, method in list(self._asked.items()):
            if self._can_hear(self._connections[name]):
                response = self._connections[name].read_response(to=method)
                del self._asked[name]
                self._heard.setdefault(name, []).append(self._known.response(response))
                if (response.header("Connection") or "").lower() == "close":
                    self._connections.pop(name).close()

    def _can_hear(self, client: RawClient | WsClient) -> bool:
        if isinstance(client, WsClient):
            if not client.has_more() and self._twin.has_come(client._socket):
                client.take_in()
            return client.has_more()
        return client.has_more() or self._twin.has_come(client._socket)

    def _next_frame(self, name: str, client: LineClient | WsClient) -> Any:
        try:
            return self._frame(name, client.hear())
        except (ConnectionError, ConnectionClosed) as closed:
            self._conversations.pop(name).close()
            return f"closed: {closed}"

    def _frame(self, name: str, frame: Any) -> Any:
        if isinstance(frame, dict) and frame.get("type") == "message" and not frame["finished"]:
            self._known.note_place(self._queues.get((name, frame["label"]), ""), frame["sequence"], frame["shard"])
        return self._known.value(frame)

    # ── State ───────────────────────────────────────────────────────────────────────────────────────────────

    def _state(self) -> dict[str, Any]:
        """The queues of this program."""
        answer = self._request(Http(ADMIN, "GET", "/v1/queues?limit=1000"))
        queues = answer.json().get("queues", [])
        return {each["name"]: self._known.value(each) for each in queues if each["name"].endswith(f"-{self._stamp}")}

    def _end_step(self) -> None:
        """One process has then said all that it had to say: it reads what was sent before the first of these requests
        when it reads the second, and commits that later."""
        self._request(Http(GUEST, "GET", "/health"))
        self._request(Http(ADMIN, "POST", f"/messages/{MARKS}", "a step has ended"))
        self._request(Http(GUEST, "GET", "/health"))

    def clean_up(self) -> None:
        """Leave nothing behind that others would see."""
        for kind in ("schedules", "queues", "channels"):
            found = self._request(Http(ADMIN, "GET", f"/v1/{kind}?limit=1000")).json()[kind]
            for each in [each["name"] for each in found if each["name"].endswith(f"-{self._stamp}")]:
                self._request(Http(ADMIN, "DELETE", f"/v1/{kind}/{each}"))
        for target in (f"/v1/tokens/t-{self._stamp}", f"/v1/workers/w-{self._stamp}"):
            self._request(Http(ADMIN, "DELETE", target))


def _encoded(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _no_answer(what: str) -> Response:
    return Response(0, "", [("Connection", "close")], what.encode())


def _is_look(step: Http) -> bool:
    """Whether it changes nothing, so that it can be asked again: a receive does change something."""
    path = step.target.partition("?")[0]
    if path == "/v1/wait":
        return not step.on
    return (
        step.method in ("GET", "HEAD")
        and not step.on
        and not path.startswith("/messages/")
        and path[-9:] != "/messages"
    )
