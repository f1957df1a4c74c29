"""Every HTTP path of the broker: which dialect serves it, who may use it, and the broker's own pages."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial

from penstock import __version__
from penstock.broker.identities import Identities, digest_of
from penstock.broker.quotas.quotas import checked_limits
from penstock.broker.quotas.work import counted
from penstock.broker.writer.port import ClientPort, ServicePort
from penstock.cluster.links.link_state import state_alone
from penstock.cluster.links.relay import Relay
from penstock.config.config import Config
from penstock.console.files import Console
from penstock.dialects.etzel.conversation import Etzel
from penstock.dialects.glovebox.protocol import Glovebox
from penstock.dialects.glovebox.status import Status
from penstock.dialects.mqs import Mqs
from penstock.dialects.native.about import About, Cluster
from penstock.dialects.native.backup import Backup
from penstock.dialects.native.channels import Channels
from penstock.dialects.native.consume import Consuming
from penstock.dialects.native.consumers import Consumers
from penstock.dialects.native.event_log import EventLog
from penstock.dialects.native.jobs import Purges
from penstock.dialects.native.lake import Lake
from penstock.dialects.native.objects import Objects
from penstock.dialects.native.publish import Idempotency, Publishing
from penstock.dialects.native.queues import Queues
from penstock.dialects.native.schedules import Schedules
from penstock.dialects.native.search import Search
from penstock.dialects.native.spark.claims import Claims
from penstock.dialects.native.spark.staging import Staging
from penstock.dialects.native.stats import Stats
from penstock.dialects.native.tokens import Tokens
from penstock.dialects.native.wait import Waiting
from penstock.dialects.native.workers import Workers
from penstock.dialects.nq import Nq, PullDefaults
from penstock.dialects.wire import http
from penstock.errors import Fault, ProtocolError, Reason, RequestError
from penstock.ids import MessageIds
from penstock.limits import SECOND_NS, SESSION_ID_MAX
from penstock.model.access import EVERYTHING, NOBODY, Access
from penstock.model.answers import Refused
from penstock.model.client import Client
from penstock.model.cluster import ClusterState
from penstock.model.health import RED, Health, ReadHealth
from penstock.model.permissions import NotAllowedError, denied, require
from penstock.model.probe import Probe
from penstock.model.settings import QueueSettings
from penstock.server.assembly import Services
from penstock.server.exposition import scraped
from penstock.server.later import Later
from penstock.server.later import asked as asked_of
from penstock.server.openapi import asyncapi_document, openapi_document
from penstock.server.settings import effective_settings
from penstock.server.subjects import Needs, form_of, needs_in_head, row_of, subject_of
from penstock.shells.browsers import policy_of
from penstock.shells.exchanges import Result, Route
from penstock.shells.handshake import GLOVEBOX, Converse, WebSockets
from penstock.storage.directory import Identity

_OPEN = frozenset((b"health", b"", b"console"))  # First segments of paths that need no token: they show no data.
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


class Application:
    """Every HTTP path of the broker."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        writer: ServicePort,
        services: Services,
        identities: Identities,
        clients: ClientPort | None = None,
        relay: Relay | None = None,
        cluster: Callable[[], ClusterState] = state_alone,
    ) -> None:
        """`clients`: where the commands of clients go, if there are several shards; services use the writer. `relay`:
        to other processes, if there are some. `cluster`: who serves what."""
        clients = clients or writer
        self._later = Later()
        self._asked = asked = partial(asked_of, clients.ask)
        self._audit = services.audit
        self._identities, self._ids = identities, ids_of(identity)
        self._browsers = policy_of(config, lambda: identities.is_guarded)
        self._console = _console(config) if config.console.enabled else None
        ids = self._ids
        mqs, nq = _mqs_of(config, ids), _nq_of(config)
        etzel = Etzel(ids, QueueSettings())
        new_session = relay.new_session if relay else partial(secrets.randbelow, SESSION_ID_MAX + 1)
        glovebox = Glovebox(config.glovebox, new_session, self._login)
        conversations: dict[bytes, Converse] = {
            GLOVEBOX: glovebox.connect,
            b"/connect": lambda peer, _: etzel.converse(
                peer, partial(self._login, peer) if peer.access is NOBODY else lambda _: peer.access
            ),
        }
        self.websockets = WebSockets(clients, config.ws, conversations, relay)
        staging = _staging_of(config, asked)
        idempotency = Idempotency(config.publish.idempotency_seconds * SECOND_NS, config.publish.idempotency_keys_max)
        publishing = Publishing(ids, config.topics.new_queue, config.http.body_bytes_max, idempotency)
        consuming = Consuming(ids, config.http.body_bytes_max, _soon)
        waiting = Waiting(asked, ids)
        self._mqs = mqs
        schedules = Schedules(clients.submit_as, ids, config.topics.new_queue)
        ruled = (nq, staging, publishing, consuming, waiting, schedules)
        self._body_rules = {route: dialect.body_rule for dialect in ruled for route in dialect.routes}
        later = self._later
        search = Search(ids, _soon, waiting, asked)
        self.routes: http.Routes = {
            **mqs.routes,
            **nq.routes,
            **Status(asked).routes,
            **Queues(counted(clients.submit_as)).routes,
            **EventLog(asked, identity.shards).routes,
            **Objects(ids).routes,
            **Backup(asked, identity.shards).routes,
            **search.routes,
            **schedules.routes,
            **waiting.routes,
            **staging.routes,
            **Tokens(clients.submit_as, identities, _new_secret, checked_limits).routes,
            **Claims(ids).routes,
            **Stats(asked).routes,
            **Consumers(asked).routes,
            **Lake(services.lake_reads, later).routes,
            **Workers(asked).routes,
            **About(asked, partial(effective_settings, config)).routes,
            **Cluster(cluster).routes,
            **(self._console.routes if self._console else {}),
            **Channels(counted(clients.submit_as), asked).routes,
            **_joined(publishing.routes, consuming.routes, Purges(asked).routes),
            **self._pages(),
        }
        self.submit, self.ask = clients.submit_as, clients.ask
        self.decide_collected = clients.decide_collected

    def close(self) -> None:
        """Whoever still waits for an answer gets none."""
        self._later.close()

    def body_rule(self, method: bytes, target: bytes, headers: http.Headers) -> http.BodyRule:
        rule = self._body_rules.get(route_of(http.segments_of(target)), self._mqs.body_rule)
        return rule(method, target, headers)

    def refusal(self, headers: http.Headers) -> http.Response | None:
        refused = self._browsers.refusal(headers)
        if refused is None:
            return None
        door = self._console.door(headers) if self._console and refused[0] is Fault.FORBIDDEN_ORIGIN else None
        return door or http.error_response(*refused)

    def head_refusal(self, request: http.Request) -> http.Response | None:
        self._identify(request)
        if request.access is NOBODY and self._is_guest(request):
            return self._refuse_login(request)
        path = route_of(http.segments_of(request.target))
        if request.access is EVERYTHING or request.method not in self.routes.get(path, ()):
            return None
        try:
            require(request.access, *needs_in_head(path, request, self._ids))
        except ProtocolError:
            return None  # Said in its turn.
        except RequestError as error:
            return self._failed(request, error)
        return None

    def _identify(self, request: http.Request) -> None:
        request.access = self._identities.anonymous  # Until it is known: finding out may fail.
        authorization = request.headers.get(b"authorization")
        if authorization is None:
            request.access = self._identities.of_certificate(request.certificate)
        else:
            request.access = self._identities.of_header(authorization)

    def failed(self, request: http.Request) -> http.Response:
        if request.access is not NOBODY or not self._identities.is_guarded:
            return http.error_response(Fault.INTERNAL)
        self._audit.refuse(request, "login", "", Fault.UNAUTHORIZED)
        return http.unauthorized(was_shown=True)

    @staticmethod
    def _is_guest(request: http.Request) -> bool:
        """Whether a client without an identity is refused. Conversations may begin without one, and then with a
        login."""
        first = http.segments_of(request.target)[0]
        is_login = first == b"connect" and b"authorization" not in request.headers
        return first not in _OPEN and not is_login

    def route(self, request: http.Request) -> Route:
        return self.refused(request) or self._found(request)

    def refused(self, request: http.Request) -> Route | None:
        """What answers a request that nobody handles. Sets the access that its client has."""
        if not request.is_identified:
            self._identify(request)
        if b"token=" in request.target and _has_token(request.target):
            return lambda _: http.error_response(Fault.TOKEN_IN_URL)
        if request.access is NOBODY and self._is_guest(request):
            return self._refuse_login
        return None

    def _found(self, request: http.Request) -> Route:
        segments = http.segments_of(request.target)
        path = route_of(segments)
        methods = self.routes.get(path)
        if methods is None:
            return self._handle_unknown
        handler = methods.get(request.method)
        if handler is None:
            return lambda _: http.method_not_allowed(list(methods))
        return partial(self._handle, row_of(path, request.method).needs, handler, segments[-1])

    def _refuse_login(self, request: http.Request) -> http.Response:
        self._audit.refuse(request, "login", "", Fault.UNAUTHORIZED)
        shown = request.headers.get(b"authorization")
        return http.unauthorized(was_shown=bool(shown), reason=self._identities.reason if shown else "")

    def _login(self, client: Client, token: str) -> Access:
        return self._audit.login(client, self._identities.of_token, token)

    def _handle(
        self,
        needs: Needs | None,
        handler: Callable[[http.Request, bytes], Result],
        segment: bytes,
        request: http.Request,
    ) -> Result:
        try:
            if needs:
                require(request.access, *needs(request))
            return handler(request, segment)
        except ProtocolError as error:
            return self._wrong(request, error)
        except RequestError as error:
            return self._failed(request, error)

    def _wrong(self, request: http.Request, problem: ProtocolError) -> Result:
        """What is wrong with a request is said only if its client may send it, and if there is what it names."""
        path = route_of(http.segments_of(request.target))
        form = form_of(path)
        try:
            subject = subject_of(path, request, self._ids)
            if isinstance(subject, tuple):
                require(request.access, *subject)
        except ProtocolError:
            subject = None
        except RequestError as error:
            return self._failed(request, error)
        if subject is None or isinstance(subject, tuple):
            return form.bad_request(problem)
        return http.Call(
            Probe(subject),
            lambda answer: form.refusal(answer) if isinstance(answer, Refused) else form.bad_request(problem),
        )

    def _failed(self, request: http.Request, error: RequestError) -> http.Response:
        if not isinstance(error, NotAllowedError):
            return http.failure(error)
        (verb, *_), name = error.need
        self._audit.refuse(request, verb, name, Reason.FORBIDDEN)
        return form_of(route_of(http.segments_of(request.target))).refusal(denied(error.need))

    def _handle_unknown(self, request: http.Request) -> Result:
        return self.websockets.handshake(request) or http.not_found(request)

    # ── The broker's own pages ──────────────────────────────────────────────────────────────────────────────

    def _pages(self) -> http.Routes:
        return {
            (b"health", 1): {b"GET": self._health, b"HEAD": self._health},
            (b"metrics", 1): {b"GET": self._metrics, b"HEAD": self._metrics},
            (b"openapi.json", 1): {b"GET": self._openapi, b"HEAD": self._openapi},
            (b"asyncapi.json", 1): {b"GET": self._asyncapi, b"HEAD": self._asyncapi},
        }

    def _health(self, request: http.Request, _: bytes) -> http.Awaited:
        return self._asked(request, ReadHealth(), _shown_health)

    def _metrics(self, _: http.Request, __: bytes) -> http.Work:
        return http.Work(scraped())

    def _openapi(self, _: http.Request, __: bytes) -> http.Response:
        return http.Response(200, openapi_document(), http.JSON)

    def _asyncapi(self, _: http.Request, __: bytes) -> http.Response:
        return http.Response(200, asyncapi_document(), http.JSON)


