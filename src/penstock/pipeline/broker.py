"""An HTTP client for a broker. `docs/native.md` describes the requests."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import socket
import time
from collections.abc import Mapping
from email.message import Message
from itertools import count
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlencode, urlsplit

from penstock.backoff import backoff_ns
from penstock.client.trust import Trust, explain
from penstock.errors import BrokerError, EventsLostError, EventsRemovedError, Fault

_TIMEOUT_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
# How long a request is tried again: while nobody can be reached, and once a broker has answered that it cannot serve
# now. A shard whose broker was killed has none until its lease is over, and another one has read its log.
_UNREACHABLE_SECONDS, _UNAVAILABLE_SECONDS = 10.0, 30.0
_ROUNDS_MIN = 2  # The second follows at once: the broker may have closed an idle connection.
_PAUSE_NS, _PAUSE_NS_MAX = 200_000_000, 3_200_000_000
_PASSING = (429, 502, 503, 504)
_SECOND_NS = 1_000_000_000
_PIECE_BYTES = 1 << 20
_NONE: dict[str, Any] = {}


SYSTEM = Trust()  # The authorities of the system.


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes


class Broker:
    """Sends requests, and repeats them until one is answered: every request must be safe to repeat. If there are
    several addresses, each is tried in turn."""

    def __init__(self, url: str, token: str = "", trust: Trust = SYSTEM) -> None:
        """`url`: an address, or several separated by commas."""
        self._urls = url.split(",")
        self.url = self._urls[0]  # The one in use.
        self._trust = trust
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, Any] = _NONE,
        body: bytes | None = None,
        patient: float = 1.0,
        into: BinaryIO | None = None,
    ) -> Answer:
        """Raises `BrokerError` if the broker refuses the request, or none does what it asks for at any address, for
        `patient` times as long as usual. `into`: a file for the body of the answer, which is too large for memory."""
        problem, began, seconds = "", time.monotonic(), patient * _UNREACHABLE_SECONDS
        for failed in count():
            if failed >= _ROUNDS_MIN * len(self._urls) and time.monotonic() >= began + seconds:
                break
            self._pause(failed)
            target = f"{urlsplit(self.url).path}{path}"
            if parameters:
                target += f"?{urlencode(parameters)}"
            try:
                answer = self._ask(method, target, body, into)
            except (OSError, http.client.HTTPException) as error:
                if explained := explain(error, self.url):
                    raise BrokerError(explained) from None
                problem = f"{self.url} cannot be reached: {getattr(error, 'strerror', None) or repr(error)}"
                if isinstance(error, socket.gaierror) and len(self._urls) == 1:
                    break
                self._turn_to_next()
                continue
            if answer.status < 300:
                return answer
            if answer.status not in _PASSING:
                raise _refusal(self.url, target, answer, has_token=bool(self._headers))
            problem = f"{self.url} does not answer {target}: {answer.status}: {_document(answer).get('error', '')}"
            seconds = patient * _UNAVAILABLE_SECONDS
            if len(self._urls) > 1:
                self._turn_to_next()
        raise BrokerError(problem)

    def _pause(self, failed: int) -> None:
        """Before all addresses are tried again; not before the second time."""
        times, others = divmod(failed, len(self._urls))
        if times > 1 and not others:
            time.sleep(backoff_ns(times - 1, _PAUSE_NS, _PAUSE_NS_MAX, random.random()) / _SECOND_NS)

    def _turn_to_next(self) -> None:
        self.close()
        self.url = self._urls[(self._urls.index(self.url) + 1) % len(self._urls)]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, target: str, body: bytes | None, into: BinaryIO | None) -> Answer:
        connection = self._connection = self._connection or self._connect()
        connection.request(method, target, body, self._headers)
        response = connection.getresponse()
        if into is not None and response.status < 300:
            _save(response, into)
        return Answer(response.status, response.headers, response.read())

    def _connect(self) -> http.client.HTTPConnection:
        """A connection that is there: a machine that is gone is noticed soon, and an answer may take its time."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        connection = http.client.HTTPConnection(host, parts.port, timeout=_CONNECT_SECONDS)
        if parts.scheme == "https":
            context = self._trust.or_environment().context()
            connection = http.client.HTTPSConnection(host, parts.port, timeout=_CONNECT_SECONDS, context=context)
        connection.connect()
        connection.sock.settimeout(_TIMEOUT_SECONDS)
        return connection


def _save(response: http.client.HTTPResponse, file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()
    shutil.copyfileobj(response, file, _PIECE_BYTES)
    if file.tell() != int(response.headers.get("Content-Length", file.tell())):  # The library does not notice it.
        raise http.client.IncompleteRead(b"")


def _refusal(url: str, target: str, answer: Answer, *, has_token: bool) -> Exception:
    document = _document(answer)
    if answer.status == 410 and "earliest" in document:
        return EventsRemovedError(document["earliest"])
    if answer.status == 416:
        return EventsLostError(f"the log at {url} ends at offset {document.get('end')}: {target} is past its end")
    if answer.status == 401 and not has_token:
        return BrokerError(
            f"{url} requires a token: set the option token (on the command line --token or PENSTOCK_TOKEN)"
        )
    if answer.status == 401:
        return BrokerError(f"{url} refuses the token: {document.get('error', answer.status)}")
    if answer.status == 404 and document.get("code", Fault.NOT_FOUND.code) == Fault.NOT_FOUND.code:
        return BrokerError(f"{url} has no {target}: is it a Penstock broker of this version?")
    return BrokerError(f"{url} answers {target} with {answer.status}: {document.get('error', '')}")


def _document(answer: Answer) -> dict[str, Any]:
    """The JSON object in the body, empty if there is none."""
    try:
        document = json.loads(answer.body or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
