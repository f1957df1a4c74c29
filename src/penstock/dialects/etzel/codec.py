"""What etzel clients and the broker say to each other: commands and replies, one JSON object each. `docs/etzel.md`
has them in prose, `/asyncapi.json` for machines."""

from __future__ import annotations

from binascii import b2a_base64
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo

from penstock.decoding import decode_json
from penstock.dialects.wire.http import checked_name
from penstock.dialects.wire.json_bounds import NOT_JSON
from penstock.errors import ProtocolError, Reason
from penstock.limits import DELAY_SECONDS_MAX, INT32_MAX, NAME_BYTES_MAX
from penstock.model.answers import Refused
from penstock.remembering import remembered

TIMEOUT_SECONDS_MIN = 5

# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]  # In characters; `in_json` counts bytes.


class Sub(Struct, tag_field="cmd", tag="SUB", gc=False):
    qname: _Name


class Fet(Struct, tag_field="cmd", tag="FET", gc=False):
    qname: _Name


class Islp(Struct, tag_field="cmd", tag="ISLP", gc=False):
    qname: _Name


class Pub(Struct, tag_field="cmd", tag="PUB", gc=False):
    qname: _Name
    message: str | None = None
    msg: str | None = None
    timeout: Annotated[float, Meta(ge=TIMEOUT_SECONDS_MIN, le=INT32_MAX)] | None = None
    delay: Annotated[float, Meta(ge=0, le=DELAY_SECONDS_MAX)] | None = None
    expires: Annotated[float, Meta(ge=0, le=INT32_MAX)] | None = None


class Ack(Struct, tag_field="cmd", tag="ACK", gc=False):
    qname: _Name
    uid: str


class Del(Ack, tag="DEL", gc=False):
    """The same by another name."""


class Auth(Struct, tag_field="cmd", tag="AUTH", gc=False):
    token: str


EtzelCommand = Pub | Fet | Ack | Del | Islp | Sub | Auth

decode = msgspec.json.Decoder(EtzelCommand).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
encode = msgspec.json.Encoder().encode
FIELDS = {
    str(kind.__struct_config__.tag): msgspec.structs.fields(kind) for kind in (Pub, Fet, Ack, Del, Islp, Sub, Auth)
}


# ── Replies ───────────────────────────────────────────────────────────────────────────────────────────────


def refusal(error: str, **more: str) -> bytes:
    return encode({"cmd": "nok", "err": error, **more})


OK = b'{"cmd":"ok","qname":%b,"uid":"%b"}'
_MESSAGE = b'{"cmd":"msg","qname":%b,"uid":"%b","error_count":%d,"msg":%b}'
_BINARY_MESSAGE = b'{"cmd":"msg","qname":%b,"uid":"%b","error_count":%d,"msg_base64":"%b"}'
NO_MESSAGE = b'{"cmd":"nomsg","qname":%b}'
ACKNOWLEDGED = b'{"cmd":"okack","qname":%b,"uid":%b}'
SUBSCRIBED = b'{"cmd":"oksub","qname":%b}'
MAY_SLEEP = b'{"cmd":"okslp","qname":%b}'
AWAKE = b'{"cmd":"awk","qname":%b}'
ADMITTED = b'{"cmd":"okauth"}'

BAD_JSON = refusal("BAD_JSON")
_BAD_COMMAND = refusal("BAD_CMD")
_NO_QUEUE = refusal("Q_NOT_FOUND")
TOO_LARGE = refusal("TOO_LARGE")
TOO_MANY = refusal("TOO_MANY")
DENIED = refusal("DENIED")


def message(shown: bytes, uid: bytes, errors: int, body: bytes) -> bytes:
    try:
        return _MESSAGE % (shown, uid, errors, encode(body.decode()))
    except UnicodeDecodeError:
        return _BINARY_MESSAGE % (shown, uid, errors, b2a_base64(body, newline=False))


def refused(answer: Refused) -> bytes:
    if answer.reason is Reason.NO_QUEUE:
        return _NO_QUEUE
    more = {"detail": answer.sentence} if answer.detail else {}
    return refusal(answer.reason.name, **more)


@remembered(4096)
def in_json(name: str) -> bytes | None:
    """A queue's name as replies show it; None for what cannot be a name."""
    try:
        return encode(checked_name(name.encode()))
    except ProtocolError:
        return None


def named(frame: bytes) -> tuple[str, str] | None:
    """The command and the queue of a frame that is wrong in something else."""
    try:
        fields = _decode_fields(frame)
        command, name = (_decode_text(fields[field]) for field in ("cmd", "qname"))
    except (KeyError, *NOT_JSON):
        return None
    return (command, name) if in_json(name) else None


def explained(frame: bytes) -> bytes:
    """What is wrong with a frame that could not be decoded as a command. Checks it again, field by field."""
    try:
        fields = _decode_fields(frame)
        command = bytes(fields.get("cmd", b""))
        expected = FIELDS.get(_decode_text(command)) if command.startswith(b'"') else None
        if expected is None:
            return _BAD_COMMAND
        for field in expected:
            if not _fits(field, fields):
                return refusal("BAD_FIELD", field=field.name)
    except NOT_JSON:
        pass
    return BAD_JSON


def _fits(field: FieldInfo, fields: dict[str, msgspec.Raw]) -> bool:
    if field.name not in fields:
        return not field.required
    try:
        decode_json(fields[field.name], field.type)
    except msgspec.ValidationError:
        return False
    return True
