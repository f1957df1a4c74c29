"""Publishing in the native API: to topics or to one queue, as JSON documents or as plain bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.dialects.native.parameters import Given, number, parameters, seconds, values_of
from penstock.dialects.native.queue_document import checked_topic
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
    not_found,
    queue_name,
    refusal,
    segments_of,
    too_many_messages,
)
from penstock.dialects.wire.json_bodies import given_bytes
from penstock.dialects.wire.json_bounds import longer_than
from penstock.dialects.wire.subjects import Subject
from penstock.errors import Fault, ProtocolError
from penstock.ids import MessageIds
from penstock.limits import (
    BATCH_MESSAGES_MAX,
    BODY_BYTES_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    INT32_MAX,
    KEY_BYTES_MAX,
    TOPICS_MAX,
    UINT32_MAX,
)
from penstock.model.access import Access
from penstock.model.answers import Answer, Published, Refused, Repeated
from penstock.model.commands import NewMessage, PublishOnce, PublishTopics
from penstock.model.header_values import OCTETS, checked_media_type, content_type_of
from penstock.model.kept_headers import checked_headers, encode_headers
from penstock.model.message_fields import MESSAGE_FIELDS
from penstock.model.permissions import needs_of
from penstock.model.settings import QueueSettings
from penstock.model.times import nanos_of
from penstock.model.values import Nanos

_TYPES = {"text": "text/plain; charset=utf-8", "json": "application/json", "bytes": OCTETS}
# With these content types and no query, a body is a document. curl sends the last one by itself.
_DOCUMENTS = (b"", b"application/json", b"application/x-www-form-urlencoded")

_Delay = Annotated[float, Meta(ge=0, le=INT32_MAX)]
_Lifetime = Annotated[float, Meta(gt=0, le=INT32_MAX)]


_NOTHING: Mapping[str, str] = {}


class GivenMessage(Struct, forbid_unknown_fields=True):
    """A message as a client writes it, without the fields in `message_fields.py`."""

    topics: list[str] = []
    object: str = ""
    key: str = ""
    message: Raw = Raw()
    message_base64: str | UnsetType = UNSET
    mimeType: str = ""  # noqa: N815 - as the document has it.
    sender: str = ""
    priority: Annotated[int, Meta(ge=0, le=UINT32_MAX)] = 0
    delay: _Delay | None = None
    expires: _Lifetime | None = None
    headers: dict[str, str] = {}


_Given = TypeVar("_Given", bound=GivenMessage)


def with_message_fields(kind: type[_Given]) -> type[_Given]:
    fields = [(field.name, field.type, "") for field in MESSAGE_FIELDS.values()]
    return cast("type[_Given]", msgspec.defstruct(kind.__name__, fields, bases=(kind,), forbid_unknown_fields=True))


MessageDocument = with_message_fields(GivenMessage)
_values_of = attrgetter(*MESSAGE_FIELDS)
_NO_VALUES = _values_of(MessageDocument())


def message_fields(document: GivenMessage) -> Mapping[str, Any]:
    """Those in `message_fields.py` that the client has given."""
    return {name: value for name in MESSAGE_FIELDS if (value := getattr(document, name)) != ""}


def describe(whole: dict[str, Any]) -> None:
    """Add the fields in `message_fields.py` to OpenAPI: where a message is given, and where it is shown. No header
    has the name of one."""
    schemas = whole["components"]["schemas"]
    for path in ("/v1/publish", "/v1/queues/{queue_name}/messages"):
        whole["paths"][path]["post"]["parameters"] += [
            {
                "name": field.name,
                "in": "query",
                "description": field.sentence,
                "schema": {"type": "string", "maxLength": field.schema["maxLength"]},
            }
            for field in MESSAGE_FIELDS.values()
        ]
    for name in ("TopicMessage", "QueueMessage"):
        given = {field.name: field.schema | {"description": field.sentence} for field in MESSAGE_FIELDS.values()}
        schemas[name]["properties"] |= given
    for name in ("NativeEvent", "HeldMessage", "MessageDocument", "TakenMessage"):
        schemas[name]["properties"] |= {field: {"type": "string"} for field in MESSAGE_FIELDS}
    for name in ("TopicMessage", "QueueMessage", "ScheduleSettings", "ScheduleChanges", "Schedule"):
        schemas[name]["properties"]["headers"]["propertyNames"]["not"] = {"enum": [*MESSAGE_FIELDS]}


_decode_one = msgspec.json.Decoder(MessageDocument).decode
_decode_many = msgspec.json.Decoder(list[MessageDocument]).decode  # type: ignore[valid-type]
_are_too_many = longer_than(BATCH_MESSAGES_MAX)
_encode_line = msgspec.json.Encoder().encode_lines


class _Receipt(Struct, gc=False):
    id: str
    state: str
    queues: tuple[str, ...]
    channels: tuple[str, ...]


class Idempotency(NamedTuple):
    """How long an idempotency key is known, and how many are."""

    lifetime_ns: Nanos
    keys_max: int


def rendered(ids: MessageIds, access: Access, answer: Answer, *, alone: bool) -> Response:
    """What a publish is answered with: where each message is, as far as the client sees it. `alone`: one document, no
    list."""
    if isinstance(answer, Refused):
        return refusal(answer)
    headers = JSON
    if isinstance(answer, Repeated):
        answer, headers = answer.published, JSON + b"Idempotent-Replay: true\r\n"
    make = ids.make
    receipts = [
        _Receipt(
            make(each.queue, each.sequence).decode(),
            each.state,
            each.queues,
            each.channels if access.sees_all else tuple(filter(access.sees, each.channels)),
        )
        for each in cast("Sequence[Published]", answer)
    ]
    return Response(201, _encode_line(receipts if alone else [receipts]), headers)


class Publishing:
    """Requests in, commands out; answers in, responses out."""

    def __init__(
        self, ids: MessageIds, settings: QueueSettings, request_bytes_max: int, idempotency: Idempotency
    ) -> None:
        self._ids = ids
        self._settings = settings  # A publish makes queues with these.
        self._idempotency = idempotency
        self._body_rule = BodyRule(request_bytes_max)
        self.routes: Routes = {
            (b"v1/publish", 2): {b"POST": self._publish},
            (b"v1/queues", 4): {b"POST": self._publish_to_queue},
        }

    def body_rule(self, _: bytes, __: bytes, ___: Headers) -> BodyRule:
        return self._body_rule

    def _publish_to_queue(self, request: Request, segment: bytes) -> Response | Call:
        if segment != b"messages":
            return not_found(request)
        return self._publish(request, segment, queue_name(segments_of(request.target)[2]))

    def _publish(self, request: Request, _: bytes, queue: str = "") -> Response | Call:
        """Publish to the queues that the topics name, or only to `queue`."""
        if not _is_document(request):
            message = _without_topics(_from_parameters(request), queue)
            return self._call(request, PublishTopics((message,), self._settings, queue), alone=True)
        alone = not request.body.lstrip().startswith(b"[")
        if not alone and _are_too_many(request.body):
            raise too_many_messages()
        documents = [decoded(_decode_one, request.body)] if alone else decoded(_decode_many, request.body)
        if len(documents) > BATCH_MESSAGES_MAX:
            raise too_many_messages(len(documents))
        messages = [
            _without_topics(_from_document(document, index, alone=alone), queue)
            for index, document in enumerate(documents)
        ]
        if not messages:
            return json_response(201, [])
        return self._call(request, PublishTopics(messages, self._settings, queue), alone=alone)

    def _call(self, request: Request, publish: PublishTopics, *, alone: bool) -> Call:
        key = request.headers.get(b"idempotency-key")
        if key is None:
            return Call(publish, self._render(request.access, alone=alone))
        own_key = _key_of(request.access, _checked_key(key))
        once = PublishOnce(publish, own_key, _digest_of(request), *self._idempotency)
        return Call(once, self._render(request.access, alone=alone))

    def _render(self, access: Access, *, alone: bool) -> Callable[[Answer], Response]:
        return lambda answer: rendered(self._ids, access, answer, alone=alone)


class _Named(Struct):
    """The names in a message that may be wrong in something else."""

    topics: list[str] = []
    object: str = ""
    key: str = ""


_decode_named = msgspec.json.Decoder(_Named | list[_Named]).decode


def published_to(request: Request) -> Subject:
    """What a publish to topics is about that is wrong in something else. It makes the queues that it names."""
    if not _is_document(request):
        about, key = (next(iter(values_of(request, name)), "") for name in ("object", "key"))
        named = [_Named(values_of(request, "topic"), about, key)]
    elif _are_too_many(request.body):
        return None
    else:
        try:
            found = decoded(_decode_named, request.body)
        except ProtocolError:
            return None
        named = found if isinstance(found, list) else [found]
    messages = [
        NewMessage(b"", topics=tuple(each.topics), object=each.object, key=each.key.encode()) for each in named
    ]
    return needs_of(PublishTopics(messages, QueueSettings()))


def _is_document(request: Request) -> bool:
    """Whether the body is a document, or several, and not the body of a message."""
    content_type = request.headers.get(b"content-type", b"")
    return not request.query and content_type.partition(b";")[0].strip().lower() in _DOCUMENTS


def _checked_key(key: bytes) -> bytes:
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_BYTES_MAX or not all(0x20 <= byte <= 0x7E for byte in key):
        raise ProtocolError(f"Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_BYTES_MAX} characters of printable ASCII")
    return key


def _key_of(access: Access, key: bytes) -> bytes:
    """The key as the broker knows it: keys of different identities are different, and no key contains a NUL."""
    return b"%b\0%b" % (access.identity.encode(), key) if access.identity else key


def _digest_of(request: Request) -> bytes:
    """The same for requests that ask for the same."""
    parts = (request.target, request.headers.get(b"content-type", b""), request.body)
    return sha256(b"\n".join(parts)).digest()


def _without_topics(message: NewMessage, queue: str) -> NewMessage:
    if queue and message.topics:
        raise ProtocolError("topics are not allowed here; leave them out, or publish to /v1/publish")
    return message


def _from_document(document: GivenMessage, index: int, *, alone: bool) -> NewMessage:
    try:
        return message_of(document)
    except ProtocolError as error:
        raise ProtocolError(str(error) if alone else f"message {index}: {error}", error.fault) from None


def message_of(document: GivenMessage) -> NewMessage:
    """Raises `ProtocolError` for what cannot be published."""
    body, content_type = _body_of(document)
    return _new_message(
        body,
        document.mimeType or content_type,
        document.topics,
        document.object,
        document.key,
        document.sender,
        document.priority,
        document.delay,
        document.expires,
        message_fields(document) if _values_of(document) != _NO_VALUES else _NOTHING,  # Mostly none: this is faster.
        document.headers,
    )


def _body_of(document: GivenMessage) -> tuple[bytes, str]:
    """The body and its content type."""
    given = given_bytes(document.message, document.message_base64, "message")
    if given is None:
        raise ProtocolError("message is missing")
    return given[0], _TYPES[given[1]]


def _from_parameters(request: Request) -> NewMessage:
    names = ("topic", "object", "key", "sender", "priority", "delay", "expires")
    given = parameters(request, *names, *MESSAGE_FIELDS)
    return _new_message(
        request.body,
        content_type_of(request.headers.get(b"content-type", b"")),
        given.get("topic", []),
        _one(given, "object"),
        _one(given, "key"),
        _one(given, "sender"),
        number(given, "priority", 0, UINT32_MAX, 0),
        seconds(given, "delay", INT32_MAX),
        seconds(given, "expires", INT32_MAX, above_0=True),
        {name: value for name in MESSAGE_FIELDS if (value := _one(given, name))},
    )


def _one(given: Given, name: str) -> str:
    return given[name][0] if name in given else ""


def _new_message(
    body: bytes,
    content_type: str,
    topics: list[str],
    about: str,
    key: str,
    sender: str,
    priority: int,
    delay: float | None,
    expires: float | None,
    fields: Mapping[str, Any],
    headers: Mapping[str, str] = _NOTHING,
) -> NewMessage:
    if len(body) > BODY_BYTES_MAX:
        raise ProtocolError(f"a message has at most {BODY_BYTES_MAX} bytes, got {len(body)}", Fault.TOO_LARGE)
    if len(topics) > TOPICS_MAX:
        raise ProtocolError(f"a message has at most {TOPICS_MAX} topics, got {len(topics)}")
    raw_key = key.encode()
    if len(raw_key) > KEY_BYTES_MAX:
        raise ProtocolError(f"key has at most {KEY_BYTES_MAX} bytes, got {len(raw_key)}")
    names = tuple(dict.fromkeys(map(checked_topic, topics)))
    if about:
        checked_text(about, "object")
    elif names:
        about = names[0].partition(".")[0]
    return NewMessage(
        body,
        checked_media_type(content_type, "mimeType"),
        priority,
        checked_text(sender, "sender", 0),
        about,
        names,
        raw_key,
        _kept(headers, fields) if headers or fields else b"",
        None if delay is None else nanos_of(delay),
        None if expires is None else nanos_of(expires) or 1,
    )


def _kept(headers: Mapping[str, str], fields: Mapping[str, Any]) -> bytes:
    own = {MESSAGE_FIELDS[name].key: MESSAGE_FIELDS[name].text(value).encode() for name, value in fields.items()}
    return encode_headers(checked_headers(headers) | own)
