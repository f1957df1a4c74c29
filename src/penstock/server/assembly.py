"""All services of a broker that use its writer, in the order in which they start, stop and close.

Services that read and write come first, and the threads that others read in come last. The services that keep the
state on disk (`history_writes`, `snapshots`) are not among them: they stop after the writer has stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.broker.figures.waits import Histogram, LastMinute
from penstock.broker.identities import Identities
from penstock.broker.metrics import HealthService
from penstock.broker.services.audit import Audit
from penstock.broker.services.backups import Backups
from penstock.broker.services.connections import Connections
from penstock.broker.services.consumers import ConsumersService
from penstock.broker.services.courier_source import CourierSource
from penstock.broker.services.courier_target import CourierTarget
from penstock.broker.services.damage import DamagedMessages
from penstock.broker.services.disk import DiskService
from penstock.broker.services.event_encoders import EventTexts
from penstock.broker.services.event_streams import EventStreams
from penstock.broker.services.jobs import Purges, Redrives, of_kind
from penstock.broker.services.lake_reads import LakeReads
from penstock.broker.services.loans.borrower import Borrower
from penstock.broker.services.loans.lender import Lender
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.message_traces import MessageTraces
from penstock.broker.services.name_sweep import NameSweeps
from penstock.broker.services.push import PushChannels
from penstock.broker.services.questions import Answers, Questions
from penstock.broker.services.recalls import Recalls
from penstock.broker.services.search import Searches
from penstock.broker.services.staged_batches import StagedBatches, StagedRows
from penstock.broker.services.stats import StatsService
from penstock.broker.services.token_changes import TokenChanges
from penstock.broker.services.waits import Waits
from penstock.broker.services.workers import WorkerReports
from penstock.broker.turns import Turns
from penstock.broker.writer.port import ServicePort
from penstock.config.config import Config
from penstock.model.consumers import ListConsumers
from penstock.model.health import ReadHealth
from penstock.model.jobs import StartPurge, StartRedrive
from penstock.model.message_reports import TraceMessage
from penstock.model.staging import CommitStaged
from penstock.model.waits import AwaitMessages
from penstock.storage.directory import Identity


class Forms(NamedTuple):
    """What dialects give to services, which do not know them."""

    event_writer: Callable[..., EventTexts]
    staged_rows: Callable[[bytes], StagedRows]


class Services(NamedTuple):
    audit: Audit
    courier: CourierTarget
    courier_source: CourierSource
    borrower: Borrower
    lender: Lender
    token_changes: TokenChanges
    damaged_messages: DamagedMessages
    staged_batches: StagedBatches
    name_sweeps: NameSweeps
    push: PushChannels
    disk: DiskService
    stats: StatsService
    connections: Connections
    consumers: ConsumersService
    questions: Questions
    lake_reads: LakeReads
    workers: WorkerReports
    redrives: Redrives
    purges: Purges
    health: HealthService
    searches: Searches
    waits: Waits
    recalls: Recalls
    traces: MessageTraces
    event_streams: EventStreams
    backups: Backups
    log_reads: LogReads


def assemble(
    writer: ServicePort,
    config: Config,
    identity: Identity,
    turns: Turns,
    backups: Callable[[ServicePort, LogReads, Audit], Backups],
    identities: Identities,
    forms: Forms,
    *,
    has_tokens: bool = True,
    commit_seconds: Histogram | None = None,
) -> Services:
    """`has_tokens`: this shard has the tokens of its store. `commit_seconds`: how long its commits take."""
    reads, consumers, ids = LogReads(writer), ConsumersService(writer), identity.message_ids
    searches, traces = Searches(writer, reads, turns), MessageTraces(writer, reads)
    push, audit = PushChannels(writer, ids(), config.push, random.random), Audit(writer, ids(), config.audit)
    courier_source = CourierSource(writer, reads)
    courier = CourierTarget(writer, config.topics.new_queue)
    commits = LastMinute(commit_seconds or Histogram())
    disk = DiskService(writer, Path(config.data), config.log)
    connections, health = Connections(writer), HealthService(writer)
    redrives, purges = Redrives(searches, audit), Purges(searches, audit)
    stats = StatsService(writer, push.error, config.events.readers_max, courier, commits, disk)
    streams = EventStreams(writer, reads, partial(forms.event_writer, ids()), config.events, identity)
    workers, copied = WorkerReports(writer), backups(writer, reads, audit)
    batches = StagedBatches(writer, config.topics.new_queue, forms.staged_rows)
    waits = Waits(writer, traces, courier_source, reads.names.name)
    answers: Answers = {
        **stats.answers,
        TraceMessage: traces.report,
        **push.answers,
        **searches.answers,
        **workers.answers,
        ListConsumers: consumers.consumers,
        **connections.answers,
        ReadHealth: health.health,
        **streams.answers,
        **copied.answers,
        CommitStaged: batches.commit,
        StartPurge: purges.purge,
        StartRedrive: redrives.redrive,
        **of_kind({"redrives": redrives, "purges": purges}),
    }
    return Services(
        audit=audit,
        courier=courier,
        courier_source=courier_source,
        borrower=Borrower(writer),
        lender=Lender(writer),
        token_changes=TokenChanges(writer, identities, has_tokens=has_tokens),
        damaged_messages=DamagedMessages(writer),
        staged_batches=batches,
        name_sweeps=NameSweeps(writer),
        push=push,
        disk=disk,
        stats=stats,
        connections=connections,
        consumers=consumers,
        questions=Questions(writer, audit, answers, {AwaitMessages: waits.take}),
        lake_reads=LakeReads(writer, config.lake.directory),
        workers=workers,
        redrives=redrives,
        purges=purges,
        health=health,
        searches=searches,
        waits=waits,
        recalls=Recalls(writer, traces),
        traces=traces,
        event_streams=streams,
        backups=copied,
        log_reads=reads,
    )