def _shown_health(health: Health) -> http.Response:
    text = ("green", "yellow", "red")[health.level] + (f": {health.text}" if health.text else "")
    return http.Response(503 if health.level == RED else 200, text.encode(), _TEXT)


def _new_secret() -> tuple[str, str]:
    secret = "pst_" + secrets.token_urlsafe(32)
    return secret, digest_of(secret.encode())


def _mqs_of(config: Config, ids: MessageIds) -> Mqs:
    return Mqs(
        ids,
        oversize=config.mqs.oversize,
        delete_status=config.mqs.delete_status,
        batch_bytes_max=config.http.body_bytes_max,
    )


def _staging_of(config: Config, asked: http.Asked) -> Staging:
    return Staging(
        asked,
        bytes_max=config.staging.bytes_max,
        lifetime_ns=config.staging.lifetime_seconds * SECOND_NS,
    )


def _nq_of(config: Config) -> Nq:
    return Nq(
        settings=config.nq.new_queue,
        defaults=PullDefaults(config.nq.retry_num, config.nq.fail_timeout, config.nq.timeout),
        empty_status=config.nq.empty_status,
        request_bytes_max=config.http.body_bytes_max,
    )


def _console(config: Config) -> Console:
    return Console({"version": __version__, "readOnly": config.console.read_only})


def _joined(*several: http.Routes) -> http.Routes:
    """Merge routes that share paths; each adds methods of its own."""
    joined: http.Routes = {}
    for routes in several:
        for path, methods in routes.items():
            joined[path] = joined.get(path, {}) | methods
    return joined


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


def ids_of(identity: Identity) -> MessageIds:
    return identity.message_ids()


def _has_token(target: bytes) -> bool:
    names = [each.partition(b"=")[0] for each in target.partition(b"?")[2].split(b"&")]
    return b"token" in names or b"access_token" in names


def route_of(segments: list[bytes]) -> tuple[bytes, int]:
    """The key of a path in the routes. Below /v1 the second segment names the resource."""
    if segments[0] == b"v1" and len(segments) > 1:
        return b"v1/" + segments[1], len(segments)
    return segments[0], len(segments)
