"""Everything that can be set on a broker, and where it may be set.

A later source overrides an earlier one: the default, the file `penstock.toml`, the environment (`PENSTOCK_*`), `--set
key=value`, a flag of its own. A key that nobody knows is refused in all of them, and so is a value out of its range:
a broker that starts does what its settings say.
"""

from __future__ import annotations

import difflib
import re
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from penstock.dialects.wire.http import has_control_characters
from penstock.errors import ConfigError
from penstock.limits import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    CHANNEL_RETRIES_MAX,
    FAIL_SECONDS_MAX,
    HEADERS_BYTES_MAX,
    HISTORY_KEYS_DEFAULT,
    HISTORY_KEYS_MAX,
    LINE_BYTES_MAX,
    LINE_ENVELOPE_BYTES_MAX,
    NAME_BYTES_MAX,
    NAMES_DEFAULT,
    NAMES_MAX,
    PULL_SECONDS_MAX,
    REQUEST_BODY_BYTES_MAX,
    REQUEST_HEADERS_BYTES_MAX,
    RETRIES_MAX,
    SECOND_NS,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    STAGED_CHUNK_BYTES_MAX,
    UNREAD_BYTES_DEFAULT,
    UNREAD_BYTES_MIN,
)
from penstock.model.settings import QueueSettings, RedrivePolicy

FILE_NAME = "penstock.toml"
VARIABLE_PREFIX = "PENSTOCK_"
CLIENT_VARIABLES = frozenset(("PENSTOCK_LAKE", "PENSTOCK_URL", "PENSTOCK_TOKEN"))  # For commands that are clients.

