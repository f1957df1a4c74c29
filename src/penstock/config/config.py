"""Everything that can be set on a broker. `settings.py` says where a setting comes from."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock import limits
from penstock.config.dialects import GloveboxConfig, MqsConfig, NqConfig
from penstock.config.quotas import QuotaConfig
from penstock.config.types import (
    AddressText,
    FileName,
    HostName,
    Origin,
    StoreUrl,
    Text,
    above_0,
    between,
    described,
)
from penstock.model.settings import QueueSettings, RedrivePolicy

_DAY_SECONDS = 86_400
_CENTURY_SECONDS = 100 * 365 * _DAY_SECONDS


class Address(NamedTuple):
    """Where to listen. Port 0 takes any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: object) -> Address:
    """HOST:PORT, an IPv6 host in brackets."""
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([\w.-]+)):(\d{1,5})", text, re.ASCII) if isinstance(text, str) else None
    if match is None or int(match[3]) > 65535:
        raise ValueError("not an address")
    if match[1]:
        IPv6Address(match[1])
    return Address(match[1] or match[2], int(match[3]))


class HttpConfig(Struct, frozen=True, kw_only=True):
    address: Annotated[Address, described("Address of the HTTP server.")] = Address("127.0.0.1", 7843)
    hosts: Annotated[
        tuple[HostName, ...],
        described(
            "Host names that clients may use to reach a broker without tokens, in addition to `localhost`, loopback"
            " addresses and the host of `http.address`; `*` allows all. A request with another `Host` is refused"
            " with 403."
        ),
    ] = ()
    origins: Annotated[
        tuple[Origin, ...],
        described(
            "Origins of web pages that may use the broker over HTTP and WebSocket, in addition to its own; `*` allows"
            " all. Others are refused with 403."
        ),
    ] = ()
    connections_max: Annotated[int, between(1, 1_000_000, "Open connections; further ones are refused with 503.")] = (
        10_000
    )
    idle_seconds: Annotated[
        float, above_0(_DAY_SECONDS, "A connection without a request is closed after this time.")
    ] = 75.0
    slow_client_seconds: Annotated[
        float,
        above_0(_DAY_SECONDS, "A request or WebSocket message must be complete this long after its first byte."),
    ] = 30.0
    header_bytes_max: Annotated[int, between(1 << 10, 1 << 20, "Size of all header fields of a request.")] = (
        limits.REQUEST_HEADERS_BYTES_MAX
    )
    body_bytes_max: Annotated[
        int,
        between(
            limits.BODY_BYTES_MAX + limits.HEADERS_BYTES_MAX,
            limits.BATCH_BYTES_MAX,
            "Size of a request body, which may hold many messages.",
        ),
    ] = limits.REQUEST_BODY_BYTES_MAX
    buffered_bytes_max: Annotated[
        int, between(1 << 20, 1 << 40, "Size of all request bodies that are being received.")
    ] = 256 << 20


class WsConfig(Struct, frozen=True, kw_only=True):
    origins: Annotated[
        tuple[Origin, ...], described("Former name of `http.origins`; origins listed under either name are allowed.")
    ] = ()
    ping_seconds: Annotated[
        float,
        above_0(
            _DAY_SECONDS, "A WebSocket that is silent for this long is pinged; if it stays silent, it is closed."
        ),
    ] = 30.0


class LinesConfig(Struct, frozen=True, kw_only=True):
    address: Annotated[Address, described("Address of the TCP server for JSON lines.")] = Address("127.0.0.1", 7844)
    connections_max: Annotated[int, between(1, 1_000_000, "Open connections; further ones are refused.")] = 10_000
    line_bytes_max: Annotated[
        int,
        between(
            limits.BODY_BYTES_MAX + limits.LINE_ENVELOPE_BYTES_MAX,
            limits.BATCH_BYTES_MAX,
            "Size of a line; a longer one is skipped and answered with TOO_LARGE.",
        ),
    ] = limits.LINE_BYTES_MAX
    commands_max: Annotated[
        int, between(1, 65_536, "Unanswered commands of one connection; no more is read until one is answered.")
    ] = 512
    buffered_bytes_max: Annotated[int, between(4 << 20, 1 << 40, "Size of all lines that are being received.")] = (
        256 << 20
    )
    unsent_bytes_max: Annotated[
        int, between(4 << 20, 1 << 40, "A client that leaves more than this of its replies unread is disconnected.")
    ] = 64 << 20
    idle_seconds: Annotated[
        float, above_0(_DAY_SECONDS, "An idle connection is closed after this time, unless it waits for a queue.")
    ] = 3600.0
    slow_client_seconds: Annotated[
        float,
        above_0(
            _DAY_SECONDS,
            "A line must be complete this long after its first byte; a token must be shown in this time.",
        ),
    ] = 30.0
    keepalive_seconds: Annotated[
        int, between(1, 7200, "TCP keep-alive starts when a client is silent for this long.")
    ] = 60


