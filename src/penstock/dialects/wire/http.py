"""HTTP as values: the requests a dialect gets and the responses it gives. The shell has the bytes and sockets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct

from penstock.decoding import in_words
from penstock.dialects.wire.json_bounds import NOT_JSON
from penstock.errors import ErrorCode, EventsRemovedError, Fault, PenstockError, ProtocolError, RequestError
from penstock.limits import BATCH_MESSAGES_MAX, NAME_BYTES_MAX
from penstock.model.access import EVERYTHING, Access
from penstock.model.answers import Answer, Refused
from penstock.model.client import Client, Pending
from penstock.model.commands import Command
from penstock.model.queries import Failed, Query
from penstock.model.streams import Source
from penstock.model.values import has_control_characters

_DIALECTS = {b"queues": "mqs", b"messages": "mqs", b"post": "nq", b"pull": "nq", b"status": "glovebox"}

Headers = dict[bytes, bytes]  # Names in lower case; the last of several wins.


class _Identified(Struct, gc=False, kw_only=True):
    access: Access = EVERYTHING  # Of the client.
    certificate: str = ""  # The name in the certificate that the client shows; empty if it shows none.
    is_identified: bool = False  # Who the client is was decided before, for the same header fields.


class Request(_Identified, gc=False):
    method: bytes
    target: bytes  # Path and query, as they were sent.
    headers: Headers
    body: bytes = b""
    cut: bool = False  # The body was longer than it may be, and the rest was dropped.

    @property
    def address(self) -> str:
        """Of the client, as far as the shell knows it."""
        return ""

    @property
    def holder(self) -> Any:
        """Of the answer, as far as the shell knows it."""
        return None

    @property
    def dialect(self) -> str:
        first = self.target[1:].partition(b"?")[0].partition(b"/")[0]
        return _DIALECTS.get(first, "native")

    @property
    def query(self) -> bytes:
        return self.target.partition(b"?")[2]


class Response(Struct, gc=False):
    status: int
    body: bytes = b""
    headers: bytes = b""  # Header lines, each ended by CRLF.


class Call(Struct, gc=False):
    """A command for the engine, and how to render its answer."""

    command: Command
    render: Callable[[Answer], Response | Stream]


class Calls(Struct, gc=False):
    """Several commands, and how to render their answers, which come in the same order."""

    commands: Sequence[Command]
    render: Callable[[Sequence[Answer]], Response]


class Stream(Struct, gc=False):
    """A response that is sent piece by piece, at the pace of the client. `length`: of the body, if it is known."""

    status: int
    headers: bytes
    source: Source
    length: int | None = None
    endless: bool = False  # Ends when the client closes its side.


class Awaited(Struct, gc=False):
    """A response that is being made elsewhere. `when_ready` is called with what to call with the response, and may
    return what is to know that the client has gone away."""

    when_ready: Callable[[Callable[[Response | Stream], None]], Pending | None]


Rendered = Response | Stream | Awaited
"""What an answer becomes: a response, or one that takes another answer."""


def give(rendered: Rendered, respond: Callable[[Response | Stream], None]) -> None:
    if isinstance(rendered, Awaited):
        rendered.when_ready(respond)
    else:
        respond(rendered)


Later = Callable[[Coroutine[Any, Any, Response | Stream]], Awaited]
"""Answers with what a coroutine returns, however long that takes. An error that it raises is an answer too."""


class Asked(Protocol):
    """Asks a question for the client of a request. Answers with what it is rendered as, or why it has no answer."""

    def __call__(
        self,
        request: Request,
        query: Query,
        render: Callable[[Any], Rendered],
        refused: Callable[[Refused | Failed], Response] = ...,
    ) -> Awaited: ...


Refusal = Callable[[Client, Command], Refused | None]
"""Why a client may not send a command. For what services do for a client; other commands are checked anyway."""

Steps = Generator[Command | Query | None, Any, Response]
"""Makes a response part by part: a part ends by asking for the answer to a command or a question, or for nothing but
a pause."""


class Work(Struct, gc=False):
    """A response that takes long to make. Other requests are served between two parts of it."""

    steps: Steps


# By the first segment of the path and how many there are: what each method does. The last segment comes along.
Routes = dict[tuple[bytes, int], dict[bytes, Callable[[Request, bytes], Response | Call | Calls | Awaited | Work]]]


class BodyRule(Struct, frozen=True):
    """How much body a request may have, and whether more is cut off or refused."""

    bytes_max: int
    cut: bool = False


JSON = b"Content-Type: application/json\r\n"
_TRUNCATED = "Input data was truncated"  # What msgspec says of an empty text too.
_encode_line = msgspec.json.Encoder().encode_lines  # With a newline after it, for those who look at a terminal.


def json_response(status: int, value: object, headers: bytes = b"") -> Response:
    return Response(status, _encode_line([value]), JSON + headers)


_Document = TypeVar("_Document")


def decoded(decode: Callable[[bytes], _Document], body: bytes) -> _Document:
    """The document in a body. Raises `ProtocolError` for a body that `decode` cannot read."""
    try:
        return decode(body)
    except NOT_JSON as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> ProtocolError:
    """What is wrong with a body that cannot be decoded."""
    if isinstance(error, ProtocolError):
        return error
    if isinstance(error, RecursionError):
        return ProtocolError("the JSON is nested too deeply", Fault.BAD_JSON)
    text = str(error)
    fault = Fault.BAD_REQUEST if isinstance(error, msgspec.ValidationError) else Fault.BAD_JSON
    truncated = "the body is empty or ends too early; expected JSON"
    return ProtocolError(truncated if text == _TRUNCATED else in_words(text), fault)


def error_response(error: ErrorCode, detail: str = "", headers: bytes = b"", **more: object) -> Response:
    """An error in the form of mqs and the native API. `more`: facts for programs, beside the code."""
    return _error(error, error.explain(detail), headers, more)


def refusal(refused: Refused) -> Response:
    return _error(refused.reason, refused.sentence, retry_seconds=refused.retry_seconds)


def unauthorized(*, was_shown: bool, reason: str = "") -> Response:
    """A request without a valid token. `was_shown`: it had one (RFC 6750, section 3), and for this `reason`."""
    error = b', error="invalid_token"' if was_shown else b""
    error += b', error_description="%b"' % reason.encode() if reason else b""
    return error_response(Fault.UNAUTHORIZED, headers=b'WWW-Authenticate: Bearer realm="penstock"' + error + b"\r\n")


def check(refused: Refused | None) -> None:
    """Raises `RequestError` if this is a refusal."""
    if refused is not None:
        raise RequestError(refused.reason, refused.detail)


def too_many_messages(count: int | None = None) -> ProtocolError:
    """`count`: None if there are too many to be counted."""
    got = f"got {count}" if count else "got more"
    return ProtocolError(f"at most {BATCH_MESSAGES_MAX} messages per request, {got}", Fault.TOO_LARGE)


def bad_request(error: ProtocolError) -> Response:
    return _error(error.fault, str(error))


def failure(error: PenstockError) -> Response:
    """What a request is answered with if it ends with this error."""
    if isinstance(error, ProtocolError):
        return bad_request(error)
    if isinstance(error, RequestError):
        return _error(error.error, str(error), more=error.facts, retry_seconds=error.retry_seconds)
    if isinstance(error, EventsRemovedError):
        detail = f"the earliest is {error.earliest}"
        return error_response(Fault.EVENTS_REMOVED, detail, earliest=error.earliest)
    return error_response(Fault.UNREADABLE, str(error))


def not_found(request: Request) -> Response:
    return error_response(Fault.NOT_FOUND, request.target.partition(b"?")[0].decode("latin-1"))


def method_not_allowed(allowed: list[bytes]) -> Response:
    methods = b", ".join(allowed)
    detail = f"this path takes {methods.decode()}"
    return error_response(Fault.METHOD_NOT_ALLOWED, detail, b"Allow: " + methods + b"\r\n")


def no_answer(answer: Refused | Failed) -> Response:
    """Why a question has none."""
    if isinstance(answer, Refused):
        return refusal(answer)
    return _error(answer.error, answer.sentence, more=answer.facts, retry_seconds=answer.retry_seconds)


def _error(
    error: ErrorCode,
    sentence: str,
    headers: bytes = b"",
    more: dict[str, object] | None = None,
    retry_seconds: float = 1,
) -> Response:
    if error.retry:
        headers += b"Retry-After: %d\r\n" % ceil(retry_seconds)
    return json_response(error.status, {"error": sentence, "code": error.code, **(more or {})}, headers)


def announced_bytes(headers: Headers) -> int:
    """The length of the body that a request announces. The parser lets digits pass, with any number of zeros before
    them, and blanks after."""
    return int(headers.get(b"content-length", b"").lstrip(b"0") or b"0")


def segments_of(target: bytes) -> list[bytes]:
    """The path of a target, split at each slash, not yet percent-decoded."""
    return target.partition(b"?")[0][1:].split(b"/")


@lru_cache(maxsize=4096)
def queue_name(segment: bytes, what: str = "a queue name") -> str:
    """A name from a path segment, where a `/` of the name is `%2F`. Raises `ProtocolError` for what cannot be one."""
    return checked_name(unquote_to_bytes(segment) if b"%" in segment else segment, what)


def checked_name(raw: bytes, what: str = "a queue name") -> str:
    """A name from its bytes. Raises `ProtocolError` for what cannot be one."""
    try:
        return checked_text(raw.decode(), what)
    except UnicodeDecodeError:
        raise ProtocolError(f"{what} must be UTF-8") from None


@lru_cache(maxsize=4096)
def checked_text(text: str, what: str, bytes_min: int = 1) -> str:
    """A text that can be a name. Raises `ProtocolError` for any other."""
    size = len(text.encode())
    if not bytes_min <= size <= NAME_BYTES_MAX:
        raise ProtocolError(f"{what} has {bytes_min} to {NAME_BYTES_MAX} bytes, got {size}")
    if has_control_characters(text):
        raise ProtocolError(f"{what} must not have control characters")
    return text


def whole_number(text: bytes, what: str, low: int, high: int) -> int:
    """A number within bounds, written in ASCII digits."""
    number = int(text) if text.isdigit() and len(text) <= 19 else -1
    if not low <= number <= high:
        raise ProtocolError(f"{what} must be a whole number from {low} to {high}, got {_shown(text)}")
    return number


def _shown(text: bytes) -> str:
    return repr(text[:_SHOWN_BYTES].decode("latin-1"))


_SHOWN_BYTES = 50
