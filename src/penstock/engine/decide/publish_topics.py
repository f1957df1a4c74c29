"""Publish messages to topics: each message is logged in its first queue, and enters the others by reference.

Consecutive messages that differ only in their bodies and keys are a run, and are compared together. Consecutive runs
that go to the same queues are decided together, so that a message for a hundred channels is one event for all of
them, and a hundred such messages are few events. Unchanged messages are treated in the same way.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import chain, compress, groupby
from typing import NamedTuple

from msgspec.structs import replace

from penstock.engine.decide.administer import has_queue, make_queue
from penstock.engine.decide.draft import Draft, RefusedError
from penstock.engine.decide.publish import log, numbers_of, run_of
from penstock.engine.history import content_digests
from penstock.engine.queue import Queue
from penstock.engine.routing import roots
from penstock.engine.runs import runs_of
from penstock.errors import Reason
from penstock.limits import NEVER_NS, PUBLISH_DELIVERIES_MAX, RUN_MESSAGES_MIN
from penstock.model.answers import Published, Refused
from penstock.model.commands import NewMessage, PublishTopics
from penstock.model.events import Logged, QueuedRun, Unchanged, UnchangedRun
from penstock.model.settings import QueueSettings
from penstock.model.shard_events import IS_UNCHANGED, OWN_DELAY, OWN_LIFETIME, Routed, Versioned
from penstock.model.values import Nanos, Place

_UNDECIDED = Published(0, 0, "Q")


class _Run(NamedTuple):
    """Messages that differ only in their bodies and keys. If they have keys, no two are the same.

    The last three columns are filled if the messages have an object and keys."""

    indexes: Sequence[int]  # In the command.
    messages: Sequence[NewMessage]
    keys: Sequence[bytes]  # All empty if the messages have none.
    contents: Sequence[bytes] = ()  # Digests.
    places: Sequence[Place | None] = ()  # Of the newest version, if it has the same content.
    seen: Sequence[bytes | None] = ()  # What the history has read for the comparison.

    def part(self, start: int, stop: int) -> _Run:
        some = slice(start, stop)
        columns = (self.contents[some], self.places[some], self.seen[some])
        return _Run(self.indexes[some], self.messages[some], self.keys[some], *columns)

    def chosen(self, which: list[bool]) -> _Run:
        return _Run(
            list(compress(self.indexes, which)),
            list(compress(self.messages, which)),
            list(compress(self.keys, which)),
            list(compress(self.contents, which)),
            list(compress(self.places, which)),
            list(compress(self.seen, which)),
        )


_NOTHING = _Run((), (), ())


class _Targets:
    """The queues that messages go to. The first one logs them."""

    def __init__(self, queues: list[Queue], named: list[Queue] | None = None) -> None:
        """`named`: the same, in the order in which answers name them."""
        self.queues = queues
        self.others = queues[1:]
        self.numbers = [queue.number for queue in self.others]
        self.deduplicates = any(queue.settings.deduplication for queue in queues)
        times = {(queue.settings.delay_ns, queue.settings.retention_ns) for queue in self.others}
        self.times = times.pop() if len(times) == 1 else None  # Delay and retention, if all have the same.
        named = queues if named is None else named
        self.queue_names = tuple([queue.name for queue in named if not queue.settings.topics])
        self.channel_names = tuple(sorted([queue.name for queue in named if queue.settings.topics]))

    @cached_property
    def not_detecting(self) -> _Targets:
        """The queues that also take unchanged messages."""
        return _Targets([queue for queue in self.queues if not _detects(queue.settings)])

    def not_having(self, digest: bytes, fresh: Container[tuple[int, bytes]]) -> _Targets:
        """The queues that do not deduplicate, or do not have this content yet. Those that deduplicate come first, so
        that the message is logged with its digest in one of them. `fresh`: what this publish has added."""
        wanting = [
            queue
            for queue in self.queues
            if not queue.settings.deduplication
            or (digest not in queue.digests and (queue.number, digest) not in fresh)
        ]
        return _Targets(sorted(wanting, key=lambda queue: not queue.settings.deduplication), wanting)


def _detects(settings: QueueSettings) -> bool:
    return settings.detect_unchanged or bool(settings.topics)


def publish_topics(draft: Draft, command: PublishTopics) -> list[Published] | Refused:
    if command.queue and draft.queue(command.queue) is None:
        return Refused(Reason.NO_QUEUE, command.queue)
    if draft.state.queue_step == 1:
        return _Publishing(draft, command).decide()
    return (_PublishingVersions if command.queue else _PublishingForAll)(draft, command).decide()


class _Publishing:
    def __init__(self, draft: Draft, command: PublishTopics) -> None:
        self._draft = draft
        self._command = command
        self._answers = [_UNDECIDED] * len(command.messages)
        # The versions in this command by object and key: digest, and index of the message.
        self._versions: dict[str, dict[bytes, tuple[bytes, int]]] = {}
        self._has_versions = False  # Whether there are new versions for the Object History.
        self._new_keys = 0  # Keys that are new in the Object History.
        self._goes_on = True  # Whether messages follow the current run, which may have the same keys.
        self._fresh: dict[tuple[int, bytes], Place] = {}  # New contents of queues that deduplicate.
        self._targets: dict[tuple[tuple[str, ...], str], _Targets] = {}
        self._together: list[_Run] = []  # Not decided yet; they go to `_to`.
        self._to: _Targets | None = None
        # Unchanged messages get their sequences as late as possible, so that they and the others are runs.
        self._unchanged: dict[int, tuple[Queue, list[_Run]]] = {}  # By the number of the queue.
        self._unchanged_keys: dict[str, set[bytes]] = {}  # By object.
        self._deliveries = 0

    def decide(self) -> list[Published]:
        messages = self._command.messages
        for start, stop in runs_of(messages):
            for run in _cut(range(start, stop), messages[start:stop]):
                self._goes_on = run.indexes[-1] < len(messages) - 1
                self._publish_run(run)
        self._publish_all()
        if self._has_versions and (reason := self._draft.state.history.refusal(self._new_keys)):
            raise RefusedError(Refused(reason))
        return self._answers

    def _publish_run(self, run: _Run) -> None:
        targets = self._targets_of(run.messages[0], len(run.messages))
        if not (run.messages[0].key and run.messages[0].object):
            self._publish(targets, run)
            return
        run = self._compared(run)
        if targets.not_detecting.queues:
            for part in _split(run):
                if part.places[0] is None:
                    self._publish_new(targets, part)
                else:
                    self._publish(targets.not_detecting, part)
        else:
            new, same = _parted(run)
            if new.messages:
                self._publish_new(targets, new)
            if same.messages:
                self._hold_unchanged(targets, same)

    def _publish(self, targets: _Targets, run: _Run) -> _Run:
        """Publish a run. Returns the messages that are logged: not those that all queues have already."""
        if targets.deduplicates:
            self._publish_together()
            logged = [each for each in _each(run) if self._publish_once(each, targets)]
            return _joined(logged) if logged else _NOTHING
        if targets is not self._to:
            self._publish_together()
            self._to = targets
        self._together.append(run)
        return run

    def _publish_new(self, targets: _Targets, run: _Run) -> None:
        about = run.messages[0].object
        if not self._unchanged_keys.get(about, set()).isdisjoint(run.keys):
            self._publish_all()  # The log must have the versions of a key in order.
        logged = self._publish(targets, run)
        self._has_versions = True
        if self._goes_on:
            # They are decided, and so have places, before a later message is compared with them.
            versions = zip(logged.contents, logged.indexes, strict=True)
            self._versions.setdefault(about, {}).update(zip(logged.keys, versions, strict=True))

    def _hold_unchanged(self, targets: _Targets, run: _Run) -> None:
        queue = targets.queues[0]
        self._unchanged.setdefault(queue.number, (queue, []))[1].append(run)
        if self._goes_on:
            self._unchanged_keys.setdefault(run.messages[0].object, set()).update(run.keys)

    def _publish_all(self) -> None:
        self._publish_together()
        for queue, runs in self._unchanged.values():
            for run in _alike(runs):
                self._answer_unchanged(queue, run)
        self._unchanged.clear()
        self._unchanged_keys.clear()

    # ── Queues ──────────────────────────────────────────────────────────────────────────────────────────────

    def _targets_of(self, message: NewMessage, count: int) -> _Targets:
        key = (message.topics, "" if message.topics else message.object)
        targets = self._targets.get(key)
        if targets is None:
            targets = self._targets[key] = _Targets(self._queues_of(message))
        self._deliveries += len(targets.queues) * count
        if self._deliveries > PUBLISH_DELIVERIES_MAX:
            raise RefusedError(Refused(Reason.TOO_MANY_DELIVERIES, f"at most {PUBLISH_DELIVERIES_MAX}"))
        return targets

    def _queues_of(self, message: NewMessage) -> list[Queue]:
        if self._command.queue:
            return [self._queue(self._command.queue)]
        named = [self._queue(name) for name in roots(message.topics, message.object)]
        state = self._draft.state
        wanting = [state.queues[number] for number in state.routing.channels(message.topics)]
        return list({queue.number: queue for queue in [*named, *wanting]}.values())

    def _queue(self, name: str) -> Queue:
        """The queue of this name, which is created if it does not exist."""
        queue = self._draft.queue(name)
        if queue and queue.settings.topics:
            raise RefusedError(Refused(Reason.IS_CHANNEL, name))
        return queue or self._create(name)

    def _create(self, name: str) -> Queue:
        """Create a queue, and its dead-letter queue if that does not exist. A dead-letter queue has none itself."""
        settings, policy = self._command.create, self._command.create.redrive_policy
        if policy and policy.dead_letter_queue == name:
            settings = replace(settings, redrive_policy=None, retries=0)
        elif policy and not has_queue(self._draft, policy.dead_letter_queue):
            self._create(policy.dead_letter_queue)
        return make_queue(self._draft, name, settings)

    # ── Unchanged content ───────────────────────────────────────────────────────────────────────────────────

    def _compared(self, run: _Run) -> _Run:
        """The run with the places of the newest versions that have the same content."""
        about, keys = run.messages[0].object, run.keys
        contents = content_digests([message.body for message in run.messages])
        places, unknown, seen = self._draft.state.history.compare(about, keys, contents)
        versions = self._versions.get(about, {})
        if not versions.keys().isdisjoint(keys):
            unknown = self._compare_with_own(about, keys, contents, places)
        self._new_keys += unknown
        return _Run(run.indexes, run.messages, keys, contents, places, seen)

    def _compare_with_own(
        self, about: str, keys: Sequence[bytes], contents: list[bytes], places: list[Place | None]
    ) -> int:
        """Compare with earlier versions in this command, which are newer than those of the history. Returns how many
        keys are in neither."""
        versions = self._versions[about]
        self._publish_together()
        for at, (key, content) in enumerate(zip(keys, contents, strict=True)):
            if key in versions:
                digest, index = versions[key]
                answer = self._answers[index]
                places[at] = (answer.queue, answer.sequence) if digest == content else None
        others = [key for key in keys if key not in versions]
        return self._draft.state.history.compare(about, others, [b""] * len(others)).unknown

    def _answer_unchanged(self, queue: Queue, run: _Run) -> None:
        draft, number = self._draft, queue.number
        messages, places = run.messages, [place for place in run.places if place]
        first = draft.take(queue, len(messages))
        if len(messages) >= RUN_MESSAGES_MIN:
            columns = ([queue for queue, _ in places], [sequence for _, sequence in places])
            keys = list(run.keys)
            facts = (draft.now, number, first, messages[0].priority, *numbers_of(draft, messages[0]))
            draft.events.append(UnchangedRun(*facts, *columns, keys))
        else:
            for sequence, (message, place) in enumerate(zip(messages, places, strict=True), start=first):
                facts = (draft.now, number, sequence, message.priority, *numbers_of(draft, message))
                draft.events.append(Unchanged(*facts, *place, message.key, message.headers))
        for sequence, index in enumerate(run.indexes, start=first):
            self._answers[index] = Published(number, sequence, "U")

    def _publish_once(self, run: _Run, targets: _Targets) -> bool:
        """Publish one message to the queues that do not have its content yet. Returns false if there are none."""
        (index,), (message,) = run.indexes, run.messages
        digest = sha256(message.body).digest()
        wanting = targets.not_having(digest, self._fresh)
        if wanting.queues:
            remembers = wanting.queues[0].settings.deduplication
            self._publish_to(wanting, [run], digest if remembers else b"")
            published = self._answers[index]
            place = (published.queue, published.sequence)
            self._fresh.update({(queue.number, digest): place for queue in wanting.queues})
            return True
        queue = targets.queues[0]
        twin = queue.digests.get(digest)
        place = (queue.number, twin) if twin else self._fresh[queue.number, digest]
        self._answers[index] = Published(*self._draft.state.origins.get(place, place), "Q")
        return False

    # ── Messages that go to the same queues ─────────────────────────────────────────────────────────────────

    def _publish_together(self) -> None:
        if self._together and self._to:
            runs, self._together = self._together, []
            self._publish_to(self._to, _alike(runs), b"")

    def _publish_to(self, targets: _Targets, runs: list[_Run], digest: bytes) -> None:
        queue, count = targets.queues[0], sum([len(run.messages) for run in runs])
        first = sequence = self._draft.take(queue, count)
        names = (targets.queue_names, targets.channel_names)
        logged: list[Logged] = []
        for run in runs:
            logged += self._log(run, queue, sequence, digest)
            for index in run.indexes:
                self._answers[index] = Published(queue.number, sequence, "Q", *names)
                sequence += 1
        if targets.others:
            messages = [message for run in runs for message in run.messages]
            self._draft.events.append(self._queued(targets, messages, logged, first))

    def _log(self, run: _Run, queue: Queue, first: int, digest: bytes) -> list[Logged]:
        """Log a run, in one event if it is long enough; then the fields of the first message hold for each."""
        draft, messages = self._draft, run.messages
        if len(messages) < RUN_MESSAGES_MIN:
            logged = [log(draft, each, queue, sequence, digest) for sequence, each in enumerate(messages, first)]
            draft.events += logged
            return logged
        of_first = log(draft, messages[0], queue, first, digest)
        keys = run.keys if messages[0].key else ()
        draft.events.append(run_of(of_first, [message.body for message in messages], keys, run.contents, run.seen))
        return [of_first] * len(messages)

    def _queued(self, targets: _Targets, messages: list[NewMessage], logged: list[Logged], first: int) -> QueuedRun:
        """The event with which the messages enter the other queues, queue by queue."""
        count, places = len(messages), len(targets.others)
        sequences: list[int] = []
        for queue in targets.others:
            start = self._draft.take(queue, count)
            sequences += range(start, start + count)
        visible_at, expires_at = self._times(targets, messages)
        return QueuedRun(
            self._draft.now,
            targets.numbers if count == 1 else [number for number in targets.numbers for _ in range(count)],
            sequences,
            [self._draft.now] * (count * places),
            visible_at,
            expires_at,
            [message.priority for message in messages] * places,
            [each.content_type for each in logged] * places,
            [each.sender for each in logged] * places,
            [each.object for each in logged] * places,
            [each.topics for each in logged] * places,
            [targets.queues[0].number] * (count * places),
            list(range(first, first + count)) * places,
        )

    def _times(self, targets: _Targets, messages: list[NewMessage]) -> tuple[list[Nanos], list[Nanos]]:
        """When the messages become visible and when they expire, queue by queue."""
        now = self._draft.now
        own = any(message.delay_ns is not None or message.expires_ns is not None for message in messages)
        if targets.times and not own:
            size = len(messages) * len(targets.others)
            delay_ns, retention_ns = targets.times
            return [min(now + delay_ns, NEVER_NS)] * size, [min(now + retention_ns, NEVER_NS)] * size
        visible_at, expires_at = [], []
        for queue in targets.others:
            for message in messages:
                delay_ns = queue.settings.delay_ns if message.delay_ns is None else message.delay_ns
                expires_ns = queue.settings.retention_ns if message.expires_ns is None else message.expires_ns
                visible_at.append(min(now + delay_ns, NEVER_NS))
                expires_at.append(min(now + expires_ns, NEVER_NS))
        return visible_at, expires_at


class _PublishingVersions(_Publishing):
    """Publishes in one of several shards: those that answer for the keys of new versions learn of them."""

    def _publish_to(self, targets: _Targets, runs: list[_Run], digest: bytes) -> None:
        super()._publish_to(targets, runs, digest)
        for run in runs:
            if run.contents and run.places[0] is None:
                first = self._answers[run.indexes[0]]
                facts = (first.queue, first.sequence, len(run.messages))
                self._draft.events.append(Versioned(self._draft.now, *facts))


class _PublishingForAll(_PublishingVersions):
    """Publishes to the queues and channels here, with a promise to those elsewhere."""

    def _queues_of(self, message: NewMessage) -> list[Queue]:
        state, names = self._draft.state, roots(message.topics, message.object)
        if channels := [name for name in names if state.is_channel(name)]:
            raise RefusedError(Refused(Reason.IS_CHANNEL, channels[0]))
        here = [name for name in names if not state.is_elsewhere(name)]
        named = [self._queue(name) for name in here or names[:1]]
        wanting = [state.queues[number] for number in state.routing.channels(message.topics)]
        return list({queue.number: queue for queue in [*named, *wanting]}.values())

    def _publish_to(self, targets: _Targets, runs: list[_Run], digest: bytes) -> None:
        super()._publish_to(targets, runs, digest)
        for run in runs:
            message, first = run.messages[0], self._answers[run.indexes[0]]
            if message.topics:
                facts = (first.queue, first.sequence, len(run.messages), _options(run, message))
                self._draft.events.append(Routed(self._draft.now, *facts))
                self._name_those_elsewhere(run, message)

    def _name_those_elsewhere(self, run: _Run, message: NewMessage) -> None:
        """Couriers take the messages to these queues too. Their channels are not known here."""
        names = roots(message.topics, "")
        elsewhere = {name for name in names if self._draft.state.is_elsewhere(name)}
        for index in run.indexes if elsewhere else ():
            answer = self._answers[index]
            named = elsewhere.union(answer.queues)
            self._answers[index] = replace(answer, queues=tuple([name for name in names if name in named]))


def _options(run: _Run, message: NewMessage) -> int:
    options = 0 if message.delay_ns is None else OWN_DELAY
    options |= 0 if message.expires_ns is None else OWN_LIFETIME
    return options | (IS_UNCHANGED if run.places and run.places[0] else 0)


def _cut(indexes: range, messages: Sequence[NewMessage]) -> Iterator[_Run]:
    """Divide messages into runs in which no key occurs twice."""
    keys = [message.key for message in messages]
    start = 0
    if keys[0] and len(set(keys)) < len(keys):
        seen: set[bytes] = set()
        for at, key in enumerate(keys):
            if key in seen:
                yield _Run(indexes[start:at], messages[start:at], keys[start:at])
                start = at
                seen.clear()
            seen.add(key)
    yield _Run(indexes[start:], messages[start:], keys[start:])


def _each(run: _Run) -> list[_Run]:
    """The messages as runs of one."""
    return [run.part(at, at + 1) for at in range(len(run.messages))]


def _split(run: _Run) -> Iterator[_Run]:
    """Divide a run into consecutive messages that are new or unchanged."""
    start = 0
    for _, some in groupby(run.places, lambda place: place is None):
        stop = start + len(list(some))
        yield run.part(start, stop)
        start = stop


def _parted(run: _Run) -> tuple[_Run, _Run]:
    """The new and the unchanged messages of a run."""
    new = run.places.count(None)
    if new == len(run.places):
        return run, _NOTHING
    if new == 0:
        return _NOTHING, run
    is_new = [place is None for place in run.places]
    return run.chosen(is_new), run.chosen([not each for each in is_new])


def _alike(runs: list[_Run]) -> list[_Run]:
    """Join consecutive runs that differ only in bodies and keys."""
    if len(runs) == 1:
        return runs
    return [_joined(runs[start:stop]) for start, stop in runs_of([run.messages[0] for run in runs])]


def _joined(runs: list[_Run]) -> _Run:
    return _Run(*[list(chain.from_iterable(column)) for column in zip(*runs, strict=True)])
