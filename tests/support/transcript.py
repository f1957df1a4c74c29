"""Transcripts: a protocol's behaviour written as data, one TOML file a story, played over real sockets.

A transcript is a list of steps. A step may send a request, and may expect a response:

    about = "What the story shows."

    [[step]]
    name = "a queue is made"
    send = "PUT /queues/${q}"
    json = { retention_timeout = 60, visibility_timeout = 5, message_deduplication = false }
    expect.status = 201
    expect.json_has = { name = "${q}" }

- `on` names the connection (default `main`); a connection is opened when first named and kept to the end.
- A step that sends and expects nothing leaves its answer unread; a later step on the same connection with
  `expect` alone reads it. That is how a long poll waits while another connection publishes.
- `${name}` is a variable: `q` is unique to this run of the transcript, `elsewhere` is a
  queue in another shard, `http` is the address of the broker, `[let]` defines more, and `{ capture = "name" }` in an
  expectation keeps what came.
- Content (a body, a variable) is text, or one of `{ hex = }`, `{ repeat = , times = }`, `{ lines = [] }`
  (joined by CRLF).
- An expected value is exact text, or one of `{ matches = }` (a regular expression for the whole value),
  `{ capture = }` (with `matches`, if given), `{ lists = [] }` (comma-separated, any order),
  `{ absent = true }`, `{ at_least = , at_most = }` (JSON numbers).
- In JSON the text `null` stands for null, which TOML lacks.
- `took` bounds the seconds between sending the request and having its answer.
- `until = true` sends a request again until its answer is as expected. What one connection has sent may take its
  time, if another broker serves the queue: so a story sees that it has arrived before it goes on elsewhere.

A step may speak in lines of JSON instead, on a connection of its own kind:

    [[step]]
    name = "a worker sleeps, and is woken at once"
    on = "worker"
    line = { cmd = "ISLP", qname = "${q}" }
    hear = [{ cmd = "okslp", qname = "${q}" }, { cmd = "awk", qname = "${q}" }]

- `line` is a command, or content that is sent as it is, with a newline. `say` is a list of them, sent in one write.
- `hear` are the lines that must come next, in this order, each with exactly these keys. That nothing else came is
  seen by what the next command hears.

With `connect` a step opens a WebSocket under its name in `on`; from then on what is said and heard there are frames:

    [[step]]
    name = "a client connects"
    connect = "/connect/"
    headers = { Durable-Session = "true" }
    hear = [{ type = "hello", id = { capture = "id" } }]

- Frames are text, or binary where they are `{ hex = }`. `breaks = true` ends a connection without a word.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed

from penstock.broker.shard_map import ShardMap
from tests.support.broker import Site
from tests.support.http_client import Connection, Headers, Response, encode_multipart, find_header
from tests.support.line_client import LineClient
from tests.support.sites import SHARDS
from tests.support.ws_client import WsClient

SHOWN_CHARACTERS_MAX = 300
UNTIL_SECONDS_MAX = 60.0
CONTENT_KEYS = {"hex", "repeat", "times", "lines"}
MATCHER_KEYS = {"matches", "capture", "lists", "absent", "at_least", "at_most"}


class Mismatch(Exception):  # noqa: N818  (it is the outcome of a comparison, told to the reader as such)
    """What came is not what the transcript says."""


class PartSent(msgspec.Struct, forbid_unknown_fields=True):
    body: Any = ""
    headers: dict[str, str] = {}


class PartExpected(msgspec.Struct, forbid_unknown_fields=True):
    body: Any = msgspec.UNSET
    headers: dict[str, Any] = {}


class Expect(msgspec.Struct, forbid_unknown_fields=True):
    status: int
    headers: dict[str, Any] = {}
    body: Any = msgspec.UNSET
    json: Any = msgspec.UNSET
    json_has: Any = msgspec.UNSET
    parts: list[PartExpected] | None = None
    took: dict[str, float] = {}


class Step(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    on: str = "main"
    send: str | None = None
    headers: dict[str, str] = {}
    body: Any = msgspec.UNSET
    json: Any = msgspec.UNSET
    parts: list[PartSent] | None = None
    expect: Expect | None = None
    until: bool = False
    connect: str | None = None
    breaks: bool = False
    line: Any = msgspec.UNSET
    say: list[Any] = []
    hear: list[Any] = []
    took: dict[str, float] = {}
    """With `hear`: the seconds until all of it had come."""


class Transcript(msgspec.Struct, forbid_unknown_fields=True):
    about: str
    step: list[Step]
    let: dict[str, Any] = {}
    settings: list[str] | None = None
    """The story needs a broker of its own, with these settings."""

    @property
    def is_timed(self) -> bool:
        return any(step.took or (step.expect and step.expect.took) for step in self.step)


def load(path: Path) -> Transcript:
    return msgspec.toml.decode(path.read_bytes(), type=Transcript)


def _elsewhere(queue: str) -> str:
    """The name of a queue that is in another shard, if there are several."""
    shards = ShardMap(SHARDS)
    names = (f"{queue}-{number}" for number in count())
    return next(name for name in names if shards.of_name(name) != shards.of_name(queue))


class Player:
    """Plays one transcript against one broker, or against several that serve the same queues."""

    def __init__(self, broker: Site, story: str, talk: str | None = None) -> None:
        """`talk`: the path of a WebSocket where everything is said that would else be lines over TCP."""
        self._broker = broker
        self._talk = talk
        name = f"{story}-{secrets.token_hex(4)}"
        self._variables = {"q": name, "elsewhere": _elsewhere(name), "http": "{}:{}".format(*broker.http)}
        self._connections: dict[str, Connection] = {}
        self._line_clients: dict[str, LineClient | WsClient] = {}
        self._unread: dict[str, list[tuple[str, float]]] = {}

    def play(self, transcript: Transcript) -> None:
        for name, value in transcript.let.items():
            self._variables[name] = self._content(value).decode()
        try:
            for number, step in enumerate(transcript.step, start=1):
                self._play_step(number, step)
        finally:
            for connection in self._connections.values():
                connection.close()
            for client in self._line_clients.values():
                client.close()

    def _play_step(self, number: int, step: Step) -> None:
        if step.connect:
            headers = {name: self._fill(value) for name, value in step.headers.items()}
            self._line_clients[step.on] = WsClient(self._broker.http, step.connect, self._broker.trust, **headers)
        if step.line is not msgspec.UNSET or step.say or step.hear or step.breaks:
            self._play_lines(number, step)
            return
        connection = self._connections.get(step.on)
        if connection is None:
            connection = self._connections[step.on] = self._broker.connect()
            self._unread[step.on] = []
        give_up_at = time.monotonic() + (UNTIL_SECONDS_MAX if step.until else 0)
        while True:
            try:
                self._ask(connection, number, step)
                return
            except Mismatch:
                if time.monotonic() >= give_up_at:
                    raise

    def _ask(self, connection: Connection, number: int, step: Step) -> None:
        if step.send is not None:
            self._send(connection, step)
        if step.expect is None:
            return
        assert self._unread[step.on], f"step {number} ({step.name}) expects an answer to nothing"
        method, sent_at = self._unread[step.on].pop(0)
        try:
            response = connection.read_response(to=method)
        except (OSError, AssertionError) as error:
            raise Mismatch(f"step {number}: {step.name}\n  sent: {step.send}\n  got no answer: {error}") from error
        try:
            self._compare(step.expect, response, time.monotonic() - sent_at)
        except Mismatch as mismatch:
            shown = shorten(response.body.decode("utf-8", "backslashreplace"))
            raise Mismatch(
                f"step {number}: {step.name}\n"
                f"  sent:     {self._fill(step.send or '(earlier)')}\n"
                f"  {mismatch}\n"
                f"  response: {response.status} {response.reason} {dict(response.headers)}\n"
                f"            {shown}"
            ) from None

    def _send(self, connection: Connection, step: Step) -> None:
        assert step.send is not None
        method, target = self._fill(step.send).split(" ", 1)
        headers = {name: self._fill(value) for name, value in step.headers.items()}
        body: bytes | None = None
        if step.body is not msgspec.UNSET:
            body = self._content(step.body)
        elif step.json is not msgspec.UNSET:
            body = json.dumps(self._fill_json(step.json)).encode()
            headers.setdefault("Content-Type", "application/json")
        elif step.parts is not None:
            body = encode_multipart(
                [
                    (
                        {name: self._fill(value) for name, value in part.headers.items()},
                        self._content(part.body),
                    )
                    for part in step.parts
                ]
            )
            headers.setdefault("Content-Type", "multipart/mixed; boundary=penstock-test")
        connection.send_request(method, target, headers, body)
        self._unread[step.on].append((method, time.monotonic()))

    def _play_lines(self, number: int, step: Step) -> None:
        client = self._line_clients.get(step.on)
        if client is None:
            tls = self._broker.trust
            client = (
                WsClient(self._broker.http, self._talk, tls)
                if self._talk
                else LineClient(self._broker.lines, tls=tls)
            )
            self._line_clients[step.on] = client
        said = [step.line, *step.say] if step.line is not msgspec.UNSET else step.say
        began = time.monotonic()
        if isinstance(client, WsClient):
            client.say_raw(*[(self._line(each), is_hex(each)) for each in said])
            if step.breaks:
                client.drop()
        else:
            client.send(b"".join(self._line(each) + b"\n" for each in said))
        heard: list[Any] = []
        try:
            for expected in step.hear:
                heard.append(client.hear())
                if is_hex(expected):
                    self._compare_content(expected, heard[-1], "frame")
                else:
                    self._compare_json(expected, heard[-1], "line", whole=True)
            if step.took:
                self._compare_number(step.took, time.monotonic() - began, "seconds")
        except (OSError, AssertionError, ValueError, ConnectionClosed, Mismatch) as mismatch:
            raise Mismatch(
                f"step {number}: {step.name}\n"
                f"  said:     {show(self._fill_json(said))}\n"
                f"  {mismatch}\n"
                f"  heard:    {show([repr(each) if isinstance(each, bytes) else each for each in heard])}"
            ) from None

    def _line(self, value: Any) -> bytes:
        if isinstance(value, dict) and not value.keys() <= CONTENT_KEYS:
            return json.dumps(self._fill_json(value)).encode()
        return self._content(value)

    def _compare(self, expect: Expect, response: Response, seconds: float) -> None:
        if response.status != expect.status:
            raise Mismatch(f"expected: status {expect.status}\n  got:      {response.status}")
        self._compare_headers(expect.headers, response.headers, "header")
        if expect.body is not msgspec.UNSET:
            self._compare_content(expect.body, response.body, "body")
        if expect.json is not msgspec.UNSET:
            self._compare_json(expect.json, parse_json(response.body), "body", whole=True)
        if expect.json_has is not msgspec.UNSET:
            self._compare_json(expect.json_has, parse_json(response.body), "body", whole=False)
        if expect.parts is not None:
            self._compare_parts(expect.parts, response)
        if expect.took:
            self._compare_number(expect.took, seconds, "seconds to answer")

    def _compare_parts(self, expected: list[PartExpected], response: Response) -> None:
        try:
            parts = response.parts()
        except AssertionError as error:
            raise Mismatch(f"expected: {len(expected)} parts\n  got:      {error}") from None
        if len(parts) != len(expected):
            raise Mismatch(f"expected: {len(expected)} parts\n  got:      {len(parts)}")
        for number, (part, want) in enumerate(zip(parts, expected, strict=True), start=1):
            self._compare_headers(want.headers, part.headers, f"part {number} header")
            if want.body is not msgspec.UNSET:
                self._compare_content(want.body, part.body, f"part {number} body")

    def _compare_headers(self, expected: dict[str, Any], headers: Headers, where: str) -> None:
        for name, want in expected.items():
            try:
                got = find_header(headers, name)
            except AssertionError as error:
                raise Mismatch(str(error)) from None
            self._compare_value(want, got, f"{where} {name}")

    def _compare_content(self, expected: Any, got: bytes, where: str) -> None:
        if is_matcher(expected):
            self._compare_value(expected, got.decode("utf-8", "backslashreplace"), where)
            return
        want = self._content(expected)
        if got != want:
            raise Mismatch(f"expected: {where} {describe(want)}\n  got:      {describe(got)}")

    def _compare_json(self, expected: Any, got: Any, where: str, *, whole: bool) -> None:
        if is_matcher(expected):
            if expected.keys() & {"at_least", "at_most"}:
                self._compare_number(expected, got, where)
            else:
                self._compare_value(expected, got, where)
        elif isinstance(expected, dict):
            self._compare_object(expected, got, where, whole=whole)
        elif isinstance(expected, list):
            if not isinstance(got, list) or len(got) != len(expected):
                raise Mismatch(f"expected: {where} to be a list of {len(expected)}\n  got:      {show(got)}")
            for index, (want, each) in enumerate(zip(expected, got, strict=True)):
                self._compare_json(want, each, f"{where}[{index}]", whole=whole)
        else:
            want = self._fill_json(expected)
            if got != want or type(got) is not type(want):
                raise Mismatch(f"expected: {where} {show(want)}\n  got:      {show(got)}")

    def _compare_object(self, expected: dict[str, Any], got: Any, where: str, *, whole: bool) -> None:
        if not isinstance(got, dict):
            raise Mismatch(f"expected: {where} to be an object\n  got:      {show(got)}")
        expected = {self._fill(key): want for key, want in expected.items()}
        unexpected = got.keys() - expected.keys() if whole else set()
        missing = expected.keys() - got.keys()
        if missing or unexpected:
            raise Mismatch(f"expected: {where} with keys {sorted(expected)}\n  got:      {sorted(got)}")
        for key, want in expected.items():
            self._compare_json(want, got[key], f"{where}.{key}", whole=whole)

    def _compare_number(self, bounds: dict[str, float], got: Any, where: str) -> None:
        is_number = isinstance(got, int | float) and not isinstance(got, bool)
        low, high = bounds.get("at_least", float("-inf")), bounds.get("at_most", float("inf"))
        if not is_number or not low <= got <= high:
            raise Mismatch(f"expected: {where} in [{low}, {high}]\n  got:      {show(got)}")

    def _compare_value(self, expected: Any, got: Any, where: str) -> None:
        """A header, a body as text or a JSON value against exact text or a matcher."""
        if not is_matcher(expected):
            want = self._fill_json(expected)
            if got != want:
                raise Mismatch(f"expected: {where} {show(want)}\n  got:      {show(got)}")
            return
        if expected.get("absent"):
            if got is not None:
                raise Mismatch(f"expected: no {where}\n  got:      {show(got)}")
            return
        if got is None:
            raise Mismatch(f"expected: {where} {show(expected)}\n  got:      none")
        if "lists" in expected and {each.strip() for each in got.split(",")} != set(expected["lists"]):
            raise Mismatch(f"expected: {where} to list {expected['lists']}\n  got:      {show(got)}")
        if "matches" in expected:
            pattern = self._fill(expected["matches"], escape=True)
            if not re.fullmatch(pattern, str(got), re.DOTALL):
                raise Mismatch(f"expected: {where} to match {pattern!r}\n  got:      {show(got)}")
        if "capture" in expected:
            self._variables[expected["capture"]] = str(got)

    def _content(self, value: Any) -> bytes:
        if isinstance(value, str):
            return self._fill(value).encode()
        match value:
            case {"hex": str(digits)}:
                return bytes.fromhex(digits)
            case {"repeat": str(text), "times": int(times)}:
                return self._fill(text).encode() * times
            case {"lines": list(lines)}:
                return "\r\n".join(self._fill(line) for line in lines).encode()
            case _:
                raise AssertionError(f"not content: {value!r}")

    def _fill(self, text: str, *, escape: bool = False) -> str:
        def value(match: re.Match[str]) -> str:
            found = self._variables[match[1]]
            return re.escape(found) if escape else found

        return re.sub(r"\$\{(\w+)\}", value, text)

    def _fill_json(self, value: Any) -> Any:
        if value == "null":
            return None
        if isinstance(value, str):
            return self._fill(value)
        if isinstance(value, dict):
            return {self._fill(key): self._fill_json(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._fill_json(each) for each in value]
        return value


def is_hex(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"hex"}


def is_matcher(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and value.keys() <= MATCHER_KEYS


def parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise Mismatch("expected: a JSON body\n  got:      something else") from None


def show(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False, default=repr))


def describe(content: bytes) -> str:
    return f"({len(content)} bytes) {shorten(repr(content))}"


def shorten(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS_MAX:
        return text
    return f"{text[: SHOWN_CHARACTERS_MAX // 2]} … {text[-SHOWN_CHARACTERS_MAX // 2 :]}"
