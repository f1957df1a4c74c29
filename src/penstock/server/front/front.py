"""HTTP for all shards of a store, in one of its workers.

Hot paths are understood here, and their commands go where they belong. Other requests are sent as a whole to the
shard that they are about, or to all shards, whose answers are merged. `paths.py` has a row for each path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from penstock.broker.shard_map import ShardMap
from penstock.cluster.links.remote_requests import RequestPort
from penstock.cluster.routing.router import Router
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.ids import MessageIds
from penstock.model.client import Pending
from penstock.server.app import Application, route_of
from penstock.server.front.asking import Asking, Merge, Merging, settled
from penstock.server.front.local_requests import LocalRequests
from penstock.server.front.paths import At, Here, row_of
from penstock.shells.exchanges import Route


class Front:
    """A `shells.handler.Handler`."""

    def __init__(
        self,
        shards: ShardMap,
        own: Mapping[int, Application],
        router: Router,
        requests: Callable[[int], RequestPort],
        ids: MessageIds,
        home: Application | None = None,
    ) -> None:
        """`own`: the shards of this worker, which may change. `requests`: whole requests for any shard. `home`:
        answers what needs no shard; one of `own`, unless it is given."""
        self._shards = shards
        self._own = own
        self._requests = requests
        self._ids = ids
        self._home = home = home or own[min(own)]
        self.body_rule, self.refusal = home.body_rule, home.refusal
        self.head_refusal, self.failed = home.head_refusal, home.failed
        self.submit, self.ask = router.submit_as, router.ask
        self.decide_collected = router.decide_collected

    def route(self, request: http.Request) -> Route:
        if refused := self._home.refused(request):
            return refused
        request.is_identified = True
        path = route_of(http.segments_of(request.target))
        row = row_of(path, request.method)
        if isinstance(row, Here) or request.method not in self._home.routes[path]:
            return self._home.route(request)
        return self._route(row, request)

    def _route(self, row: At | Merge, request: http.Request) -> Route:
        try:
            found = row.shard_of(request, self._shards, self._ids) if isinstance(row, At) else row
        except ProtocolError:
            return self._home.route(request)  # Refuses it in the form of its dialect.
        if not isinstance(found, int):
            return partial(self._merge, found)
        application = self._own.get(found)
        return application.route(request) if application else partial(self._forward, found)

    def _forward(self, shard: int, request: http.Request) -> http.Awaited:
        return http.Awaited(lambda respond: self._requests(shard).ask(request, settled(respond)))

    def _merge(self, merge: Merge, request: http.Request) -> http.Response | http.Awaited:
        if refused := self._home.not_allowed(request):
            return refused
        facts = (self._shards, self._ids, self._requests, self._wrong)
        asking = Asking(request, *facts)
        return http.Awaited(partial(Merging, merge, asking))

    def _wrong(self, problem: ProtocolError) -> RequestPort:
        """Refuses a request for this."""
        route = partial(_always, partial(self._home.wrong, problem=problem))
        return LocalRequests(_Home(route, self.submit))


def _always(route: Route, _: http.Request) -> Route:
    return route


class _Home(NamedTuple):
    """The application that answers what needs no shard; commands go where they belong."""

    route: Callable[[http.Request], Route]
    submit: Callable[..., Pending | None]
