"""Every error of Penstock: its stable code, whose fault it is, and what happens next.

A client sees a code and a sentence. Programs test the code, people read the sentence. `Reason` and `Fault` are the
table of codes, and `docs/errors.md` is made from them. A code never changes its meaning.

A refusal that a client can cause is a value (`Reason`, carried by `model.Refused`), not an exception: a dialect puts
it into its own form. The exceptions below end a request, a start-up, or the process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, unique

_DETAIL = re.compile(r": \{\}| \(\{\}\)")


class ErrorCode(Enum):
    """One row: the stable code, the HTTP status, and the sentence. `{}` in it is where the details of one case go."""

    code: str
    status: int
    sentence: str  # Without details.
    template: str
    retry: bool  # The same request may succeed in a second.

    def __new__(cls, code: str, status: int, template: str, retry: bool = False) -> ErrorCode:
        error = object.__new__(cls)
        error._value_ = error.code = code
        error.status, error.template, error.retry = status, template, retry
        error.sentence = _DETAIL.sub("", template)
        return error

    def explain(self, detail: str = "") -> str:
        """The sentence for one case."""
        return self.template.replace("{}", detail) if detail else self.sentence


@unique
class Reason(ErrorCode):
    """Why a command was refused. Nothing has changed, unless the reason is that this is not known. Etzel answers with
    the names of these."""

    NO_QUEUE = "no_queue", 404, "the queue does not exist: {}"
    QUEUE_EXISTS = "queue_exists", 409, "a queue with this name already exists: {}"
    IS_CHANNEL = "is_channel", 409, "this is a channel: {}; publish to one of its topics"
    NO_DEAD_LETTER_QUEUE = "no_dead_letter_queue", 400, "the dead-letter queue does not exist: {}; create it first"
    NOT_TOGETHER = "conflicting_settings", 400, "conflicting settings: {}"
    CONFIRMATIONS_COUNT = (
        *("confirmations_in_use", 409),
        "confirmations cannot be lowered while consumers hold messages or have confirmed some: {}",
    )
    NO_MESSAGE = "no_message", 404, "the message does not exist"
    NO_OBJECT = "no_object", 404, "nothing was published with this object and key"
    LEASE_GONE = "lease_gone", 409, "the message is not leased to this consumer"
    LEASED = "leased", 409, "a consumer has leased the message; wait until its lease ends"
    NOT_DELAYED = "not_delayed", 409, "the message is not delayed"
    NO_CURSOR = "no_cursor", 400, 'only receivers of a queue with keep = "all" have a cursor: {}; use start 0'
    NO_RESULTS = "no_results", 404, 'only a queue with keep = "all" keeps results: {}'
    TOO_MANY_RECEIVERS = "receiver_limit", 503, "receiver limit of the queue reached ({})"
    TOO_MANY_DELIVERIES = (
        *("delivery_limit", 413),
        "too many deliveries for one publish ({}); publish fewer messages at once",
    )
    TOO_MANY_QUEUES = "queue_limit", 503, "queue limit reached ({}); delete a queue first"
    TOO_MANY_NAMES = "name_limit", 503, "name limit reached ({}); delete messages or raise names.max", True
    TOO_MANY_KEYS = "key_limit", 503, "key limit of the Object History reached ({}); raise history.keys_max"
    HISTORY_BEHIND = "history_busy", 503, "the Object History is not written as fast as it changes; try again", True
    KEY_REUSED = (
        *("idempotency_key_reused", 422),
        "this idempotency key was used for another request; take a new key for each request",
    )
    NO_SCHEDULE = "no_schedule", 404, "the schedule does not exist: {}"
    NO_TIME_ZONE = "no_time_zone", 400, "the time zone does not exist: {}; use a name such as Europe/Berlin"
    NEVER_RUNS = "never_runs", 400, "the schedule never runs: {}"
    TOO_MANY_SCHEDULES = "schedule_limit", 503, "schedule limit reached ({}); delete a schedule first"
    NO_TOKEN = "no_token", 404, "the token does not exist: {}"
    TOKEN_EXISTS = "token_exists", 409, "a token with this name already exists: {}; rotate it, or revoke it first"
    NO_ADMIN = (
        *("no_admin", 409),
        "the broker would have tokens and no administrator: {}; create a token with the scope admin first",
    )
    NO_SECRET = "no_secret", 409, "this token has a certificate instead of a secret: {}"
    EXPIRES_IN_THE_PAST = "expires_in_past", 400, "the token would expire in the past: {}"
    TOO_MANY_TOKENS = "token_limit", 503, "token limit reached ({}); revoke a token first"
    FORBIDDEN = "forbidden", 403, "access denied: {}; the token needs a scope that allows it"
    QUOTA_EXCEEDED = "quota_exceeded", 429, "quota exceeded ({}); send less, or raise it", True
    NOT_STAGED = "not_staged", 409, "the batch is not fully staged: {}"
    STAGING_FULL = "staging_full", 503, "staging area is full ({}); commit or drop a batch first", True
    UNAVAILABLE = "unavailable", 503, "unavailable now: {}", True
    OUTCOME_UNKNOWN = (
        *("outcome_unknown", 504),
        "the outcome is unknown: {}; it may have been carried out, so look before you send it again",
    )
    DAMAGED = "log_damaged", 500, "the log is damaged: {}"


@unique
class Fault(ErrorCode):
    """Why a request was refused before or beside the engine: what was sent, who sent it, or a limit of the broker."""

    BAD_REQUEST = "bad_request", 400, "the request has a value that is not allowed: {}"
    BAD_JSON = "bad_json", 400, "the body is not the JSON that is expected: {}"
    BAD_HTTP = "bad_http", 400, "not a well-formed HTTP/1.1 request: {}"
    BAD_WEBSOCKET = "bad_websocket", 400, "not a WebSocket handshake: {}"
    WRONG_PORT = "wrong_port", 400, "this port accepts JSON lines, not HTTP; use the address of http.address"
    TLS_REQUIRED = "tls_required", 400, "this port requires TLS; use https:// (or wss://) with the same address"
    UNAUTHORIZED = "unauthorized", 401, "a bearer token is required"
    TOKEN_IN_URL = (
        *("token_in_url", 400),
        "a token must not be in the URL, where others can read it; send Authorization: Bearer TOKEN",
    )
    FORBIDDEN_HOST = "forbidden_host", 403, "this Host is not allowed: {}; add it to http.hosts, or set auth.tokens"
    FORBIDDEN_ORIGIN = (
        "forbidden_origin",
        403,
        "the page that sent this is not allowed: {}; see http.origins",
    )
    FORBIDDEN_USE = (
        *("forbidden_use", 403),
        "a browser does not get a message to show or run it: {}; let a script fetch it",
    )
    NOT_FOUND = "not_found", 404, "not found: {}"
    NO_CHANNEL = "no_channel", 404, "the channel does not exist: {}"
    NO_JOB = "no_job", 404, "the job does not exist: {}"
    NO_LAKE = (
        *("no_lake", 404),
        "the broker knows no lake; start it with penstock up, or set lake.directory",
    )
    NO_WORKER = "no_worker", 404, "the worker is not known: {}"
    NO_SHARD = "no_shard", 404, "the shard does not exist: {}"
    NO_RESULT = "no_result", 404, "no result arrived in time"
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "method not allowed: {}"
    NOT_ACCEPTABLE = "not_acceptable", 406, "no such media type here; accepted: {}"
    NO_ARROW = "no_arrow", 406, "the broker has no Arrow: install penstock[arrow] where it runs, or accept JSON"
    TIMEOUT = "request_timeout", 408, "the request did not arrive in time: {}"
    EVENTS_REMOVED = "events_removed", 410, "these events are past the retention of the Event Log: {}"
    MESSAGE_REMOVED = "message_removed", 410, "the message is past the retention of the Event Log"
    TOO_LARGE = "too_large", 413, "the request is too large: {}"
    TARGET_TOO_LONG = "target_too_long", 414, "the request target is too long ({})"
    PAST_END = "past_end", 416, "this offset is past the end of the log ({})"
    UPGRADE_REQUIRED = "upgrade_required", 426, "this path is for WebSocket only: {}"
    HEADERS_TOO_LARGE = "headers_too_large", 431, "the headers or trailers of the request are too large ({})"
    INTERNAL = "internal_error", 500, "internal error; the log of the broker says more"
    UNREADABLE = "log_unreadable", 500, "the log cannot be read: {}"
    CONNECTION_LIMIT = "connection_limit", 503, "connection limit reached ({}); raise http.connections_max"
    BUFFER_LIMIT = (
        *("buffer_limit", 503),
        "unfinished requests hold more than http.buffered_bytes_max ({}); try again",
        True,
    )
    READER_LIMIT = "reader_limit", 503, "reader limit reached ({}); try again or raise events.readers_max", True
    LOOKUP_LIMIT = "lookup_limit", 503, "too many messages are being looked up ({}); try again", True
    WAIT_LIMIT = "wait_limit", 503, "too many messages are waited for ({}); try again", True
    LAKE_UNREADABLE = "lake_unreadable", 503, "the lake cannot be read: {}"
    LAKE_LIMIT = "lake_limit", 503, "too many wait for the lake ({}); try again", True
    IN_STORE = "in_store", 409, "shards of a store in PostgreSQL are backed up with PostgreSQL: see docs/cluster.md"
    NO_MOMENT = (
        *("no_moment", 503),
        "a shard did not stop at the same moment as the others; begin the backup again",
        True,
    )
    JOB_LIMIT = "job_limit", 503, "job limit reached ({}); wait for one to end", True


def table() -> str:
    """All codes, as the documentation shows them."""
    lines = ["| code | HTTP | sentence |", "|---|---|---|"]
    for error in sorted((*Reason, *Fault), key=lambda error: (error.status, error.code)):
        retry = " ⟳" if error.retry else ""
        lines.append(f"| `{error.code}` | {error.status}{retry} | {error.template.replace('{}', '…')} |")
    return "\n".join(lines)


class PenstockError(Exception):
    """The base of every error raised on purpose."""


class ProtocolError(PenstockError):
    """The peer's fault: what it sent cannot be understood. Answered in its dialect."""

    def __init__(self, sentence: str, fault: Fault = Fault.BAD_REQUEST) -> None:
        super().__init__(sentence)
        self.fault = fault


