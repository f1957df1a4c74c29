"""Requests that survive the loss of a connection: they are sent again until an answer comes or their time is up.

Short requests share one connection and are pipelined on it: their order is kept, also when they are sent again. Each
of the others, which may take long, has a connection to itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from penstock.backoff import backoff_ns
from penstock.client import errors
from penstock.client.connection import Answer, Connection, LostError, Stream
from penstock.client.trust import Trust, explain
from penstock.decoding import decode_json
from penstock.errors import SecretInUrlError
from penstock.limits import SECOND_NS

logger = logging.getLogger("penstock.client")

_PAUSE_FIRST_NS = SECOND_NS // 20
_PAUSE_LONGEST_NS = SECOND_NS
_IDLE_CONNECTIONS_MAX = 16
_LATE_SECONDS_MAX = 2.0
_RETRY_AFTER_SECONDS_MAX = 3600.0
_GATEWAY_TIMEOUT = 504  # The outcome is unknown, to the broker too, or to a proxy before it.
_UNKNOWN_SECONDS = 0.5  # Before such a request is sent again.
_PORTS = {"http": 80, "https": 443}


class Request(NamedTuple):
    """What is asked of the broker. A request that is sent again is the same, to the byte."""

    method: str
    target: str
    body: bytes = b""
    headers: str = ""  # Whole lines.
    pipelined: bool = False  # It takes the broker little time, so others may wait for it.
    repeatable: bool = True  # It may be sent again if its answer is lost.
    when_late: Callable[[Answer], None] | None = None  # Gets an answer that arrives when the caller has gone.


class Reply(NamedTuple):
    answer: Answer
    repeated: bool  # An earlier attempt may have been carried out too.


class _Url:
    """Where the broker is."""

    def __init__(self, url: str) -> None:
        if "@" in url:
            raise SecretInUrlError
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # Such as a port that is none.
            raise _no_address(url) from None
        if parts.scheme not in _PORTS or not host or port == 0:
            raise _no_address(url)
        self.text = url.rstrip("/")
        self.host = host
        self.port = port or _PORTS[parts.scheme]
        self.netloc = parts.netloc
        self.prefix = parts.path.rstrip("/")
        self.secure = parts.scheme == "https"


def _no_address(url: str) -> errors.BadRequest:
    return errors.BadRequest(f"not the address of a broker: {url!r}; use http://HOST:PORT or https://HOST:PORT")


class _Attempts:
    """Counts the attempts in a row that failed, and waits before the next one. The second follows at once."""

    def __init__(self) -> None:
        self.failed = 0
        self.last: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.failed += 1
        self.last = error

    async def pause(self) -> None:
        if self.failed > 1:
            # Chance only spreads clients out: it need not be hard to guess.
            pause_ns = backoff_ns(self.failed - 1, _PAUSE_FIRST_NS, _PAUSE_LONGEST_NS, random.random())
            await asyncio.sleep(pause_ns / SECOND_NS)


class Transport:
    """All connections of one client."""

    def __init__(self, url: str, token: str | None, agent: str, trust: Trust) -> None:
        self._url = _Url(url)
        self._ssl = trust.context() if self._url.secure else None
        lines = [f"Host: {self._url.netloc}", f"User-Agent: {agent}"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        self._lines = "".join(f"{line}\r\n" for line in lines)
        self._shared: Connection | None = None
        self._opening = asyncio.Lock()
        self._shared_attempts = _Attempts()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # That of the first request.

    @property
    def url(self) -> str:
        return self._url.text

    async def ask(self, request: Request, timeout: float | None, since: float | None = None) -> Reply:
        """The broker's answer, whatever its status. Raises `Timeout` or `Unavailable` when the time is up, which
        begins now or at `since`."""
        data = self._encoded(request)
        sending = _Sending(self, request, timeout, since)
        while True:
            with sending.watched():
                async with asyncio.timeout_at(sending.deadline):
                    asking = (
                        self._ask_shared(data, sending) if request.pipelined else self._ask(request, data, sending)
                    )
                    answer = await asking
                    wait = retry_after(answer)
                    if answer.status == _GATEWAY_TIMEOUT and request.repeatable:
                        sending.lost_one, wait = True, _UNKNOWN_SECONDS
                    if wait is None or not sending.has_time_for(wait):
                        return Reply(answer, sending.lost_one)
                    await asyncio.sleep(wait)

    async def open_stream(self, request: Request, timeout: float | None) -> tuple[Connection, Stream]:
        """A connection on which the answer to a request has begun. Who asks must release it."""
        data = self._encoded(request)
        sending = _Sending(self, request, timeout)
        while True:
            with sending.watched():
                async with asyncio.timeout_at(sending.deadline):
                    connection = await self._take(sending.attempts)
                    stream = connection.stream(data)
                    try:
                        await stream.begun
                    except BaseException:
                        self.release(connection)
                        raise
                    return connection, stream

    async def close(self) -> None:
        self.closed = True
        for connection in (*self._idle, *self._busy, *filter(None, [self._shared])):
            connection.close()
        await asyncio.sleep(0)  # Lets those that wait for an answer see that none will come.

    def release(self, connection: Connection) -> None:
        """Keep a connection for later; if it is in the middle of an answer, close it."""
        self._busy.discard(connection)
        if self.closed or not connection.idle or len(self._idle) >= _IDLE_CONNECTIONS_MAX:
            connection.close()
        elif not connection.closed:
            self._idle.append(connection)

    def leave_shared(self) -> None:
        """A request on the shared connection was not answered in time: the next ones go over a new one."""
        if self._shared is not None:
            self._shared.close()

    def describe(self, request: Request) -> str:
        """For people: what was asked of whom."""
        return f"{request.method} {self.url}{request.target.partition('?')[0]}"

    async def _ask(self, request: Request, data: bytes, sending: _Sending) -> Answer:
        connection = await self._take(sending.attempts)
        try:
            sending.sent = True
            answer = connection.send(data)
            try:
                return await asyncio.shield(answer)
            except asyncio.CancelledError:
                if request.when_late and connection.hang_up():
                    await _hand_over(answer, request.when_late)
                raise
        finally:
            self.release(connection)

    async def _ask_shared(self, data: bytes, sending: _Sending) -> Answer:
        # Those who wait for the lock get it in order, and send before they wait again: so their order is kept.
        async with self._opening:
            if self._shared is None or self._shared.closed:
                self._shared = await self._open(self._shared_attempts)
        sending.attempts = self._shared_attempts
        sending.sent = True
        answer = await self._shared.send(data)
        self._shared_attempts.failed = 0
        return answer

    async def _take(self, attempts: _Attempts) -> Connection:
        self._idle = [connection for connection in self._idle if not connection.closed]
        connection = self._idle.pop() if self._idle else await self._open(attempts)
        self._busy.add(connection)
        return connection

    async def _open(self, attempts: _Attempts) -> Connection:
        """A new connection, however many attempts it takes. The caller sets the time limit."""
        loop = asyncio.get_running_loop()
        while True:
            self.check_open()
            await attempts.pause()
            try:
                url = self._url
                return (await loop.create_connection(Connection, url.host, url.port, ssl=self._ssl))[1]
            except OSError as error:
                self.check_trust(error)
                attempts.fail(error)
                if attempts.failed == 2:
                    logger.warning("cannot reach %s: %s; trying again", self.url, error.strerror or error)

    def check_trust(self, error: BaseException | None) -> None:
        """Raises if TLS failed in a way that another attempt does not change."""
        if sentence := explain(error, self.url):
            raise errors.Unavailable(sentence) from None

    def check_open(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise errors.ClientError(
                f"this client of {self.url} belongs to another event loop; make one in each `asyncio.run`"
            )
        if self.closed:
            raise errors.ClientError(f"the client of {self.url} is closed; make a new one")

    def _encoded(self, request: Request) -> bytes:
        self.check_open()
        head = f"{request.method} {self._url.prefix}{request.target} HTTP/1.1\r\n{self._lines}{request.headers}"
        if request.body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(request.body)}\r\n"
        elif request.method in ("POST", "PUT", "PATCH"):
            head += "Content-Length: 0\r\n"
        return head.encode("latin-1") + b"\r\n" + request.body


class _Sending:
    """One request over all its attempts: what is known of them, for the next one and for the error at the end."""

    def __init__(
        self, transport: Transport, request: Request, timeout: float | None, since: float | None = None
    ) -> None:
        self.attempts = _Attempts()
        self.sent = False  # This attempt, or an earlier one.
        self.lost_one = False  # An attempt was sent, and its answer did not arrive.
        self._transport = transport
        self._request = request
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        begin = self._loop.time() if since is None else since
        self.deadline = None if timeout is None else begin + timeout

    def has_time_for(self, seconds: float) -> bool:
        return self.deadline is None or self._loop.time() + seconds < self.deadline

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around one attempt: a lost connection is taken note of, the end of the time is an error for people."""
        try:
            yield
        except LostError as error:
            self._transport.check_open()
            self._transport.check_trust(error.__cause__)
            self.attempts.fail(error)
            self.lost_one = True
            if not self._request.repeatable:
                raise self._given_up("no answer, because the connection was lost") from None
        except TimeoutError:
            if self.sent and self._request.pipelined:
                self._transport.leave_shared()
            raise self._timed_out() from None

    def _timed_out(self) -> errors.ClientError:
        if self.sent:
            return self._given_up(f"no answer within {self._timeout:g} s")
        return errors.Unavailable(
            f"cannot reach {self._transport.url} within {self._timeout:g} s{self._reason}"
            f" ({self._transport.describe(self._request)}). Nothing was sent."
            " Start a broker with `penstock serve`, or give its address as `url=` or in PENSTOCK_URL"
        )

    def _given_up(self, why: str) -> errors.Timeout:
        return errors.OutcomeUnknown(
            f"{why}{self._reason} ({self._transport.describe(self._request)}). The outcome is unknown: the broker may"
            " have carried the request out. Check whether the broker is well, or raise `timeout=`"
        )

    @property
    def _reason(self) -> str:
        last = self.attempts.last
        return f": {getattr(last, 'strerror', None) or last}" if last else ""


async def _hand_over(answer: asyncio.Future[Answer], when_late: Callable[[Answer], None]) -> None:
    try:
        when_late(await asyncio.wait_for(answer, _LATE_SECONDS_MAX))
    except (LostError, TimeoutError):
        pass  # What the broker delivered, if anything, is delivered again when the lease ends.


def retry_after(answer: Answer) -> float | None:
    """How long the broker asks to wait before the same request may succeed."""
    given = answer.headers.get(b"retry-after")
    if answer.status != 503 or given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = 1.0
    return min(max(0.0, seconds), _RETRY_AFTER_SECONDS_MAX)  # In this order it is 0 for what is not a number.


def refusal(answer: Answer, asked: str) -> errors.ClientError:
    """The error for an answer that is not a success."""
    try:
        document: dict[str, Any] = decode_json(answer.body, dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = {"error": answer.body[:200].decode("utf-8", "replace") or "the answer is empty"}
    return errors.refused(answer.status, document, asked, retry_after(answer))
