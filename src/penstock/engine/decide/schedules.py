"""Recurring schedules: set, removed, described, and run when they are due.

A schedule that is due publishes its message and plans its next tick in one decision. Both are in one batch of the
log: after a crash both count, or neither does, so each tick has one message. The calendar is asked here, and never in
a replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

import msgspec

from penstock.decoding import decode_msgpack
from penstock.engine.decide.draft import Draft, RefusedError
from penstock.engine.decide.promises import promise
from penstock.engine.decide.publish_topics import publish_topics
from penstock.engine.routing import roots
from penstock.engine.schedules import Planned
from penstock.errors import HistoryError, ProtocolError, Reason
from penstock.limits import (
    NEVER_NS,
    SCHEDULE_LATE_SECONDS,
    SCHEDULE_RETRY_SECONDS,
    SCHEDULE_TICKS_AT_ONCE,
    SCHEDULE_TICKS_CAUGHT_UP_MAX,
    SCHEDULES_BYTES_MAX,
    SCHEDULES_MAX,
    SECOND_NS,
)
from penstock.model.answers import Done, Published, Refused, ScheduleDescription, ScheduleList
from penstock.model.commands import NewMessage, PublishTopics
from penstock.model.cron import parse_cron
from penstock.model.schedules import (
    DeleteSchedule,
    DescribeSchedule,
    ListSchedules,
    RunDue,
    RunSchedule,
    Schedule,
    ScheduleRan,
    ScheduleRemoved,
    ScheduleSet,
    ScheduleSkipped,
    SetSchedule,
)
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Wish

_DONE = Done()


# ── Set, removed, described ─────────────────────────────────────────────────────────────────────────────────


def set_schedule(draft: Draft, command: SetSchedule) -> ScheduleDescription | Refused:
    before = draft.state.schedules.by_name.get(command.name)
    wanted = command.definition
    if before and before.definition == wanted and draft.state.queue_step == 1:
        return _description(
            before
        )  # With several shards it may have moved away, and back before that was known here.
    refused = _room_refusal(draft, before, wanted) or _target_refusal(draft, wanted)
    if refused:
        return refused
    if before and before.definition.timing == wanted.timing:
        following = before.next
    else:
        following = next(_ticks(draft, wanted, None), NEVER_NS)
        if following == NEVER_NS:
            why = f"no day matches {wanted.cron}" if wanted.cron else "it starts after the year 2262"
            return Refused(Reason.NEVER_RUNS, why)
    draft.events.append(ScheduleSet(draft.now, command.name, wanted, following))
    promise(draft, Wish.FORGET_SCHEDULE, command.name)  # It may have moved here.
    described = _description(before or Planned(command.name, wanted, following, following))
    return msgspec.structs.replace(described, definition=wanted, next=following, error="", is_new=before is None)


def _room_refusal(draft: Draft, before: Planned | None, wanted: Schedule) -> Refused | None:
    schedules = draft.state.schedules
    if before is None and len(schedules) >= SCHEDULES_MAX:
        return Refused(Reason.TOO_MANY_SCHEDULES, str(SCHEDULES_MAX))
    grown = wanted.size - (before.definition.size if before else 0)
    if grown > 0 and schedules.bytes + grown > SCHEDULES_BYTES_MAX:
        return Refused(Reason.TOO_MANY_SCHEDULES, f"{SCHEDULES_BYTES_MAX >> 20} MiB of messages")
    return None


def _target_refusal(draft: Draft, wanted: Schedule) -> Refused | None:
    state = draft.state
    if wanted.queue and wanted.queue not in state.numbers:
        return Refused(Reason.NO_QUEUE, wanted.queue)
    names = [wanted.queue] if wanted.queue else roots(wanted.topics, wanted.object)
    channels = [name for name in names if state.is_channel(name)]
    return Refused(Reason.IS_CHANNEL, channels[0]) if channels else None


def delete_schedule(draft: Draft, command: DeleteSchedule) -> Done:
    _find(draft, command.name)
    draft.events.append(ScheduleRemoved(draft.now, command.name))
    return _DONE


def describe_schedule(draft: Draft, command: DescribeSchedule) -> ScheduleDescription:
    return _description(_find(draft, command.name))


def list_schedules(draft: Draft, command: ListSchedules) -> ScheduleList:
    schedules, access = draft.state.schedules, command.access
    if access.sees_all:
        return ScheduleList(len(schedules), list(map(_description, schedules.page(command.offset, command.limit))))
    seen = [planned for planned in schedules.by_name.values() if access.sees(planned.name)]
    page = seen[command.offset : command.offset + command.limit]
    return ScheduleList(len(seen), list(map(_description, page)))


def _find(draft: Draft, name: str) -> Planned:
    planned = draft.state.schedules.by_name.get(name)
    if planned is None:
        raise RefusedError(Refused(Reason.NO_SCHEDULE, name))
    return planned


def _description(planned: Planned) -> ScheduleDescription:
    return ScheduleDescription(
        planned.name,
        planned.definition,
        planned.next,
        planned.runs,
        planned.missed,
        planned.last_run,
        planned.last_place,
        planned.error,
    )


# ── Ticks ───────────────────────────────────────────────────────────────────────────────────────────────────


def _ticks(draft: Draft, schedule: Schedule, first: Nanos | None) -> Iterator[Nanos]:
    """The ticks of a schedule in order, from a known one on; without one, those after now."""
    if schedule.every_ns:
        tick = _first_of_interval(schedule, draft.wall) if first is None else first
        while tick < NEVER_NS:
            yield tick
            tick += schedule.every_ns
    else:
        cron, zone = parse_cron(schedule.cron), _zone(draft, schedule.time_zone)
        following = cron.next_after(draft.wall, zone) if first is None else first
        while following is not None:
            yield following
            following = cron.next_after(following, zone)


def _first_of_interval(schedule: Schedule, now: Nanos) -> Nanos:
    """The first tick after now. Without a start, ticks are at whole seconds."""
    start = now - now % SECOND_NS + schedule.every_ns if schedule.start is None else schedule.start
    return start if start > now else now + schedule.every_ns - (now - start) % schedule.every_ns


def _zone(draft: Draft, name: str) -> tzinfo:
    zone = draft.state.zones(name)
    if zone is None:
        raise RefusedError(Refused(Reason.NO_TIME_ZONE, name))
    return zone


# ── Run ─────────────────────────────────────────────────────────────────────────────────────────────────────


def run_schedule(draft: Draft, command: RunSchedule) -> list[Published] | Refused:
    planned = _find(draft, command.name)
    published = _published(draft, planned, [draft.wall])
    if not isinstance(published, Refused):
        _note_run(draft, planned, published, draft.wall, planned.next, 0)
    return published


def run_due(draft: Draft, _: RunDue) -> Done:
    planned = draft.state.schedules.first_due(draft.wall)
    if planned:
        try:
            _catch_up(draft, planned)
        except RefusedError as error:  # Its time zone is not known any more.
            _skip(draft, planned, NEVER_NS, 1, error.refused.sentence)
        except ProtocolError as error:  # Another version has taken its cron expression, this one does not.
            _skip(draft, planned, NEVER_NS, 1, str(error))
    return _DONE


def _catch_up(draft: Draft, planned: Planned) -> None:
    """Run what is due: one tick, or those that nobody was there for."""
    ticks, following = _due_ticks(draft, planned)
    catch_up, too_old = planned.definition.catch_up, _too_old(draft, planned, ticks)
    if too_old:
        _skip(draft, planned, too_old[1], too_old[0])
    elif catch_up == "none" and draft.wall - ticks[-1] > SCHEDULE_LATE_SECONDS * SECOND_NS:
        _skip(draft, planned, following, len(ticks))
    elif catch_up == "all":
        rest = [*ticks[SCHEDULE_TICKS_AT_ONCE:], following]
        _run(draft, planned, ticks[:SCHEDULE_TICKS_AT_ONCE], rest[0], 0)
    else:
        _run(draft, planned, ticks[-1:], following, len(ticks) - 1)


def _due_ticks(draft: Draft, planned: Planned) -> tuple[list[Nanos], Nanos]:
    """The ticks that are due, as many as are looked at in one go, and the tick after them."""
    due: list[Nanos] = []
    for tick in _ticks(draft, planned.definition, planned.next):
        if tick > draft.wall or len(due) == 2 * SCHEDULE_TICKS_CAUGHT_UP_MAX:
            return due, tick
        due.append(tick)
    return due, NEVER_NS


def _too_old(draft: Draft, planned: Planned, ticks: list[Nanos]) -> tuple[int, Nanos] | None:
    """How many ticks are too old to be caught up with, and the first that is not."""
    late = len(ticks) - SCHEDULE_TICKS_CAUGHT_UP_MAX
    if late <= 0:
        return None
    if every_ns := planned.definition.every_ns:
        late = (draft.wall - planned.next) // every_ns + 1 - SCHEDULE_TICKS_CAUGHT_UP_MAX
        return late, planned.next + late * every_ns
    return late, ticks[late]


def _run(draft: Draft, planned: Planned, ticks: list[Nanos], following: Nanos, missed: int) -> None:
    published = _published(draft, planned, ticks)
    if not isinstance(published, Refused):
        _note_run(draft, planned, published, ticks[-1], following, missed)
    elif published.reason.retry:
        due_at = draft.wall + SCHEDULE_RETRY_SECONDS * SECOND_NS
        draft.events.append(
            ScheduleSkipped(draft.now, planned.name, planned.next, due_at, 0, published.sentence),
        )
    else:
        _skip(draft, planned, following, missed + len(ticks), published.sentence)


def _note_run(
    draft: Draft, planned: Planned, published: list[Published], tick: Nanos, following: Nanos, missed: int
) -> None:
    last = published[-1]
    facts = (planned.name, tick, following, len(published), missed, last.queue, last.sequence)
    draft.events.append(ScheduleRan(draft.now, *facts))


def _skip(draft: Draft, planned: Planned, following: Nanos, missed: int, error: str = "") -> None:
    draft.events.append(ScheduleSkipped(draft.now, planned.name, following, following, missed, error))


def _published(draft: Draft, planned: Planned, ticks: list[Nanos]) -> list[Published] | Refused:
    """A message for each tick: all, or none."""
    before = len(draft.events)
    try:
        answer = publish_topics(draft, _publish_of(planned, ticks))
    except RefusedError as error:
        answer = error.refused
    except HistoryError as error:
        answer = Refused(Reason.DAMAGED, str(error))
    if isinstance(answer, Refused):
        del draft.events[before:]
    return answer


def _publish_of(planned: Planned, ticks: list[Nanos]) -> PublishTopics:
    schedule = planned.definition
    kept = decode_msgpack(schedule.headers, dict[bytes, bytes]) if schedule.headers else {}
    messages = [
        NewMessage(
            schedule.body,
            schedule.content_type,
            schedule.priority,
            f"schedule:{planned.name}",
            schedule.object,
            schedule.topics,
            schedule.key,
            msgspec.msgpack.encode(kept | {b"timestamp": _text_of(tick)}),
            schedule.delay_ns,
            schedule.expires_ns,
        )
        for tick in ticks
    ]
    return PublishTopics(messages, schedule.create or QueueSettings(), schedule.queue)


def _text_of(tick: Nanos) -> bytes:
    """The time of a tick, as producers give theirs."""
    seconds, rest = divmod(tick, SECOND_NS)
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z".encode()
