"""What the broker answers, as types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

from msgspec import UNSET, Struct, UnsetType, field

from penstock.client.encoding import body_of
from penstock.client.errors import OfAnotherType
from penstock.decoding import decode_json
from penstock.renamed import SETTINGS, has_old_names

T = TypeVar("T")
Until = Literal["taken", "done"]


def _decoded(whose: object, body: bytes, kind: Any) -> Any:
    try:
        return decode_json(body, kind)
    except ValueError as error:
        name = getattr(kind, "__name__", None) or repr(kind)
        what = "JSON" if kind is Any else f"JSON of the type {name}"
        raise OfAnotherType(f"{whose!r} is no {what}: {error}") from None


class Confirmed(Struct, frozen=True):
    """What became of a confirmation. `discarded`: the message was done with before."""

    id: str
    outcome: str
    discarded: bool = False


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a message. Without an `outcome`, it was taken and is not done yet."""

    id: str
    state: str = ""  # The letter of the event, and
    event: str = ""  # its word.
    outcome: str | None = None
    time: datetime | None = None
    consumer: str | None = None
    _result: str | UnsetType = field(default=UNSET, name="result")
    _result_base64: str | UnsetType = field(default=UNSET, name="result_base64")

    def __repr__(self) -> str:
        return f"Outcome(id={self.id!r}, outcome={self.outcome!r}, state={self.state!r}, result={self.body!r})"

    @property
    def success(self) -> bool:
        return self.outcome in ("success", "handed_over", "unchanged")

    @property
    def body(self) -> bytes:
        """The result that the consumer gave; empty if it gave none."""
        return body_of(self._result, self._result_base64)

    @property
    def text(self) -> str:
        """The result as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The result, decoded from JSON."""
        return self.decode(Any)

    def decode(self, kind: type[T]) -> T:
        """The result, decoded from JSON and checked to be of this type."""
        found: T = _decoded(self, self.body, kind)
        return found


class SentFacts(Struct, kw_only=True, gc=False):
    """What the broker answers to a publish."""

    id: str
    state: str  # Q: queued. U: unchanged.
    queues: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    outcome: Outcome | None = None  # If the publish waited for one.
    _client: Any = None

    def bind(self, client: object) -> None:
        """For the client that has published it."""
        self._client = client

    @property
    def unchanged(self) -> bool:
        """The message is the same as the last one with its object and key: logged, and delivered to nobody."""
        return self.state == "U"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, state={self.state!r}, queues={self.queues!r})"


class MessageFacts(Struct, kw_only=True):
    """A delivered message."""

    id: str
    queue: str
    receives: int  # Deliveries so far, with this one.
    created: datetime
    visible_at: datetime  # The lease ends then.
    priority: int = 0
    content_type: str = field(default="", name="mimeType")
    sender: str = ""
    object: str = ""
    topics: tuple[str, ...] = ()
    key: str = ""
    key_base64: str = ""
    headers: dict[str, Any] = {}
    timestamp: str = ""  # When the producer made the message, if it gave a time.
    _text: str | UnsetType = field(default=UNSET, name="message")
    _base64: str | UnsetType = field(default=UNSET, name="message_base64")
    _consumer: str | None = None
    _client: Any = None
    _settled: bool = False
    _ahead: bool = False

    def bind(self, client: Any, consumer: str | None, *, ahead: bool) -> None:
        """For the client that has received it. `ahead`: this delivery counts when it begins."""
        self._client, self._consumer, self._ahead = client, consumer, ahead

    def settle(self) -> None:
        """For the client, when the broker has taken note of the outcome."""
        self._settled = True

    @property
    def lease(self) -> dict[str, Any]:
        """What names this message, and who has it, to the broker."""
        return {"id": self.id} if self._consumer is None else {"id": self.id, "consumer": self._consumer}

    @property
    def ahead(self) -> bool:
        """Whether it was fetched ahead."""
        return self._ahead

    @property
    def body(self) -> bytes:
        """The message, to the byte."""
        return body_of(self._text, self._base64)

    @property
    def text(self) -> str:
        """The message as text. Raises `UnicodeDecodeError` if it is none."""
        return self._text if self._text is not UNSET else self.body.decode()

    def json(self) -> Any:
        """The message, decoded from JSON."""
        return self.decode(Any)

    def decode(self, kind: type[T]) -> T:
        """The message, decoded from JSON and checked to be of this type."""
        found: T = _decoded(self, self.body, kind)
        return found

    @property
    def settled(self) -> bool:
        """Whether it was confirmed or given back through this object."""
        return self._settled

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, queue={self.queue!r}, receives={self.receives})"