class LogConfig(Struct, frozen=True, kw_only=True):
    segment_bytes: Annotated[
        int, between(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX, "Size of one file of the log.")
    ] = 16 << 20
    retention_seconds: Annotated[int, between(0, _CENTURY_SECONDS, "How long events stay in the Event Log.")] = (
        7 * _DAY_SECONDS
    )
    retention_bytes: Annotated[
        int,
        between(
            0,
            1 << 60,
            "Size of the Event Log above which the oldest events are removed earlier. Of several shards, each may"
            " have an equal part of it.",
        ),
    ] = 10 << 30
    snapshot_bytes: Annotated[
        int,
        between(
            limits.SEGMENT_BYTES_MIN,
            1 << 40,
            "A snapshot is taken after this much log: later if snapshots are large, after 24 MiB at most if events"
            " are not kept, because each snapshot then frees space, and after 8 MiB at most if the log is in a"
            " store, because another broker may have to replay the rest.",
        ),
    ] = 128 << 20

    def of_shard(self, shard: int, shards: int) -> LogConfig:
        """What is for one log of a store with so many. All parts of the size together are the whole."""
        begin, end = (self.retention_bytes * each // shards for each in (shard, shard + 1))
        return replace(self, retention_bytes=end - begin)


class NamesConfig(Struct, frozen=True, kw_only=True):
    max: Annotated[
        int,
        between(
            1,
            limits.NAMES_MAX,
            "Content types, senders, objects, sets of topics and consumers in use; a message with a new one is then"
            " refused. Each takes about 250 bytes of memory.",
        ),
    ] = limits.NAMES_DEFAULT


class HistoryConfig(Struct, frozen=True, kw_only=True):
    keys_max: Annotated[
        int,
        between(
            1,
            limits.HISTORY_KEYS_MAX,
            "Objects and keys in the Object History; a message with a new one is then refused.",
        ),
    ] = limits.HISTORY_KEYS_DEFAULT


class EventsConfig(Struct, frozen=True, kw_only=True):
    readers_max: Annotated[
        int, between(0, 10_000, "Readers of the Event Log at once; further ones are refused with 503.")
    ] = 64
    heartbeat_seconds: Annotated[
        float, above_0(3600, "A follower of the Event Log gets a heartbeat after this long without an event.")
    ] = 15.0


class StagingConfig(Struct, frozen=True, kw_only=True):
    bytes_max: Annotated[
        int,
        between(
            limits.STAGED_CHUNK_BYTES_MAX,
            1 << 40,
            "Size of all staged rows that are not in their queues yet; further rows are refused with 503.",
        ),
    ] = 4 << 30
    lifetime_seconds: Annotated[
        int,
        between(1, _CENTURY_SECONDS, "A batch that is not committed is dropped after this long without a change."),
    ] = 6 * 3600


class PublishConfig(Struct, frozen=True, kw_only=True):
    idempotency_seconds: Annotated[
        int,
        between(
            1,
            _DAY_SECONDS,
            "How long the answer to a publish with an `Idempotency-Key` is known, so that a repeated request gets it"
            " again.",
        ),
    ] = limits.IDEMPOTENCY_SECONDS_DEFAULT
    idempotency_keys_max: Annotated[
        int,
        between(
            1,
            10_000_000,
            "Idempotency keys that are known at once; the oldest is forgotten for one more. Each takes about 400"
            " bytes of memory.",
        ),
    ] = limits.IDEMPOTENCY_KEYS_DEFAULT


class LoggingConfig(Struct, frozen=True, kw_only=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], described("The lowest level that is logged.")] = (
        "info"
    )
    format: Annotated[
        Literal["auto", "json", "text"],
        described("A JSON object per line, or text for people; `auto` is text on a terminal and JSON elsewhere."),
    ] = "auto"


