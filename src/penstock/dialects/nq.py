"""NQ: ordered messages over HTTP, pulled by named receivers that send results. `docs/nq.md` has it in prose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import ceil
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.dialects.wire.http import (
    JSON,
    BodyRule,
    Call,
    Headers,
    Request,
    Response,
    Routes,
    checked_text,
    decoded,
    json_response,
    queue_name,
    segments_of,
    whole_number,
)
from penstock.dialects.wire.json_bodies import text_or_base64
from penstock.dialects.wire.json_bounds import check_keys
from penstock.dialects.wire.subjects import Form, Subject, names_in
from penstock.errors import ErrorCode, Fault, ProtocolError, Reason
from penstock.limits import (
    BATCH_MESSAGES_MAX,
    BODY_BYTES_MAX,
    DELAY_SECONDS_MAX,
    FAIL_SECONDS_MAX,
    POST_MESSAGES_MAX,
    PULL_QUEUES_MAX,
    PULL_SECONDS_MAX,
    REQUEST_KEYS_MAX,
    RESULT_BYTES_MAX,
    RESULTS_MAX,
    RETRIES_MAX,
    RUN_MESSAGES_MIN,
    SEQUENCE_MAX,
)
from penstock.model.access import Verb
from penstock.model.answers import Answer, Drawn, Pulled, Receipt, Receipts, Refused, StoredResult
from penstock.model.commands import FROM_NEXT, AwaitResult, Draw, NewMessage, Publish, PublishInTurn, PublishRun, Pull
from penstock.model.kept_headers import decode_headers, encode_headers
from penstock.model.settings import QueueSettings
from penstock.model.times import nanos_of, rfc3339
from penstock.model.values import Nanos

_TEXT = "text/plain; charset=utf-8"
_RESULT_SECONDS = 60.0
_NO_BODY = BodyRule(0)
_DIGITS = tuple(b"%d" % digit for digit in range(10))

# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────

_Wait = Annotated[float, Meta(ge=0, le=PULL_SECONDS_MAX)]


class _Post(Struct, forbid_unknown_fields=True):
    """Most posts: only strings."""

    messages: dict[str, list[str]]
    sender: str = ""


_NO_TAG = Raw()


class _Special(Struct, forbid_unknown_fields=True):
    message: str
    tag: Raw = _NO_TAG  # As it was written: a number keeps its digits.
    delay: Annotated[float, Meta(ge=0, le=DELAY_SECONDS_MAX)] | UnsetType = UNSET


class _MixedPost(Struct, forbid_unknown_fields=True):
    messages: dict[str, list[str | _Special]]
    sender: str = ""


class _Wanted(Struct, forbid_unknown_fields=True):
    start: Annotated[int, Meta(ge=FROM_NEXT, le=SEQUENCE_MAX)] = 0
    max: Annotated[int, Meta(ge=1, le=BATCH_MESSAGES_MAX)] = 1
    retry_num: Annotated[int, Meta(ge=0, le=RETRIES_MAX)] | UnsetType = UNSET
    fail_timeout: Annotated[float, Meta(ge=0.001, le=FAIL_SECONDS_MAX)] | UnsetType = UNSET


class _Pull(Struct, forbid_unknown_fields=True):
    receiver: str
    timeout: _Wait | UnsetType = UNSET
    queues: Annotated[dict[str, _Wanted], Meta(max_length=PULL_QUEUES_MAX)] = {}
    results: dict[str, dict[str, str]] = {}


_decode_post = msgspec.json.Decoder(_Post).decode
_decode_mixed_post = msgspec.json.Decoder(_MixedPost).decode
_decode_pull = msgspec.json.Decoder(_Pull).decode
_decode_tag = msgspec.json.Decoder(str).decode
_convert_wait = partial(msgspec.convert, type=_Wait, strict=False)
_encode_line = msgspec.json.Encoder().encode_lines

# ── Answers ─────────────────────────────────────────────────────────────────────────────────────────────


class _Plain(Struct, gc=False):
    """Most messages: text without a tag."""

    id: int
    sender: str
    message: str
    created_time: str


class PullDefaults(Struct, frozen=True):
    """What a pull that does not say otherwise gets."""

    retry_num: int = 0
    fail_timeout: float = 120.0
    timeout: float = 60.0


class Nq:
    """Requests in, commands out; answers in, responses out."""

    def __init__(
        self, *, settings: QueueSettings, defaults: PullDefaults, empty_status: int, request_bytes_max: int
    ) -> None:
        self._settings = settings  # A post makes queues with these.
        self._defaults = defaults
        self._empty_status = empty_status
        self._body_rule = BodyRule(request_bytes_max)
        self.routes: Routes = {
            (b"post", 1): {b"POST": self._post},
            (b"pull", 1): {b"POST": self._pull},
            (b"v1/results", 4): {b"GET": self._result, b"HEAD": self._result},
        }

    def body_rule(self, method: bytes, _: bytes, __: Headers) -> BodyRule:
        return self._body_rule if method == b"POST" else _NO_BODY

    # ── Post ────────────────────────────────────────────────────────────────────────────────────────────────

    def _post(self, request: Request, _: bytes) -> Call:
        check_keys(request.body, REQUEST_KEYS_MAX)
        post: _Post | _MixedPost = decoded(_decode_any_post, request.body)
        checked_text(post.sender, "sender: a name", 0)
        count = sum(map(len, post.messages.values()))
        if count > POST_MESSAGES_MAX:
            raise ProtocolError(f"messages: at most {POST_MESSAGES_MAX} messages per post, got {count}")
        names = list(post.messages)
        commands: list[Publish | PublishRun] = []
        for name, messages in post.messages.items():
            _check_queue(name, "messages")
            if messages and type(post) is _Post:
                commands.append(self._publish_plain(name, post.messages[name], post.sender))
            elif messages:
                new = [_new_message(name, index, message, post.sender) for index, message in enumerate(messages)]
                commands.append(Publish(name, new, self._settings))
        if not commands:
            raise ProtocolError("messages: a post needs at least one message")
        if len(commands) == 1:
            return Call(commands[0], lambda answer: _render_post(names, commands, (answer,)))
        return Call(PublishInTurn(commands), lambda answer: _render_posts(names, commands, answer))

    def _publish_plain(self, name: str, messages: list[str], sender: str) -> Publish | PublishRun:
        bodies = [message.encode() for message in messages]
        if max(map(len, bodies)) > BODY_BYTES_MAX:
            _refuse_body(name, next(index for index, body in enumerate(bodies) if len(body) > BODY_BYTES_MAX))
        if len(bodies) < RUN_MESSAGES_MIN:
            return Publish(name, [NewMessage(body, _TEXT, 0, sender) for body in bodies], self._settings)
        return PublishRun(name, NewMessage(b"", _TEXT, 0, sender), bodies, self._settings)

    # ── Pull ────────────────────────────────────────────────────────────────────────────────────────────────

    def _pull(self, request: Request, _: bytes) -> Call:
        check_keys(request.body, REQUEST_KEYS_MAX)
        pull = decoded(_decode_pull, request.body)
        checked_text(pull.receiver, "receiver: a name")
        if not pull.queues and not pull.results:
            raise ProtocolError("queues: name a queue, or send results, or both")
        draws, defaults = [], self._defaults
        for name, wanted in pull.queues.items():
            _check_queue(name, "queues")
            retries = defaults.retry_num if wanted.retry_num is UNSET else wanted.retry_num
            fail_timeout = defaults.fail_timeout if wanted.fail_timeout is UNSET else wanted.fail_timeout
            fail_ns = nanos_of(fail_timeout)
            draws.append(Draw(name, wanted.start, wanted.max, retries, fail_ns, leases=wanted.retry_num is UNSET))
        results = [
            (name, _result_id(name, key), _result(name, key, result))
            for name, by_id in pull.results.items()
            for key, result in by_id.items()
        ]
        if len(results) > RESULTS_MAX:
            raise ProtocolError(f"results: at most {RESULTS_MAX} results per pull, got {len(results)}")
        timeout = defaults.timeout if pull.timeout is UNSET else pull.timeout
        wait_ns = nanos_of(timeout) if draws else 0
        command = Pull(pull.receiver, draws, results, wait_ns)
        return Call(command, self._render_pull if draws else _render_results)

    def _render_pull(self, answer: Answer) -> Response:
        if isinstance(answer, Refused):
            return _render_refused_pull(answer)
        assert isinstance(answer, Pulled)
        if answer.drawn:
            away = {queue: None for queue, last in answer.last.items() if last is None}
            found = {drawn.queue: _messages(drawn) for drawn in answer.drawn}
            return Response(200, _encode_line([{"messages": found | away}]), JSON)
        if answer.wrong:
            return _render_wrong(answer)
        return Response(204) if self._empty_status == 204 else json_response(404, answer.last)

    # ── Results ─────────────────────────────────────────────────────────────────────────────────────────────

    def _result(self, request: Request, segment: bytes) -> Call:
        name = queue_name(segments_of(request.target)[2])
        sequence = whole_number(segment, "the id", 1, SEQUENCE_MAX)
        receiver, wait_ns = _result_query(request.query)
        return Call(AwaitResult(name, sequence, receiver, wait_ns), partial(_render_result, sequence))


def _decode_any_post(body: bytes) -> _Post | _MixedPost:
    try:
        return _decode_post(body)
    except msgspec.ValidationError:
        return _decode_mixed_post(body)


class _PostedTo(Struct):
    messages: dict[str, Raw] = {}


class _PulledFrom(Struct):
    queues: dict[str, Raw] = {}
    results: dict[str, Raw] = {}


def posted_to(request: Request) -> Subject:
    """What a post is about that is wrong in something else. It makes the queues that it names."""
    names = names_in(request, _PostedTo)
    return tuple([((Verb.PUBLISH,), name) for name in names.messages]) if names else None


def pulled_from(request: Request) -> Subject:
    names = names_in(request, _PulledFrom)
    return tuple([((Verb.CONSUME,), name) for name in (*names.queues, *names.results)]) if names else None


def _render_post(names: list[str], commands: Sequence[Publish | PublishRun], answers: Sequence[Answer]) -> Response:
    """The ids by queue. With an error: the ids of what was stored before it."""
    ids: dict[str, object] = {name: [] for name in names}
    for command, answer in zip(commands, answers, strict=False):
        if isinstance(answer, Refused):
            stored = {name: ids[name] for name in names if ids[name]}
            sentence = f"messages.{command.queue}: {answer.sentence}"
            return _error(answer.reason, sentence, stored, answer.retry_seconds)
        if isinstance(answer, Receipts):
            ids[command.queue] = list(range(answer.first, answer.first + answer.count))
        else:
            receipts: Sequence[Receipt] = answer  # type: ignore[assignment]
            ids[command.queue] = [receipt.sequence for receipt in receipts]
    return json_response(200, ids)


def _render_posts(names: list[str], commands: Sequence[Publish | PublishRun], answer: Answer) -> Response:
    if isinstance(answer, Refused) and answer.reason is Reason.FORBIDDEN:
        return _refusal(answer)  # It names the queue, which need not be the first one.
    answers: Sequence[Answer] = (answer,) if isinstance(answer, Refused) else answer  # type: ignore[assignment]
    return _render_post(names, commands, answers)


def _messages(drawn: Drawn) -> list[_Plain] | list[dict[str, Any]]:
    times = map(_time, drawn.created)
    if not any(drawn.headers_bytes):
        try:
            texts = [body.decode() for body in drawn.bodies]
            return list(map(_Plain, drawn.sequences, drawn.senders, texts, times))
        except UnicodeDecodeError:
            times = map(_time, drawn.created)
    columns = zip(drawn.sequences, drawn.senders, drawn.headers, drawn.bodies, times, strict=True)
    return [
        {
            "id": sequence,
            "sender": sender,
            **_tag(headers),
            **text_or_base64("message", body),
            "created_time": time,
        }
        for sequence, sender, headers, body, time in columns
    ]


def _tag(headers: bytes) -> dict[str, str]:
    tag = decode_headers(headers).get(b"tag") if headers else None
    return {} if tag is None else {"tag": tag.decode()}


@lru_cache(maxsize=4096)
def _time(nanos: Nanos) -> str:
    return rfc3339(nanos).decode()


def _render_results(answer: Answer) -> Response:
    if isinstance(answer, Refused):
        return _render_refused_pull(answer)
    assert isinstance(answer, Pulled)
    return _render_wrong(answer) if answer.wrong else json_response(200, {})


def _render_wrong(answer: Pulled) -> Response:
    """The results that are not stored. The others are."""
    problems = [f"results.{each.queue}.{each.sequence}: {each.refused.reason.sentence}" for each in answer.wrong]
    sentence = "; ".join(problems)
    if refused := answer.refused:
        return _error(refused.reason, sentence, None, refused.retry_seconds)
    return _error(Fault.BAD_REQUEST, sentence)


def _render_refused_pull(refused: Refused) -> Response:
    if refused.reason is Reason.NO_CURSOR:
        return _error(refused.reason, f"queues.{refused.detail}.start: {refused.reason.sentence}")
    return _refusal(refused)


def _render_result(sequence: int, answer: Answer) -> Response:
    if isinstance(answer, Refused):
        return _refusal(answer)
    if not isinstance(answer, StoredResult):
        return _error(Fault.NO_RESULT, Fault.NO_RESULT.sentence)
    return json_response(200, {"id": sequence, "receiver": answer.receiver, "result": answer.result.decode()})


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=4096)
def _check_queue(name: str, field: str) -> None:
    if name == "_error":
        raise ProtocolError(f"{field}: a queue cannot be named _error; that field is for errors")
    checked_text(name, f"{field}: a queue name")


def _new_message(queue: str, index: int, message: str | _Special, sender: str) -> NewMessage:
    special = _Special(message) if isinstance(message, str) else message
    body = special.message.encode()
    if len(body) > BODY_BYTES_MAX:
        _refuse_body(queue, index)
    headers = b""
    if special.tag is not _NO_TAG:
        tag = _checked_tag(bytes(special.tag), f"messages.{queue}[{index}].tag")
        headers = encode_headers({b"tag": tag})
    delay_ns = None if special.delay is UNSET else nanos_of(special.delay)
    return NewMessage(body, _TEXT, 0, sender, headers=headers, delay_ns=delay_ns)


def _checked_tag(written: bytes, field: str) -> bytes:
    """A string, or the digits of a number as the sender wrote them."""
    if not written.startswith((b'"', b"-", *_DIGITS)):
        raise ProtocolError(f"{field}: a string or a number")
    tag = _decode_tag(written) if written.startswith(b'"') else written.decode()
    checked_text(tag, f"{field}: a tag", 0)
    return tag.encode()


def _refuse_body(queue: str, index: int) -> None:
    raise ProtocolError(f"messages.{queue}[{index}]: a message has at most {BODY_BYTES_MAX} bytes")


def _result_id(queue: str, key: str) -> int:
    _check_queue(queue, "results")
    if key.startswith("0"):
        raise ProtocolError(f"results.{queue}: a message id has no leading zeros")
    return whole_number(key.encode(), f"results.{queue}: a message id", 1, SEQUENCE_MAX)


def _result(queue: str, key: str, text: str) -> bytes:
    result = text.encode()
    if len(result) > RESULT_BYTES_MAX:
        raise ProtocolError(f"results.{queue}.{key}: a result has at most {RESULT_BYTES_MAX} bytes")
    return result


def _result_query(query: bytes) -> tuple[str, Nanos]:
    try:
        given = dict(parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict"))
    except ValueError:
        raise ProtocolError("the query string is not percent-encoded ASCII") from None
    receiver, timeout = given.pop("receiver", ""), given.pop("timeout", _RESULT_SECONDS)
    if given:
        raise ProtocolError(f"{next(iter(given))}: unknown parameter; this path takes receiver, timeout")
    checked_text(receiver, "receiver: a name", 0)
    try:
        return receiver, nanos_of(_convert_wait(timeout))
    except msgspec.ValidationError:
        raise ProtocolError(f"timeout: a number from 0 to {PULL_SECONDS_MAX}") from None


def _refusal(refused: Refused) -> Response:
    return _error(refused.reason, refused.sentence, None, refused.retry_seconds)


def _bad_request(error: ProtocolError) -> Response:
    return _error(error.fault, str(error))


def _error(
    error: ErrorCode, sentence: str, stored: dict[str, object] | None = None, retry_seconds: float = 1
) -> Response:
    """The code is in a header, because the other fields of an answer are names of queues."""
    headers = b"X-Penstock-Code: %b\r\n" % error.code.encode()
    if error.retry or error.status == 503:
        headers += b"Retry-After: %d\r\n" % ceil(retry_seconds)
    return json_response(error.status, {**(stored or {}), "_error": sentence}, headers)


FORM = Form(_refusal, _bad_request)