_SERVICE_LINK = re.compile(r"PENSTOCK_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_DAY_SECONDS = 86_400
_SECONDS_MAX = 100 * 365 * _DAY_SECONDS


class Address(NamedTuple):
    """Where to listen. Port 0 takes any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# ── The settings ──────────────────────────────────────────────────────────────────────────────────────────────


class HostName(str):
    """A name or an address that the broker is reached by."""


class Origin(str):
    """Where a web page comes from, as a browser says it: scheme, host, and the port if it is not the usual one."""


class HttpConfig(Struct, frozen=True, kw_only=True):
    address: Annotated[Address, Meta(description="Where HTTP is served.")] = Address("127.0.0.1", 7843)
    hosts: Annotated[
        tuple[HostName, ...],
        Meta(
            description="Names by which clients may reach a broker without tokens, besides `localhost`, loopback"
            " addresses and the host of `http.address`; `*`: all. Other names in `Host` are answered with 403."
        ),
    ] = ()
    origins: Annotated[
        tuple[Origin, ...],
        Meta(
            description="Web pages that may use the broker, over HTTP and WebSocket, besides its own; `*`: all."
            " Others are answered with 403."
        ),
    ] = ()
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Connections open at once; one more is answered with 503.")
    ] = 10_000
    idle_seconds: Annotated[
        float, Meta(gt=0, le=_DAY_SECONDS, description="How long a connection may rest between two requests.")
    ] = 75.0
    slow_client_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=_DAY_SECONDS,
            description="A request, or a message over WebSocket, must be complete this long after its first byte.",
        ),
    ] = 30.0
    header_bytes_max: Annotated[
        int, Meta(ge=1 << 10, le=1 << 20, description="The header fields of one request, together.")
    ] = REQUEST_HEADERS_BYTES_MAX
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=BODY_BYTES_MAX + HEADERS_BYTES_MAX,
            le=BATCH_BYTES_MAX,
            description="The body of one request: a batch of messages.",
        ),
    ] = REQUEST_BODY_BYTES_MAX
    buffered_bytes_max: Annotated[
        int, Meta(ge=1 << 20, le=1 << 40, description="The bodies of all requests under way, together.")
    ] = 256 << 20


class WsConfig(Struct, frozen=True, kw_only=True):
    origins: Annotated[
        tuple[Origin, ...],
        Meta(description="The old name of `http.origins`: what is listed in either of them counts for both."),
    ] = ()
    ping_seconds: Annotated[
        float,
        Meta(gt=0, le=_DAY_SECONDS, description="A WebSocket silent for this long is pinged, then closed."),
    ] = 30.0


class LinesConfig(Struct, frozen=True, kw_only=True):
    address: Annotated[Address, Meta(description="Where lines of JSON are served over TCP.")] = Address(
        "127.0.0.1", 7844
    )
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Connections open at once; one more is refused.")
    ] = 10_000
    line_bytes_max: Annotated[
        int,
        Meta(
            ge=BODY_BYTES_MAX + LINE_ENVELOPE_BYTES_MAX,
            le=BATCH_BYTES_MAX,
            description="One line; what is longer is skipped and answered with TOO_LARGE.",
        ),
    ] = LINE_BYTES_MAX
    commands_max: Annotated[
        int, Meta(ge=1, le=65_536, description="Commands of one connection under way at once; more wait unread.")
    ] = 512
    buffered_bytes_max: Annotated[
        int, Meta(ge=4 << 20, le=1 << 40, description="All lines that are not complete yet, together.")
    ] = 256 << 20
    unsent_bytes_max: Annotated[
        int,
        Meta(ge=4 << 20, le=1 << 40, description="Replies that one client leaves unread before it is disconnected."),
    ] = 64 << 20
    idle_seconds: Annotated[
        float,
        Meta(gt=0, le=_DAY_SECONDS, description="How long a connection may rest, unless it sleeps for a queue."),
    ] = 3600.0
    slow_client_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=_DAY_SECONDS,
            description="A line must be complete this long after its first byte, and a token shown in this time.",
        ),
    ] = 30.0
    keepalive_seconds: Annotated[
        int, Meta(ge=1, le=7200, description="A client silent for this long is asked by TCP if it is still there.")
    ] = 60


class LogConfig(Struct, frozen=True, kw_only=True):
    segment_bytes: Annotated[
        int, Meta(ge=SEGMENT_BYTES_MIN, le=SEGMENT_BYTES_MAX, description="The size of one file of the log.")
    ] = 16 << 20
    retention_seconds: Annotated[
        int, Meta(ge=0, le=_SECONDS_MAX, description="How long events stay in the Event Log.")
    ] = 7 * _DAY_SECONDS
    retention_bytes: Annotated[
        int,
        Meta(ge=0, le=1 << 60, description="How large the Event Log may grow before its oldest events go sooner."),
    ] = 10 << 30
    snapshot_bytes: Annotated[
        int,
        Meta(
            ge=SEGMENT_BYTES_MIN,
            le=1 << 40,
            description="How much log lies between two snapshots; more if they are large, 24 MiB at most if events"
            " are not kept, because then each snapshot frees space.",
        ),
    ] = 128 << 20


class NamesConfig(Struct, frozen=True, kw_only=True):
    max: Annotated[
        int,
        Meta(
            ge=1,
            le=NAMES_MAX,
            description="Different content types, senders, objects, sets of topics and consumers in use at once;"
            " one more is refused. About 250 bytes of memory each.",
        ),
    ] = NAMES_DEFAULT


class HistoryConfig(Struct, frozen=True, kw_only=True):
    keys_max: Annotated[
        int,
        Meta(
            ge=1,
            le=HISTORY_KEYS_MAX,
            description="Objects and keys that the Object History knows; a message with one more is refused.",
        ),
    ] = HISTORY_KEYS_DEFAULT


class EventsConfig(Struct, frozen=True, kw_only=True):
    readers_max: Annotated[
        int, Meta(ge=0, le=10_000, description="Readers of the Event Log at once; one more is answered with 503.")
    ] = 64
    heartbeat_seconds: Annotated[
        float,
        Meta(gt=0, le=3600, description="How long nothing comes before a follower is told that it still listens."),
    ] = 15.0


class StagingConfig(Struct, frozen=True, kw_only=True):
    bytes_max: Annotated[
        int,
        Meta(
            ge=STAGED_CHUNK_BYTES_MAX,
            le=1 << 40,
            description="Rows of batches that are not in their queues yet; more are answered with 503.",
        ),
    ] = 4 << 30
    lifetime_seconds: Annotated[
        int,
        Meta(ge=1, le=_SECONDS_MAX, description="How long a batch may rest before its rows are dropped uncommitted."),
    ] = 6 * 3600


class LoggingConfig(Struct, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least important lines still logged.")
    ] = "info"
    format: Annotated[
        Literal["auto", "json", "text"],
        Meta(description="A JSON object per line, or text to read; `auto`: text on a terminal, else JSON."),
    ] = "auto"


class MqsConfig(Struct, frozen=True, kw_only=True):
    oversize: Annotated[
        Literal["cut", "reject"],
        Meta(description="What becomes of a body over 1 MiB: cut off at that size, or refused with 413."),
    ] = "cut"
    delete_status: Annotated[
        Literal[204, 200],
        Meta(description="The status for a deleted message: 204 as documented, 200 for the origin's client."),
    ] = 204


class GloveboxConfig(Struct, frozen=True, kw_only=True):
    create_queues: Annotated[bool, Meta(description="Whether clients may create queues.")] = True
    errors: Annotated[
        Literal["all", "origin"],
        Meta(
            description="Error codes that clients get: all, or those that the origin's clients can read"
            " (PermissionDenied instead of BadRequest and Unavailable)."
        ),
    ] = "all"
    followed_max: Annotated[
        int, Meta(ge=0, le=1 << 20, description="Messages whose fate one session is told of at once.")
    ] = 10_000
    sessions_max: Annotated[
        int, Meta(ge=0, le=1 << 20, description="Durable sessions without a connection that are kept.")
    ] = 1000
    session_seconds: Annotated[float, Meta(gt=0, le=_DAY_SECONDS, description="How long each of them is kept.")] = (
        300.0
    )
    session_replies_max: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Messages and notices that wait in each of them.")
    ] = 10_000
    session_bytes_max: Annotated[
        int, Meta(ge=1 << 16, le=1 << 30, description="How large these may be together.")
    ] = 8 << 20


class NqConfig(Struct, frozen=True, kw_only=True):
    empty_status: Annotated[
        Literal[404, 204],
        Meta(description="What a pull that found nothing is answered with: the last ids, or no content."),
    ] = 404
    retry_num: Annotated[
        int,
        Meta(
            ge=0,
            le=RETRIES_MAX,
            description="How often a message without a result is delivered again, if a pull does not say.",
        ),
    ] = 0
    fail_timeout: Annotated[
        float,
        Meta(ge=0.001, le=FAIL_SECONDS_MAX, description="Seconds until it is delivered again, likewise."),
    ] = 120.0
    timeout: Annotated[
        float,
        Meta(ge=0, le=PULL_SECONDS_MAX, description="Seconds that a pull waits for a first message, likewise."),
    ] = 60.0
    retention_seconds: Annotated[
        int, Meta(ge=1, le=_SECONDS_MAX, description="How long messages stay in a queue that a post has made.")
    ] = 7 * _DAY_SECONDS

    @property
    def new_queue(self) -> QueueSettings:
        """The settings of a queue that a post creates."""
        return QueueSettings(keep="all", retention_ns=self.retention_seconds * SECOND_NS)


class PushConfig(Struct, frozen=True, kw_only=True):
    private_addresses: Annotated[
        Literal["refuse", "allow"],
        Meta(description="Whether messages may be pushed to this machine and to private networks."),
    ] = "refuse"
    connections_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="The `max_in_flight` of all channels together; a channel above is not pushed.",
        ),
    ] = 1024
    retry_seconds: Annotated[
        float,
        Meta(gt=0, le=3600, description="How long a message waits after the first failure; twice as long each time."),
    ] = 1.0
    retry_seconds_max: Annotated[float, Meta(gt=0, le=_DAY_SECONDS, description="How long it waits at most.")] = 300.0
    circuit_failures: Annotated[
        int, Meta(ge=1, le=1000, description="Failures in a row after which an endpoint is left alone for a while.")
    ] = 5
    circuit_seconds_max: Annotated[
        float, Meta(gt=0, le=_DAY_SECONDS, description="How long it is left alone at most.")
    ] = 60.0


class TopicsConfig(Struct, frozen=True, kw_only=True):
    retention_seconds: Annotated[
        int, Meta(ge=1, le=_SECONDS_MAX, description="How long messages stay in a queue that a topic has made.")
    ] = 7 * _DAY_SECONDS
    visibility_seconds: Annotated[
        float, Meta(ge=0, le=_SECONDS_MAX, description="How long a consumer of such a queue has a message.")
    ] = 30.0
    detect_unchanged: Annotated[
        bool, Meta(description="Whether such a queue gets only what is new of an object and key.")
    ] = True
    retries: Annotated[
        int,
        Meta(
            ge=0,
            le=RETRIES_MAX,
            description="Deliveries of a message in such a queue before it has failed (E); 0: no limit.",
        ),
    ] = CHANNEL_RETRIES_MAX
    dead_letter_queue: Annotated[
        str, Meta(description="Where such messages go, a queue that is made if need be. None: they are dropped.")
    ] = ""

    @property
    def new_queue(self) -> QueueSettings:
        """The settings of a queue that a message to a topic creates."""
        # One more receive than retries: the retries decide, so a message moves when its last delivery has failed.
        policy = RedrivePolicy(self.retries + 1, self.dead_letter_queue) if self.dead_letter_queue else None
        return QueueSettings(
            redrive_policy=policy,
            retention_ns=self.retention_seconds * SECOND_NS,
            visibility_ns=round(self.visibility_seconds * SECOND_NS),
            detect_unchanged=self.detect_unchanged,
            retries=self.retries,
        )


class AuthConfig(Struct, frozen=True, kw_only=True):
    tokens: Annotated[
        tuple[str, ...], Meta(description="Bearer tokens, each of which opens the door. None: the door is open.")
    ] = ()

    def __repr__(self) -> str:
        return f"AuthConfig(tokens=<{len(self.tokens)} hidden>)"


class Config(Struct, frozen=True, kw_only=True):
    data: Annotated[Path, Meta(description="The data directory; made if it is not there.")] = Path("data")
    stop_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="How long requests under way may take to end after SIGTERM.")
    ] = 30.0
    unread_bytes_max: Annotated[
        int,
        Meta(
            ge=UNREAD_BYTES_MIN,
            le=1 << 40,
            description="Answers that clients have not read yet, on all connections together; beyond it the one with"
            " the most is closed.",
        ),
    ] = UNREAD_BYTES_DEFAULT
    http: HttpConfig = HttpConfig()
    ws: WsConfig = WsConfig()
    lines: LinesConfig = LinesConfig()
    log: LogConfig = LogConfig()
    names: NamesConfig = NamesConfig()
    history: HistoryConfig = HistoryConfig()
    events: EventsConfig = EventsConfig()
    staging: StagingConfig = StagingConfig()
    logging: LoggingConfig = LoggingConfig()
    mqs: MqsConfig = MqsConfig()
    glovebox: GloveboxConfig = GloveboxConfig()
    nq: NqConfig = NqConfig()
    push: PushConfig = PushConfig()
    topics: TopicsConfig = TopicsConfig()
    auth: AuthConfig = AuthConfig()


# ── Loading ───────────────────────────────────────────────────────────────────────────────────────────────────


def load(file: Path | None, environ: Mapping[str, str], flags: Sequence[str], overrides: Mapping[str, str]) -> Config:
    """The settings from all sources. `file`: named by the operator; None: ./penstock.toml, if it is there.

    `flags`: what followed each `--set`. `overrides`: flags of their own, by the key that they set.
    """
    values: dict[str, Any] = {}
    for source in (
        _from_file(file),
        _from_environment(environ),
        _from_flags(flags),
        _Source("command line", SETTINGS, overrides),
    ):
        for name, raw in source.given.items():
            setting = source.known.get(name)
            if setting is None:
                raise ConfigError(f'{source.title}: there is no "{name}"; {_nearest(name, source.known)}')
            values[setting.key] = _read(setting, raw, f"{source.title}: {name}")
    config = _build(values)
    if config.http.body_bytes_max > config.http.buffered_bytes_max:
        raise ConfigError(
            f"http.buffered_bytes_max = {config.http.buffered_bytes_max} has no room for one request of "
            f"http.body_bytes_max = {config.http.body_bytes_max}"
        )
    if config.lines.line_bytes_max > config.lines.buffered_bytes_max:
        raise ConfigError(
            f"lines.buffered_bytes_max = {config.lines.buffered_bytes_max} has no room for one line of "
            f"lines.line_bytes_max = {config.lines.line_bytes_max}"
        )
    if config.topics.dead_letter_queue and not config.topics.retries:
        raise ConfigError(
            f"topics.dead_letter_queue = {config.topics.dead_letter_queue} has no use with topics.retries = 0: set "
            "topics.retries to 1 or more"
        )
    return config


def check_exposure(config: Config, insecure: bool) -> None:
    """Refuse to listen where others can reach the broker and nobody has to show a token."""
    if insecure or config.auth.tokens:
        return
    for key, address in (("http.address", config.http.address), ("lines.address", config.lines.address)):
        if not _is_loopback(key, address):
            raise ConfigError(
                f"{key} = {address} can be reached from other machines, and auth.tokens is empty: anyone could read "
                "and delete messages. Set auth.tokens, listen on 127.0.0.1, or start with --insecure"
            )


class Setting(NamedTuple):
    """One key: what the docs, the environment and the command line say of it."""

    key: str
    variable: str
    default: Any
    description: str
    expected: str
    read: Callable[[Any], Any]  # From TOML, or from text; raises ValueError.

    @property
    def secret(self) -> bool:
        return self.key.startswith("auth.")


class _Source(NamedTuple):
    title: str
    known: Mapping[str, Setting]
    given: Mapping[str, Any]


def _from_file(file: Path | None) -> _Source:
    path = file or Path(FILE_NAME)
    if file is None and not path.exists():
        return _Source(FILE_NAME, SETTINGS, {})
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return _Source(str(path), SETTINGS, _flatten(tables))


def _flatten(tables: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, dict) and value and name not in SETTINGS:
            given.update({f"{name}.{inner}": raw for inner, raw in value.items()})
        elif not (value == {} and name in _SECTIONS):
            given[name] = value
    return given


def _from_environment(environ: Mapping[str, str]) -> _Source:
    known = {setting.variable: setting for setting in SETTINGS.values()}
    given = {
        name: value
        for name, value in environ.items()
        if name.startswith(VARIABLE_PREFIX) and name not in CLIENT_VARIABLES and not _is_service_link(name, value)
    }
    return _Source("environment", known, given)


def _is_service_link(name: str, value: str) -> bool:
    """Kubernetes puts such variables into every pod beside a service named penstock. They are not for us."""
    return bool(_SERVICE_LINK.fullmatch(name)) or (name.endswith("_PORT") and "://" in value)


def _from_flags(flags: Sequence[str]) -> _Source:
    given: dict[str, Any] = {}
    for flag in flags:
        key, equals, value = flag.partition("=")
        if not equals:
            word = re.match(r"[\w.]*", flag)  # No more of it: the rest may be a token.
            raise ConfigError(f'--set: "{word[0] if word else ""}" has no value; expected key=value')
        given[key.strip()] = value
    return _Source("--set", SETTINGS, given)


def _nearest(name: str, known: Mapping[str, Setting]) -> str:
    if near := difflib.get_close_matches(name, known, n=1):
        return f'did you mean "{near[0]}"?'
    return f"known are {', '.join(known)}"


def _read(setting: Setting, raw: object, where: str) -> Any:
    try:
        return setting.read(raw)
    except (ValueError, msgspec.ValidationError):
        shown = "" if setting.secret else f" = {str(raw)[:100]!r}"
        raise ConfigError(f"{where}{shown}: expected {setting.expected}") from None


def _build(values: Mapping[str, Any]) -> Config:
    fields: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    parts: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, field = key.partition(".")
        if dot:
            fields[section][field] = value
        else:
            parts[key] = value
    for section, given in fields.items():
        parts[section] = _SECTIONS[section](**given)
    return Config(**parts)


def _is_loopback(key: str, address: Address) -> bool:
    """Whether only this machine can reach it. Of a name, every address it stands for counts."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{key} = {address}: the host cannot be resolved: {error}") from None
    return all(_is_loopback_ip(str(entry[4][0])) for entry in found)