class PushConfig(Struct, frozen=True, kw_only=True):
    private_addresses: Annotated[
        Literal["refuse", "allow"],
        described("Whether messages may be pushed to this machine and to private networks."),
    ] = "refuse"
    connections_max: Annotated[
        int,
        between(0, 100_000, "Sum of the `max_in_flight` of all channels; a channel that exceeds it is not pushed."),
    ] = 1024
    retry_seconds: Annotated[
        float, above_0(3600, "How long a message waits after its first failure; the time doubles with each failure.")
    ] = 1.0
    retry_seconds_max: Annotated[
        float, above_0(_DAY_SECONDS, "The longest time that a message waits after a failure.")
    ] = 300.0
    circuit_failures: Annotated[
        int, between(1, 1000, "Consecutive failures after which pushing to an endpoint pauses.")
    ] = 5
    circuit_seconds_max: Annotated[float, above_0(_DAY_SECONDS, "The longest such pause.")] = 60.0


class TopicsConfig(Struct, frozen=True, kw_only=True):
    retention_seconds: Annotated[
        int, between(1, limits.INT32_MAX, "How long messages stay in a queue that was created for a topic.")
    ] = 7 * _DAY_SECONDS
    lease_seconds: Annotated[
        float, between(0, limits.INT32_MAX, "How long a consumer of such a queue holds a message.")
    ] = 30.0
    detect_unchanged: Annotated[
        bool, described("Whether such a queue gets only messages that change their object and key.")
    ] = True
    max_attempts: Annotated[
        int,
        between(
            0, limits.RETRIES_MAX, "Deliveries of a message in such a queue before it has failed (E); 0 for no limit."
        ),
    ] = limits.CHANNEL_RETRIES_MAX
    dead_letter_queue: Annotated[
        str,
        described(
            "Queue for failed messages of such a queue; created if it does not exist. Empty: they are dropped."
        ),
    ] = ""

    @property
    def new_queue(self) -> QueueSettings:
        """The settings of a queue that a message to a topic creates."""
        # One more receive than attempts: the attempts decide, so a message moves when its last delivery has failed.
        policy = RedrivePolicy(self.max_attempts + 1, self.dead_letter_queue) if self.dead_letter_queue else None
        return QueueSettings(
            redrive_policy=policy,
            retention_ns=self.retention_seconds * limits.SECOND_NS,
            visibility_ns=round(self.lease_seconds * limits.SECOND_NS),
            detect_unchanged=self.detect_unchanged,
            retries=self.max_attempts,
        )


class ConsoleConfig(Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, described("Whether the broker serves its web console at `/`.")] = True
    read_only: Annotated[
        bool,
        described(
            "Whether the console leaves out everything that changes something. It protects against mistakes; what a"
            " person may do is decided by their token."
        ),
    ] = False


class LakeConfig(Struct, frozen=True, kw_only=True):
    directory: Annotated[
        FileName,
        described(
            "Directory of the lake that a pipeline fills from this broker. With it, `/v1/lake` and the console show"
            " more than the last hour; `penstock up` sets it. Reading it needs the extra `penstock[spark]`, but no"
            " Java."
        ),
    ] = FileName()


class AuthConfig(Struct, frozen=True, kw_only=True):
    tokens: Annotated[
        tuple[str, ...], described("Bearer tokens: any listed token grants access; empty disables authentication.")
    ] = ()
    jwt_keys: Annotated[
        FileName,
        described(
            "File with the public keys of an identity provider (JWKS). With it, JWTs that such a key has signed are"
            " bearer tokens too. Read again when it changes. Needs the extra `penstock[jwt]`."
        ),
    ] = FileName()
    jwt_issuer: Annotated[Text, described("The issuer (`iss`) that a JWT must name.")] = Text()
    jwt_audience: Annotated[Text, described("The audience (`aud`) that a JWT must be for.")] = Text()
    jwt_scopes_claim: Annotated[
        Text, described("The claim of a JWT that holds its scopes: a list, or text with spaces between them.")
    ] = Text("penstock")

    def __repr__(self) -> str:
        return f"AuthConfig(tokens=<{len(self.tokens)} hidden>, jwt_keys={self.jwt_keys!r})"


