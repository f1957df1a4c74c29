"""The wiring: a data directory, an engine, a log, the loop that joins them, and what listens in front of it."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import random
import secrets
import signal
import sys
from collections.abc import Callable
from functools import cached_property, partial
from importlib import resources
from typing import Any

import msgspec
import uvloop

from penstock import __version__
from penstock.dialects.etzel import Etzel, refusal
from penstock.dialects.glovebox.protocol import Glovebox
from penstock.dialects.mqs import Mqs
from penstock.dialects.native.channels import Channels
from penstock.dialects.native.claims import Claims
from penstock.dialects.native.consuming import Consuming
from penstock.dialects.native.objects import Objects
from penstock.dialects.native.publishing import Topics
from penstock.dialects.native.purging import Purges
from penstock.dialects.native.queues import Native
from penstock.dialects.native.search import Search
from penstock.dialects.native.staging import Staging
from penstock.dialects.nq import Nq, PullDefaults
from penstock.dialects.wire.http import (
    JSON,
    BodyRule,
    Headers,
    Request,
    Response,
    Routes,
    Steps,
    Work,
    error_response,
    method_not_allowed,
    segments_of,
)
from penstock.engine.engine import Engine
from penstock.errors import ConfigError, DataDirectoryError, HistoryError, InUseError, PenstockError, ProtocolError
from penstock.ids import MessageIds
from penstock.limits import SECOND_NS, SESSION_ID_MAX
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Nanos
from penstock.server.auth import Authenticator
from penstock.server.clock import Clock
from penstock.server.config import Address, Config
from penstock.server.descriptors import available, plan
from penstock.server.listening import listening_process
from penstock.server.metrics import CONTENT_TYPE, Metrics
from penstock.server.services.admission import Admitter
from penstock.server.services.damage import Damages
from penstock.server.services.history import Remembering
from penstock.server.services.name_sweep import NameSweeping
from penstock.server.services.purge import Purging
from penstock.server.services.push import Pushers
from penstock.server.services.redrive import Redriving
from penstock.server.services.search import Searching
from penstock.server.services.snapshots import Housekeeper
from penstock.server.services.spectators import Spectators
from penstock.server.services.traces import Tracing
from penstock.server.shells.browsers import policy_of
from penstock.server.shells.http import HttpServer, Result, Route
from penstock.server.shells.lines import LineServer
from penstock.server.shells.turns import Turns
from penstock.server.shells.unread import Unread
from penstock.server.shells.ws import Converse, WebSockets
from penstock.server.writer.loop import Loop, Timer
from penstock.storage.directory import DataDirectory, Identity
from penstock.storage.history.history import ObjectHistory
from penstock.storage.log.segments import SegmentLog

logger = logging.getLogger(__name__)

_REVIVE_SECONDS = 1.0
_LOOK_AROUND_SECONDS = 5.0
_WATCH_SECONDS = 1.0
_AFTER_LOSS = (
    "The broker has stopped; what it acknowledged in its last second may be lost. Start it again when the directory"
    " is in place, and let nothing remove files from it"
)
_TALK_DESCRIPTION = "What is spoken over connections that stay open. The rest is in /openapi.json."
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


class AsyncioScheduler:
    """The event loop, as `Loop` knows it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def from_thread(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ns / 1e9, callback)