class RequestError(PenstockError):
    """A request that cannot be carried out. `facts` are for programs. Answered in the dialect of the client."""

    def __init__(self, error: ErrorCode, detail: str = "", retry_seconds: float = 1, **facts: object) -> None:
        super().__init__(error.explain(detail))
        self.error = error
        self.retry_seconds = retry_seconds  # After how long the same request may succeed, if it may at all.
        self.facts = facts


class ConfigError(PenstockError):
    """The operator's fault: a setting is wrong. The broker does not start."""


class SecretInUrlError(ConfigError):
    """The address of a broker has a user or a password. It is not repeated, because errors are shown and logged."""

    def __init__(self, where: str = "") -> None:
        super().__init__(
            f"{where}the address of a broker must not contain a user or a password (@). Pass a token instead:"
            " --token or PENSTOCK_TOKEN, token= in Python, the option token in Spark"
        )


class DataDirectoryError(PenstockError):
    """The data directory cannot be used: it cannot be read or written, or is not ours. The broker does not start."""


class InUseError(PenstockError):
    """Another process has the port or the directory. The command does not start, and names that process."""


class DamagedLogError(PenstockError):
    """Bytes that were once whole are not any more. If a start has to replay them, it stops and names what is lost."""


class DamagedHeaderError(DamagedLogError):
    """The header of a segment is damaged. A start needs it only if it replays the segment."""