class TlsConfig(Struct, frozen=True, kw_only=True):
    certificate: Annotated[
        FileName,
        described(
            "Certificate in PEM form, with its chain; HTTP, WebSocket and JSON lines then use TLS. Loaded again when"
            " the file changes."
        ),
    ] = FileName()
    key: Annotated[FileName, described("The private key of the certificate, in PEM form and without a password.")] = (
        FileName()
    )
    client_ca: Annotated[
        FileName, described("Authority, in PEM form, whose certificates clients may show to say who they are.")
    ] = FileName()
    client_required: Annotated[bool, described("Whether clients must show such a certificate.")] = False


class ClusterConfig(Struct, frozen=True, kw_only=True):
    advertise: Annotated[
        AddressText,
        described(
            "HOST:PORT at which other brokers on the same store reach this one. With it, they share the shards and"
            " each serves all queues; empty: one broker serves, and others wait."
        ),
    ] = AddressText()
    listen: Annotated[
        AddressText, described("HOST:PORT to listen on for other brokers, if it is not the one that is advertised.")
    ] = AddressText()
    ca: Annotated[
        FileName,
        described(
            "Authority, in PEM form, that has signed the certificates of the other brokers, if they use TLS. Empty:"
            " those that the system trusts."
        ),
    ] = FileName()


class AuditConfig(Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, described("Whether administrative acts and refusals are recorded in the queue `_audit`.")
    ] = True
    retention_seconds: Annotated[int, between(1, limits.INT32_MAX, "How long a record is kept.")] = 90 * _DAY_SECONDS
    records_max: Annotated[
        int, between(1000, 100_000_000, "Records that are kept; the oldest are removed for later ones.")
    ] = 1_000_000


class Config(Struct, frozen=True, kw_only=True):
    data: Annotated[Path, described("The data directory; created if it does not exist.")] = Path("data")
    store: Annotated[
        StoreUrl,
        described(
            "PostgreSQL database that holds the log, as postgresql://USER@HOST/DATABASE; the data directory then"
            " holds a copy only. Empty: the log is in the data directory. Needs the extra `penstock[postgresql]`."
        ),
    ] = StoreUrl()
    store_lease_seconds: Annotated[
        float,
        between(1, 600, "How long other brokers wait for one that died before they take over the log in the store."),
    ] = 6.0
    ask_again_seconds: Annotated[
        float,
        between(
            0,
            600,
            "How long requests that were under way to a worker or node that is gone wait for the next one that has"
            " their queue. After that, their outcome is unknown.",
        ),
    ] = 10.0
    stop_seconds: Annotated[
        float, between(0, 3600, "How long requests under way may take to finish after SIGTERM.")
    ] = 30.0
    worker_silence_seconds: Annotated[
        float,
        between(
            1,
            _DAY_SECONDS,
            "A worker of several that does not answer its supervisor for this long is killed and started again. A"
            " shorter time kills healthy ones on a machine that swaps.",
        ),
    ] = limits.SILENCE_SECONDS_DEFAULT
    unread_bytes_max: Annotated[
        int,
        between(
            limits.UNREAD_BYTES_MIN,
            1 << 40,
            "Size of answers that are being made or not read; while there is no room, requests for messages wait.",
        ),
    ] = limits.UNREAD_BYTES_DEFAULT
    http: HttpConfig = HttpConfig()
    ws: WsConfig = WsConfig()
    lines: LinesConfig = LinesConfig()
    log: LogConfig = LogConfig()
    names: NamesConfig = NamesConfig()
    history: HistoryConfig = HistoryConfig()
    events: EventsConfig = EventsConfig()
    staging: StagingConfig = StagingConfig()
    publish: PublishConfig = PublishConfig()
    logging: LoggingConfig = LoggingConfig()
    mqs: MqsConfig = MqsConfig()
    glovebox: GloveboxConfig = GloveboxConfig()
    nq: NqConfig = NqConfig()
    push: PushConfig = PushConfig()
    topics: TopicsConfig = TopicsConfig()
    quota: QuotaConfig = QuotaConfig()
    auth: AuthConfig = AuthConfig()
    tls: TlsConfig = TlsConfig()
    cluster: ClusterConfig = ClusterConfig()
    console: ConsoleConfig = ConsoleConfig()
    lake: LakeConfig = LakeConfig()
    audit: AuditConfig = AuditConfig()
    sources: dict[str, str] = {}  # Where the settings that are no defaults were set, by key.