class Application:
    """Every HTTP path of the broker."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        loop: Loop,
        metrics: Metrics,
        spectators: Spectators,
        admitter: Admitter,
        pushers: Pushers,
        turns: Turns,
    ) -> None:
        self._loop = loop
        self._metrics_of = metrics
        self._guarded = bool(config.auth.tokens)
        self._authenticator = Authenticator(config.auth.tokens)
        self._browsers = policy_of(config)
        ids = _ids(identity)
        mqs = Mqs(
            ids,
            oversize=config.mqs.oversize,
            delete_status=config.mqs.delete_status,
            batch_bytes_max=config.http.body_bytes_max,
        )
        etzel = Etzel(ids, QueueSettings())
        glovebox = Glovebox(config.glovebox, loop.waiting, lambda: secrets.randbelow(SESSION_ID_MAX + 1))
        conversations: dict[bytes, Converse] = {
            b"/connect/": glovebox.connect,
            b"/connect": lambda peer, _: etzel.converse(peer),  # Whoever gets as far has shown its token.
        }
        self._websockets = WebSockets(loop, config.ws, conversations)
        nq = Nq(
            settings=QueueSettings(keep="all", retention_ns=config.nq.retention_seconds * SECOND_NS),
            defaults=PullDefaults(config.nq.retry_num, config.nq.fail_timeout, config.nq.timeout),
            empty_status=config.nq.empty_status,
            request_bytes_max=config.http.body_bytes_max,
        )
        staging = Staging(
            admitter.commit,
            bytes_max=config.staging.bytes_max,
            lifetime_ns=config.staging.lifetime_seconds * SECOND_NS,
        )
        topics = Topics(ids, _topic_queues(config), config.http.body_bytes_max)
        consuming = Consuming(ids, self._settings_of, config.http.body_bytes_max, _soon)
        self._mqs = mqs
        self._body_rules = {
            route: dialect.body_rule for dialect in (nq, staging, topics, consuming) for route in dialect.routes
        }
        searching = Searching(loop, spectators, turns)
        tracing = Tracing(loop, spectators, ids)
        self._routes: Routes = {
            **mqs.routes,
            **nq.routes,
            **glovebox.routes,
            **Native(loop.submit, spectators).routes,
            **Objects(ids).routes,
            **Search(searching, tracing, Redriving(searching), ids, _soon).routes,
            **staging.routes,
            **Claims(ids).routes,
            **Channels(loop.submit, pushers.check, pushers.state).routes,
            **_joined(topics.routes, consuming.routes, Purges(Purging(searching)).routes),
            (b"health", 1): {b"GET": self._health, b"HEAD": self._health},
            (b"metrics", 1): {b"GET": self._metrics, b"HEAD": self._metrics},
            (b"openapi.json", 1): {b"GET": self._openapi, b"HEAD": self._openapi},
            (b"asyncapi.json", 1): {b"GET": self._asyncapi, b"HEAD": self._asyncapi},
        }
        self.submit = loop.submit
        self.decide_collected = loop.decide_collected

    def body_rule(self, method: bytes, target: bytes, headers: Headers) -> BodyRule:
        rule = self._body_rules.get(_route_of(segments_of(target)), self._mqs.body_rule)
        return rule(method, target, headers)

    def _settings_of(self, name: str) -> QueueSettings | None:
        queue = self._loop.engine.queue(name)
        return queue.settings if queue else None

    def refusal(self, headers: Headers) -> Response | None:
        reason = self._browsers.refusal(headers)
        return error_response(403, reason) if reason else None

    def route(self, request: Request) -> Route:
        segments = segments_of(request.target)
        if self._guarded and segments[0] != b"health":
            authorization = request.headers.get(b"authorization")
            if not self._authenticator.allows(authorization):
                challenge = b"WWW-Authenticate: " + self._authenticator.challenge(authorization) + b"\r\n"
                return lambda _: error_response(401, "a bearer token is needed", challenge)
        methods = self._routes.get(_route_of(segments))
        if methods is None:
            return self._handle_unknown
        handler = methods.get(request.method)
        if handler is None:
            return lambda _: method_not_allowed(list(methods))
        return partial(_handle, handler, segments[-1])

    def _handle_unknown(self, request: Request) -> Result:
        return self._websockets.handshake(request) or error_response(404, "there is nothing at this path")

    # ── The broker's own pages ──────────────────────────────────────────────────────────────────────────────

    def _health(self, request: Request, _: bytes) -> Response:
        """The reason may name files, and so is for those who have shown a token where there are tokens."""
        if self._loop.failure:
            known = self._authenticator.allows(request.headers.get(b"authorization"))
            reason = f": {self._loop.failure}" if known else ""
            return Response(503, f"red: the log cannot be written{reason}".encode(), _TEXT)
        if damaged := self._loop.engine.damaged:
            text = f"yellow: {damaged} damaged messages are set aside: see /v1/search?state=damaged"
            return Response(200, text.encode(), _TEXT)
        return Response(200, b"green", _TEXT)

    def _metrics(self, _: Request, __: bytes) -> Work:
        return Work(self._scraped())

    def _scraped(self) -> Steps:
        return Response(200, (yield from self._metrics_of.scrape()), b"Content-Type: " + CONTENT_TYPE + b"\r\n")

    def _openapi(self, _: Request, __: bytes) -> Response:
        return Response(200, self._description, JSON)

    def _asyncapi(self, _: Request, __: bytes) -> Response:
        return Response(200, self._talk_description, JSON)

    @cached_property
    def _talk_description(self) -> bytes:
        """Every dialect that talks both ways describes itself in a file of its own; here they are one."""
        files = resources.files("penstock.dialects").joinpath("asyncapi").iterdir()
        parts = [msgspec.json.decode(file.read_bytes()) for file in sorted(files, key=str)]
        whole: dict[str, Any] = {
            "asyncapi": "3.0.0",
            "info": {"title": "Penstock", "version": __version__, "license": {"name": "Apache-2.0"}},
            "defaultContentType": "application/json",
        }
        about = [f"## {part['info']['title']}\n\n{part['info']['description']}" for part in parts]
        whole["info"]["description"] = "\n\n".join([_TALK_DESCRIPTION, *about])
        for section in ("servers", "channels", "operations"):
            whole[section] = {name: entry for part in parts for name, entry in part[section].items()}
        kinds = {kind for part in parts for kind in part["components"]}
        whole["components"] = {
            kind: {name: entry for part in parts for name, entry in part["components"].get(kind, {}).items()}
            for kind in sorted(kinds)
        }
        return msgspec.json.encode(whole) + b"\n"

    @cached_property
    def _description(self) -> bytes:
        return msgspec.json.encode(openapi()) + b"\n"


def _joined(*several: Routes) -> Routes:
    """Of rooms that share a path, each with methods of its own."""
    joined: Routes = {}
    for routes in several:
        for path, methods in routes.items():
            joined[path] = joined.get(path, {}) | methods
    return joined


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


def _topic_queues(config: Config) -> QueueSettings:
    """Of queues that a message to a topic makes."""
    topics = config.topics
    dead_letters = topics.dead_letter_queue
    # One more than there are retries: those decide, so that a message moves when its last delivery has failed.
    policy = RedrivePolicy(topics.retries + 1, dead_letters) if dead_letters else None
    return QueueSettings(
        redrive_policy=policy,
        retention_ns=topics.retention_seconds * SECOND_NS,
        visibility_ns=round(topics.visibility_seconds * SECOND_NS),
        detect_unchanged=topics.detect_unchanged,
        retries=topics.retries,
    )


def _ids(identity: Identity) -> MessageIds:
    """Each room has its own: what one has asked for lately is of no use to another."""
    return MessageIds(bytes.fromhex(identity.id_key), identity.shard)


def openapi() -> dict[str, Any]:
    """Every dialect describes itself in a file of its own; here they are one."""
    packaged = resources.files("penstock.dialects").joinpath("openapi").iterdir()
    parts = {file.name: msgspec.json.decode(file.read_bytes()) for file in packaged}
    whole: dict[str, Any] = parts.pop("mqs.json")  # The oldest: what all have in common is in it.
    for _, part in sorted(parts.items()):
        whole["tags"] += part["tags"]
        whole["paths"] |= part["paths"]
        for section, entries in part.get("components", {}).items():
            whole["components"].setdefault(section, {}).update(entries)
    whole["info"]["version"] = __version__
    return whole


def _handle(handler: Callable[[Request, bytes], Result], segment: bytes, request: Request) -> Result:
    try:
        return handler(request, segment)
    except ProtocolError as error:
        return error_response(400, str(error))


def _route_of(segments: list[bytes]) -> tuple[bytes, int]:
    """What a path is looked up by. Below /v1 the second segment says what it is about."""
    if segments[0] == b"v1" and len(segments) > 1:
        return b"v1/" + segments[1], len(segments)
    return segments[0], len(segments)


class Broker:
    """One broker from start to stop."""

    def __init__(self, config: Config) -> None:
        self.config, self._backlog = plan(config, available())
        self.directory = DataDirectory(config.data)
        self._clock = Clock()
        self._clock_is_off = False
        self._stop = asyncio.Event()
        self._reviving: asyncio.Task[None] | None = None
        self._lost: str | None = None  # Why the data directory cannot be used any more.

    async def run(self) -> int:
        """Serve until told to stop; the exit code."""
        identity = self.directory.open()
        try:
            engine, log = self._start()
            running = asyncio.get_running_loop()
            self.loop = Loop(engine, log, self._clock, AsyncioScheduler(running))
            self.loop.on_failure = self._on_failure
            self.metrics = Metrics(self.loop)
            self.loop.on_commit_seconds = self.metrics.commit_seconds.observe
            self.damages = Damages(self.loop)
            self._keep_house(log)
            self.loop.on_commit.append(lambda: self.housekeeper.after_commit())
            self.loop.on_commit.append(lambda: self.remembering.after_commit())
            self.spectators = self.metrics.spectators = Spectators(self.loop, _ids(identity), self.config.events)
            self.pushers = self.metrics.pushers = Pushers(self.loop, _ids(identity), self.config.push, random.random)
            self.name_sweeping = NameSweeping(self.loop)
            self.admitter = Admitter(self.loop, _topic_queues(self.config))
            turns, unread = Turns(lambda: not self.loop.idle), Unread(self.config.unread_bytes_max)
            self.loop.on_commit.append(turns.after_commit)
            application = Application(
                self.config,
                identity,
                self.loop,
                self.metrics,
                self.spectators,
                self.admitter,
                self.pushers,
                turns,
            )
            self.http = self.metrics.http = HttpServer(application, self.config.http, turns, unread)
            self.lines = self.metrics.lines = self._line_server(identity, turns, unread)
            gc.freeze()  # What was recovered is here to stay.
            listeners = [
                await self._listen(self.http, self.config.http.address, self._backlog),
                await self._listen(self.lines, self.config.lines.address, self._backlog),
            ]
            for number in (signal.SIGTERM, signal.SIGINT):
                running.add_signal_handler(number, self._stop.set)
            http, lines = (str(Address(*each.sockets[0].getsockname()[:2])) for each in listeners)
            logger.info("listening", extra={"http": http, "lines": lines, "data": str(self.config.data)})
            self.pushers.start()
            rounds = [asyncio.create_task(self._look_around()), asyncio.create_task(self._watch_directory())]
            self.admitter.resume()
            await self._stop.wait()
            for each in rounds:
                each.cancel()
            code = await self._shut_down(listeners)
            if self._lost:
                raise DataDirectoryError(f"{self._lost}. {_AFTER_LOSS}")
            return code
        finally:
            self.directory.close()

    def _line_server(self, identity: Identity, turns: Turns, unread: Unread) -> LineServer:
        etzel = Etzel(_ids(identity), QueueSettings())
        admits = Authenticator(self.config.auth.tokens).admits if self.config.auth.tokens else None
        return LineServer(
            self.loop, self.config.lines, lambda peer: etzel.converse(peer, admits), refusal, turns, unread
        )

    @staticmethod
    async def _listen(server: HttpServer | LineServer, address: Address, backlog: int) -> asyncio.Server:
        try:
            return await server.listen(*address, backlog)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InUseError(
                    f"cannot listen on {address}: {listening_process(address.port)} listens there."
                    " Stop it, or choose another address: --http HOST:PORT, --lines HOST:PORT"
                ) from None
            raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None

    # ── Start and restart ───────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> tuple[Engine, SegmentLog]:
        try:
            return self._recover()
        except OSError as error:
            raise DataDirectoryError(f"cannot use {self.config.data}: {error}") from error

    def _recover(self) -> tuple[Engine, SegmentLog]:
        try:
            self.history = ObjectHistory(self.directory.history, keys_max=self.config.history.keys_max)
            try:
                return self._replay(self.history)
            except BaseException:
                self.history.close()
                raise
        except HistoryError as error:
            rebuild = f"penstock log rebuild-history {self.config.data}"
            raise HistoryError(f"{error}. Rebuild the Object History from the log: {rebuild}") from error

    def _replay(self, history: ObjectHistory) -> tuple[Engine, SegmentLog]:
        engine = Engine(history, self.config.names.max)
        log = SegmentLog(self.directory, segment_bytes=self.config.log.segment_bytes)
        sections, events = log.recover()
        if sections is not None:
            engine.restore(sections)
        replayed = 0
        for event, position in events:
            if history.behind:
                history.settle(log.segments[0].base_position)
            engine.evolve(event, position)
            replayed += 1
        if history.reached > log.durable_position:
            raise HistoryError(f"{history.path} is ahead of the log, which ends at position {log.durable_position}")
        history.holds = log.holds
        logger.info(
            "recovered", extra={"replayed": replayed, "offset": log.durable_offset, "queues": len(engine.queues)}
        )
        return engine, log

    def _keep_house(self, log: SegmentLog) -> None:
        self.log = log
        self.remembering = self.metrics.remembering = Remembering(self.history, log)
        self.housekeeper = Housekeeper(self.loop, log, self.config.log, self.remembering)
        self.metrics.housekeeper = self.housekeeper
        self.remembering.on_written = self.housekeeper.after_commit
        self.damages.start(log)

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_AROUND_SECONDS)
            self._follow_clock()
            if not self.loop.failure:
                self.housekeeper.look_around()
                self.remembering.rest()
                self.admitter.look_around()

    async def _watch_directory(self) -> None:
        """Stop when the directory is no longer ours: what is acknowledged could be lost, and what is written could be
        in another broker's way."""
        while not (lost := self.directory.lost()):  # noqa: ASYNC110 - The file system does not say so by itself.
            await asyncio.sleep(_WATCH_SECONDS)
        self._lost = lost
        logger.critical("data_directory_lost", extra={"reason": lost})
        if not self.loop.failure:
            self.loop.fail(DataDirectoryError(lost))
        self._stop.set()

    def _follow_clock(self) -> None:
        """Log once that somebody has set the clock, and be on time while the correction lasts."""
        error = self._clock.follow()
        if error:
            self.loop.rearm()
        if abs(error) > SECOND_NS and not self._clock_is_off:
            logger.warning("clock_set", extra={"seconds": error / SECOND_NS})
        self._clock_is_off = bool(error)

    def _on_failure(self, _: BaseException) -> None:
        self.housekeeper.stop()
        if self._lost:
            return
        self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        """Cut off what nobody was told of, replay the rest, and go on, as soon as the disk lets us."""
        while self.loop.failure:
            await asyncio.sleep(_REVIVE_SECONDS)
            if self.directory.lost():
                return
            try:
                await asyncio.to_thread(self.remembering.close)
                await asyncio.to_thread(self.log.abandon)
                engine, log = await asyncio.to_thread(self._recover)
            except (OSError, PenstockError) as error:
                self.loop.failure = f"it cannot be reopened: {error}"
                logger.error("revival_failed", extra={"reason": str(error)})
                continue
            self.loop.revive(engine, log)
            self.pushers.start()
            self._keep_house(log)
            self.admitter.resume()
            logger.warning("revived", extra={"offset": log.durable_offset})

    # ── Stop ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _shut_down(self, listeners: list[asyncio.Server]) -> int:
        logger.info("stopping")
        self.admitter.stop()
        self.name_sweeping.stop()
        for listener in listeners:
            listener.close()
        self.http.stop()
        self.lines.stop()
        self.pushers.stop()
        self.loop.release_waiters()
        await self._until(
            lambda: not (self.http.connections or self.lines.connections or self.pushers.in_flight),
            self.config.stop_seconds,
        )
        self.http.close()
        self.lines.close()
        self.pushers.close()
        await asyncio.to_thread(self.spectators.close)
        await self._until(lambda: self.loop.idle or bool(self.loop.failure), self.config.stop_seconds)
        if self._reviving:
            self._reviving.cancel()
        failed = bool(self.loop.failure) or not self.loop.idle or not await self.remembering.drain()
        if failed:
            self.housekeeper.stop()
        else:
            self.housekeeper.final_snapshot()
        await asyncio.to_thread(self.remembering.close)
        self.log.close()
        logger.info("stopped", extra={"offset": self.log.durable_offset})
        return 1 if failed else 0

    @staticmethod
    async def _until(condition: Callable[[], bool], seconds: float) -> None:
        running = asyncio.get_running_loop()
        deadline = running.time() + seconds
        while not condition() and running.time() < deadline:  # noqa: ASYNC110 - Once, at the very end.
            await asyncio.sleep(0.01)


def serve(config: Config) -> int:
    sys.setswitchinterval(0.0005)  # The log's thread waits for the interpreter after each sync: not for long.
    gc.set_threshold(50_000, 20, 100)

    async def run() -> int:
        return await Broker(config).run()

    return uvloop.run(run())