class DamagedExtentError(DamagedLogError):
    """Bytes of messages that lie in a damaged part of the log. The broker sets those messages aside and continues."""

    def __init__(self, text: str, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(text)
        self.ranges = ranges  # Positions, from and to: every damaged part of the same segment.


class HistoryError(PenstockError):
    """The Object History cannot be used: it is missing, damaged, or not that of this log. The broker does not start,
    and says how to rebuild it."""


class NotLentError(HistoryError):
    """A key is compared that another shard answers for, and has not lent."""


class BackupError(PenstockError):
    """A backup cannot be made, checked or restored. The command ends; an earlier backup stays as it was."""


class EventsRemovedError(PenstockError):
    """Events that were asked for are past the Event Log's retention. The reader ends, or continues with what is
    left."""

    def __init__(self, earliest: int) -> None:
        super().__init__(f"events before offset {earliest} are past the retention of the Event Log")
        self.earliest = earliest


class LogFailedError(PenstockError):
    """A write or an fsync failed. What waits is failed, nothing more is written, recovery replays the log."""


class StoreError(PenstockError):
    """The PostgreSQL store cannot be reached or used, or the outcome of a statement is unknown. A start stops. A
    broker that serves stops acknowledging, and continues with what the store has."""


class FencedError(LogFailedError):
    """Another broker owns the log now: nothing more of this one is written."""


class LeaseHeldError(StoreError):
    """Another broker owns the log. This one waits."""


class DeposedError(StoreError):
    """Another broker has owned the log since this one did. What this one knows may be old: it begins anew."""


class OptionError(PenstockError):
    """An option of a Spark job is wrong or missing. The query does not start."""


class EventsLostError(PenstockError):
    """Events that a Spark job should read are gone or have changed. The query ends, unless it is set to continue with
    what is left."""


class MessagesLostError(PenstockError):
    """Messages of a batch that a Spark job reads again are held by other consumers. The query ends, unless it is set
    to continue without them."""


class BrokerError(PenstockError):
    """A broker cannot be reached, or refuses. The task of the Spark job fails; Spark may try it again."""


class SparkError(PenstockError):
    """Spark does not start, or a job of ours has failed. The command ends."""


class LakeError(PenstockError):
    """A lake does not exist, belongs to another log, or is used by another process. The command ends."""


class LakeAddressError(LakeError):
    """The place of a lake is an address, such as s3://bucket/lake."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} is not a directory: a lake is in one of this machine, or in one that is mounted here; "
            "object stores and hdfs:// are not supported"
        )
