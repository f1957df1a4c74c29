"""Targets: documents and expressions. Requests of glovebox and etzel, cron, settings, jobs and Arrow rows."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa

from penstock.broker.services.push_messages import parse_url
from penstock.dialects.etzel import codec as etzel
from penstock.dialects.glovebox import codec as glovebox
from penstock.dialects.native.spark.staged_rows import StagedRows
from penstock.dialects.wire.json_bounds import NOT_JSON
from penstock.errors import ConfigError, ProtocolError
from penstock.limits import SECOND_NS, STAGED_CHUNK_ROWS_MAX
from penstock.model.cron import parse_cron
from penstock.model.settings import QueueSettings
from penstock.server.settings import load
from penstock.worker import payload
from tests.fuzz.target import Target
from tests.support.documented import settings_table
from tests.support.glovebox import fetch, post

_NOW = 1_790_000_000 * SECOND_NS
_ZONES = (UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe"))


# ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────


def _glovebox_json(data: bytes) -> None:
    try:
        request = glovebox.decode_json(data)
    except glovebox.MALFORMED:
        assert 0 <= glovebox.label_in(data) <= glovebox.UINT64_MAX
        return
    assert glovebox.decode_json(msgspec.json.encode(request)) == request


def _glovebox_bincode(data: bytes) -> None:
    try:
        glovebox.decode_bincode(data)
    except glovebox.MALFORMED:
        pass


def _glovebox_seeds() -> Iterator[bytes]:
    yield json.dumps(post(priority=3, notify=["sync", "finish"])).encode()
    yield json.dumps(post([1, 2, 255])).encode()
    yield json.dumps(fetch(block_timeout=1.5, work_timeout=2, sync="write", label=9)).encode()
    yield b'{"type":"finish","queue":"work","sequence":5,"shard":0,"label":1,"response":"sync"}'
    yield b'{"type":"pop","queue":"work","timeout":null,"label":18446744073709551615}'
    yield b'{"type":"create","queue":"new","retries":3,"visibility_timeout":0.5,"message_deduplication":true}'


def _bincode_seeds() -> list[bytes]:
    from tests.dialects.glovebox.test_bincode import REQUESTS

    return [bytes.fromhex(request[0]) for request in REQUESTS.values()]


def _etzel_line(data: bytes) -> None:
    try:
        command = etzel.decode(data)
    except NOT_JSON:
        assert json.loads(etzel.explained(data))["cmd"] == "nok"
        return
    assert etzel.decode(etzel.encode(command)) == command
    if isinstance(command, etzel.Auth):
        return
    shown = etzel.in_json(command.qname)
    assert shown is None or json.loads(shown) == command.qname


def _etzel_seeds() -> list[bytes]:
    return [
        b'{"cmd":"PUB","qname":"a","msg":"x","timeout":5,"delay":1.5,"expires":null}',
        b'{"cmd":"ACK","qname":"a","uid":"00000000-0000-8000-8000-000000000000"}',
        *[b'{"cmd":"%b","qname":"a"}' % command for command in (b"SUB", b"FET", b"ISLP")],
        b'{"cmd":"AUTH","token":"t"}',
    ]


# ── Expressions ───────────────────────────────────────────────────────────────────────────────────────────────


def _cron(data: bytes) -> None:
    try:
        cron = parse_cron(data.decode("utf-8", "replace"))
    except ProtocolError:
        return
    for zone in _ZONES:
        tick = cron.next_after(_NOW, zone)
        assert tick is None or tick > _NOW


def _push_url(data: bytes) -> None:
    try:
        endpoint = parse_url(data.decode("utf-8", "replace"))
    except ProtocolError:
        return
    assert endpoint.target.startswith("/")
    assert not {*" \r\n"} & {*endpoint.target, *endpoint.authority}
    assert endpoint.address is None or not endpoint.is_localhost


_SCRATCH = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))


def _settings(data: bytes) -> None:
    """A settings file, and its first line as a flag."""
    file = _SCRATCH / "penstock.toml"
    file.write_bytes(data)
    for flags in ([], [data.partition(b"\n")[0].decode("utf-8", "replace")]):
        try:
            load(None if flags else file, {}, flags, {})
        except ConfigError:
            pass


def _setting_seeds() -> Iterator[bytes]:
    names = [row.split("|")[1].strip(" `") for row in settings_table().splitlines() if row.startswith("| `")]
    yield from [f"{name}=1".encode() for name in names]
    yield b'data = "x"\n[http]\naddress = "127.0.0.1:0"\nidle_seconds = 2.5\n[auth]\ntokens = ["a"]\n'
    yield tomllib.__doc__.encode() if tomllib.__doc__ else b"[a.b]\nc = {}"


# ── Jobs and rows ─────────────────────────────────────────────────────────────────────────────────────────────


def _job(data: bytes) -> None:
    for as_json in (True, False):
        try:
            job = payload.decode(data, as_json=as_json)
            for each in job.then:
                assert payload.decode(payload.encode(each.task, each.args, (each,)), as_json=True).task == each.task
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass


def _job_seeds() -> Iterator[bytes]:
    then = (payload.Next("store", "images", "data", {"deep": [1, None]}, 3),)
    yield payload.encode("resize", {"image": "a.png"}, then)
    yield payload.encode("resize", {"image": "a.png"}, then, "msgpack")
    yield payload.encode("no_arguments", {})


def _staged_rows(data: bytes) -> None:
    try:
        rows = StagedRows(data, trusted=False)
        rows.check()
    except ProtocolError:
        return
    assert rows.count <= STAGED_CHUNK_ROWS_MAX
    row = 0
    while row < rows.count:
        _, following = rows.publish_from(row, 1000, QueueSettings())
        assert row < following <= rows.count
        row = following


def _arrow(columns: dict[str, pa.Array], **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _staged_seeds() -> Iterator[bytes]:
    bodies = pa.array([b"one", b"two", b""])
    queues = pa.array(["a", "a", "b"])
    yield _arrow({"body": bodies, "queue": queues})
    yield _arrow({"body": bodies, "queue": queues.dictionary_encode(), "priority": pa.array([1, None, 3])})
    yield _arrow({"body": bodies, "queue": queues}, compression="zstd")
    maps = pa.array([[("k", "v")], None, []], pa.map_(pa.utf8(), pa.utf8()))
    yield _arrow(
        {
            "body": pa.array(["x", "y", "z"]),
            "topics": pa.array(["a.b\nc", "d", "e"]),
            "key": bodies,
            "object": queues,
            "delay": pa.array([0.5, 1, None]),
            "content_type": queues,
            "headers": maps,
        }
    )


TARGETS = [
    Target("glovebox-json", _glovebox_json, _glovebox_seeds),
    Target("glovebox-bincode", _glovebox_bincode, _bincode_seeds),
    Target("etzel-line", _etzel_line, _etzel_seeds),
    Target(
        "cron", _cron, lambda: [b"*/5 9-17 * jan-mar mon-fri", b"0 0 29 2 *", b"@daily", b"1,2,30-40/3 0 31 11 7"]
    ),
    Target(
        "push-url",
        _push_url,
        lambda: [b"https://[::1]:8443/a?b=c", b"http://user@host/", b"http://h:0", b"http://[v1.x]/"],
    ),
    Target("settings", _settings, _setting_seeds),
    Target("job", _job, _job_seeds),
    Target("staged-rows", _staged_rows, _staged_seeds),
]