def _is_loopback_ip(text: str) -> bool:
    ip: IPv4Address | IPv6Address = ip_address(text)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return ip.is_loopback


# ── Values ────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_address(text: object) -> Address:
    """HOST:PORT, an IPv6 host in brackets."""
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([\w.-]+)):(\d{1,5})", text, re.ASCII) if isinstance(text, str) else None
    if match is None or int(match[3]) > 65535:
        raise ValueError("not an address")
    if match[1]:
        IPv6Address(match[1])
    return Address(match[1] or match[2], int(match[3]))


def _parse_path(text: object) -> Path:
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError("not a path")
    return Path(text)


def _parse_tokens(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        given = [token.strip() for token in given.split(",")] if given.strip() else []
    tokens: list[str] = msgspec.convert(given, list[str])
    if not all(re.fullmatch(r"[!-+\--~]{1,1024}", token) for token in tokens):  # Visible ASCII without the comma.
        raise ValueError("not tokens")
    return tuple(tokens)


def _parse_origins(given: object) -> tuple[Origin, ...]:
    if isinstance(given, str):
        given = [origin.strip() for origin in given.split(",")] if given.strip() else []
    origins: list[str] = msgspec.convert(given, list[str])
    if not all(re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/,]+", origin) for origin in origins):
        raise ValueError("not origins")
    return tuple(Origin(origin) for origin in origins)


def _parse_hosts(given: object) -> tuple[HostName, ...]:
    if isinstance(given, str):
        given = [host.strip() for host in given.split(",")] if given.strip() else []
    hosts = [host.lower() for host in msgspec.convert(given, list[str])]
    if not all(re.fullmatch(r"\*|[\w-]+(\.[\w-]+)*|[0-9a-f:.]*:[0-9a-f:.]*", host, re.ASCII) for host in hosts):
        raise ValueError("not hosts")
    for host in hosts:
        if ":" in host:
            IPv6Address(host)
    return tuple(HostName(host) for host in hosts)


def _parse_queue_name(text: object) -> str:
    if not isinstance(text, str) or len(text.encode()) > NAME_BYTES_MAX or has_control_characters(text):
        raise ValueError("not a name")
    return text


def _setting(key: str, hint: Any, default: Any) -> Setting:
    kind, meta = get_args(hint)
    variable = VARIABLE_PREFIX + key.replace(".", "_").upper()
    known: dict[Any, tuple[str, Callable[[Any], Any]]] = {
        Address: ("HOST:PORT, the port from 0 to 65535, an IPv6 host in brackets", parse_address),
        Path: ("a path", _parse_path),
        tuple[str, ...]: ("tokens of 1 to 1024 visible ASCII characters, separated by commas", _parse_tokens),
        tuple[HostName, ...]: ("names or addresses without a port, or *, separated by commas", _parse_hosts),
        tuple[Origin, ...]: ("origins such as https://example.org, or *, separated by commas", _parse_origins),
        bool: ("true or false", lambda raw: _convert(raw, hint)),
        str: (f"the name of a queue, up to {NAME_BYTES_MAX} bytes, or nothing", _parse_queue_name),
    }
    expected, read = known.get(kind) or (_range(kind, meta), lambda raw: _convert(raw, hint))
    return Setting(key, variable, default, meta.description, expected, read)


def _convert(raw: object, hint: Any) -> Any:
    """A number or a choice, as itself or as text."""
    return msgspec.convert(raw, hint, strict=not isinstance(raw, str))


def _range(kind: Any, meta: Meta) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in get_args(kind))
    number = "a whole number" if kind is int else "a number"
    low = f"above {meta.gt}, up" if meta.gt is not None else f"from {meta.ge}"
    return f"{number} {low} to {meta.le}"


def _list_settings() -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for key, hint in get_type_hints(Config, include_extras=True).items():
        if key in _SECTIONS:
            for field, inner in get_type_hints(hint, include_extras=True).items():
                name = f"{key}.{field}"
                settings[name] = _setting(name, inner, getattr(getattr(_DEFAULTS, key), field))
        else:
            settings[key] = _setting(key, hint, getattr(_DEFAULTS, key))
    return settings


_DEFAULTS = Config()
_SECTIONS: dict[str, type[Struct]] = {
    name: type(value) for name in Config.__struct_fields__ if isinstance(value := getattr(_DEFAULTS, name), Struct)
}

SETTINGS = _list_settings()
"""Every key there is, in the order of `Config`."""


def settings_table() -> str:
    """Every key as a Markdown table: what `docs/operating.md` shows."""
    lines = ["| key | variable | default | expected | what it is |", "|---|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = f"`{_shown(setting.default)}`" if setting.default not in ((), "") else "none"
        lines.append(
            f"| `{setting.key}` | `{setting.variable}` | {default} | {setting.expected} | {setting.description} |"
        )
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)