class RedrivePolicy(TypedDict):
    """After so many deliveries, a message moves to another queue."""

    max_receives: int
    dead_letter_queue: str


class Push(TypedDict):
    """Where the broker takes the messages of a channel."""

    url: str
    max_in_flight: NotRequired[int]
    timeout: NotRequired[float]


class QueueSettings(TypedDict, total=False):
    """The settings of a queue (`docs/native/queues.md`). Those left out have the broker's defaults."""

    redrive_policy: RedrivePolicy | None
    retention_timeout: float | None
    lease: float
    message_delay: float
    message_deduplication: bool
    max_attempts: int | None
    retry_delay: float
    retry_backoff: Literal["fixed", "linear", "exponential"]
    retry_delay_max: float | None
    retry_jitter: float
    confirmations: int
    detect_unchanged: bool
    keep: Literal["finished", "all"]


class ChannelSettings(QueueSettings, total=False):
    """The settings of a channel: those of a queue, and how it is fed."""

    confirm: bool
    push: Push | None


class QueueStatus(Struct, frozen=True):
    """How many messages are where."""

    messages: int
    ready: int
    leased: int
    delayed: int
    kept: int
    damaged: int
    last_sequence: int
    oldest_message_age: float | None = None


@has_old_names(SETTINGS)
class Queue(Struct, frozen=True, kw_only=True):
    """A queue or channel: its settings and how it stands."""

    name: str
    status: QueueStatus
    lease: float
    max_attempts: int | None
    redrive_policy: dict[str, Any] | None = None
    retention_timeout: float | None = None
    message_delay: float = 0
    message_deduplication: bool = False
    retry_delay: float = 0
    retry_backoff: str = "fixed"
    retry_delay_max: float | None = None
    retry_jitter: float = 0
    confirmations: int = 1
    detect_unchanged: bool = False
    keep: str = "finished"
    topics: tuple[str, ...] = ()
    confirm: bool = True
    push: dict[str, Any] | None = None

    @property
    def is_channel(self) -> bool:
        return bool(self.topics)

    def has_failed_after(self, deliveries: int) -> bool:
        """Whether a message that is given back after so many deliveries has failed."""
        receives_max = self.redrive_policy["max_receives"] if self.redrive_policy else 0
        most = min(filter(None, (self.max_attempts, receives_max)), default=0)
        return 0 < most <= deliveries


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule, with what it has done (`docs/schedules.md`)."""

    name: str
    queue: str = ""
    topics: tuple[str, ...] = ()
    cron: str = ""
    time_zone: str = ""
    every: float | None = None
    start: datetime | None = None
    catch_up: str = "one"
    paused: bool = False
    message: Any = None
    message_base64: str = ""
    content_type: str = field(default="", name="mimeType")
    object: str = ""
    key: str = ""
    headers: dict[str, str] = {}
    priority: int = 0
    delay: float | None = None
    expires: float | None = None
    last_run: datetime | None = None
    next_run: datetime | None = None
    last_id: str | None = None
    runs: int = 0
    missed: int = 0
    last_error: str = ""


class Token(Struct, frozen=True, kw_only=True):
    """A token, and what it is for (`docs/access.md`). `token`: its secret, if it is new."""

    name: str
    scopes: tuple[str, ...]
    created: datetime
    expires: datetime | None = None
    last_used: datetime | None = None
    old_secret_until: datetime | None = None
    certificate: str | None = None
    limits: dict[str, float] = {}
    token: str = ""


class WorkerState(Struct, frozen=True, kw_only=True):
    """A worker as it has reported last. `since`, `heard`: seconds since the epoch."""

    name: str
    queues: list[str]
    concurrency: int
    running: int
    since: float
    heard: float
    missing: bool


class ConsumerState(Struct, frozen=True, kw_only=True):
    """Who takes messages of a queue, and how fast (`docs/native/administration.md`). `oldest_lease`: when it took
    the message that it has had longest, in seconds since the epoch."""

    consumer: str | None
    queue: str
    taken_per_minute: float = 0.0
    seconds_p50: float | None = None
    seconds_p99: float | None = None
    times: int = 0
    leases: int = 0
    oldest_lease: float | None = None
    waiting: int = 0
    retried_per_minute: float = 0.0
    failed_per_minute: float = 0.0


class Trouble(Struct, frozen=True, kw_only=True):
    """A queue that needs a person: why, in one word and in a sentence."""

    queue: str
    reason: str
    text: str
    messages: int = 0
    growth: int | None = None
    ready_since: float | None = None


class ScheduleChanges(TypedDict, total=False):
    """What can be changed of a schedule. None takes a field away."""

    queue: str
    topics: Sequence[str]
    cron: str
    time_zone: str | None
    every: float
    start: datetime | None
    catch_up: Literal["one", "all", "none"]
    paused: bool
    message: Any
    object: str | None
    key: str | None
    headers: Mapping[str, str] | None
    priority: int | None
    delay: float | None
    expires: float | None


class Job(Struct, frozen=True, kw_only=True):
    """A purge or a redrive. `state` is `running`, `done` or `failed`."""

    job: str
    state: str
    deleted: int = 0  # By a purge.
    matched: int = 0  # By a redrive, and
    moved: int = 0
    dry_run: bool = False
    error: str = ""


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """One event of the Event Log (`docs/native/events.md`). `next` is where to go on after it."""

    offset: int
    next: str
    state: str
    event: str
    time: datetime
    queue: str | None = None
    id: str = ""
    sequence: int = 0
    created: datetime | None = None
    receives: int = 0
    consumer: str = ""
    visible_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int = 0
    content_type: str = ""
    sender: str = ""
    object: str = ""
    topics: tuple[str, ...] = ()
    key: str = ""
    headers: dict[str, Any] = {}
    timestamp: str = ""
    reason: str = ""
    to_id: str = ""
    to_queue: str | None = None
    _text: str | UnsetType = field(default=UNSET, name="message")
    _base64: str | UnsetType = field(default=UNSET, name="message_base64")
    _result: str | UnsetType = field(default=UNSET, name="result")
    _result_base64: str | UnsetType = field(default=UNSET, name="result_base64")

    @property
    def body(self) -> bytes:
        """The message, on L events."""
        return body_of(self._text, self._base64)

    @property
    def result(self) -> bytes:
        """The result, on S events."""
        return body_of(self._result, self._result_base64)


class Found(Struct, frozen=True, kw_only=True):
    """A message that a queue holds, as a search finds it."""

    id: str
    queue: str
    sequence: int
    status: str
    created: datetime
    state: str | None = None
    receives: int = 0
    consumer: str | None = None
    priority: int = 0
    content_type: str | None = field(default=None, name="mimeType")
    sender: str | None = None
    object: str | None = None
    key: str = ""
    topics: tuple[str, ...] = ()
    visible_at: datetime | None = None
    expires_at: datetime | None = None
    origin: str = ""  # Where it was published, if it was moved since.
    reason: str = ""  # Why it is a dead letter, if its consumer reported that.
    _text: str | UnsetType = field(default=UNSET, name="message")
    _base64: str | UnsetType = field(default=UNSET, name="message_base64")

    @property
    def body(self) -> bytes:
        return body_of(self._text, self._base64)

    def json(self) -> Any:
        return _decoded(self, self.body, Any)


class FoundPage(Struct, frozen=True):
    """A page of a search."""

    messages: list[Found]
    next: str | None = None


class Health(Struct, frozen=True):
    """`color` is green, yellow or red; `reason` says why it is not green."""

    color: str
    reason: str = ""
