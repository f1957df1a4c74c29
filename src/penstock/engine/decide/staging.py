"""Batches of stream processors: staged, committed, admitted to their queues step by step, dropped."""

from __future__ import annotations

from penstock.engine.decide.publish import publish, publish_run
from penstock.engine.decide.publish_topics import publish_topics
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import STAGED_CHUNKS_MAX
from penstock.model.answers import Decision, Done, Refused, StagedDescription, refuse
from penstock.model.commands import (
    AdmitRows,
    CommitBatch,
    DescribeStaged,
    DropStaged,
    Publish,
    PublishRun,
    PublishTopics,
    StageRows,
)
from penstock.model.events import Admitted, BatchCommitted, Staged, Unstaged
from penstock.model.values import Nanos

_DONE = Decision((), Done())


def stage_rows(engine: EngineState, command: StageRows, now: Nanos) -> Decision:
    staging = engine.staging
    if staging.is_committed(command.query, command.batch):
        return _DONE
    batch = staging.batches.get((command.query, command.batch))
    there = len(batch.parts.get(command.part, ())) if batch else 0
    if command.chunk < there:
        return _DONE
    if command.chunk > there:
        return refuse(Reason.NOT_STAGED, f"part {command.part} goes on with chunk {there}, not {command.chunk}")
    if staging.bytes + len(command.data) > command.bytes_max or staging.chunks >= STAGED_CHUNKS_MAX:
        return refuse(Reason.STAGING_FULL, f"{command.bytes_max >> 20} MiB, {STAGED_CHUNKS_MAX} chunks")
    missing = command.queues.difference(engine.numbers)
    if missing:
        return refuse(Reason.NO_QUEUE, min(missing))
    channels = [root for root in command.roots if engine.is_channel(root)]
    if channels:
        return refuse(Reason.IS_CHANNEL, min(channels))
    what = (command.query, command.batch, command.part, command.chunk, command.rows)
    return Decision((Staged(now, *what, now + command.lifetime_ns, command.data),), Done())


def commit_batch(engine: EngineState, command: CommitBatch, now: Nanos) -> Decision:
    staging = engine.staging
    if staging.is_committed(command.query, command.batch):
        return _DONE
    batch = staging.batches.get((command.query, command.batch))
    for part, chunks in command.parts:
        there = len(batch.parts.get(part, ())) if batch else 0
        if there != chunks:
            return refuse(Reason.NOT_STAGED, f"part {part} has {there} chunks of {chunks}")
    parts = tuple(part for part, chunks in command.parts if chunks)
    return Decision((BatchCommitted(now, command.query, command.batch, parts),), Done())


def admit_rows(engine: EngineState, command: AdmitRows, now: Nanos) -> Decision:
    """Publish, and note how far the batch has come, in one decision. Rows for a queue that was removed meanwhile are
    skipped; rows that are refused for another reason wait until they are not."""
    if not engine.staging.stands_at(command.query, command.batch, command.at):
        return refuse(Reason.NOT_STAGED)
    published = _published(engine, command.publish, now)
    if isinstance(published.answer, Refused) and published.answer.reason is not Reason.NO_QUEUE:
        return published
    admitted = Admitted(now, command.query, command.batch, *command.to)
    return Decision([*published.events, admitted], published.answer)


def _published(engine: EngineState, command: Publish | PublishRun | PublishTopics, now: Nanos) -> Decision:
    if isinstance(command, PublishTopics):
        return publish_topics(engine, command, now)
    if isinstance(command, PublishRun):
        return publish_run(engine, command, now)
    return publish(engine, command, now)


def drop_staged(engine: EngineState, command: DropStaged, now: Nanos) -> Decision:
    batches = engine.staging.batches
    if command.query:
        late = [batches[each] for each in [(command.query, command.batch)] if each in batches]
    else:
        late = [batch for batch in batches.values() if batch.expires_at <= now]
    return Decision([Unstaged(now, batch.query, batch.batch) for batch in late], Done())


def describe_staged(engine: EngineState, command: DescribeStaged, _: Nanos) -> Decision:
    staging = engine.staging
    admitting = sum(each.rows_left for each in staging.admissions if each.query == command.query)
    staged = [each.parts.values() for each in staging.batches.values() if each.query == command.query]
    rows = sum(chunk.rows for parts in staged for chunks in parts for chunk in chunks)
    return Decision((), StagedDescription(staging.committed.get(command.query), admitting, rows))
