"""A broker as the source of a backup: the files of its shards over HTTP. A read that breaks off is continued."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlencode, urlsplit

import msgspec

from penstock.cli.exits import CommandError, Exit, exit_of_status
from penstock.client.trust import Trust, explain
from penstock.decoding import decode_json
from penstock.model.values import Position
from penstock.storage.backup.manifest import SourceState
from penstock.storage.backup.source import StoreSource
from penstock.storage.shards import SHARDS_FORMAT, Shards

_SECONDS_MAX = 60.0
_READ_BYTES = 1 << 20
_RANGE_BYTES = 16 << 20
_TRIES = 5
_KEPT_SECONDS = 30.0  # A broker keeps the files of a shard for longer after each request for it.


class _Several(msgspec.Struct):
    """What a broker with several shards answers; one with one shard answers with its state."""

    shards: int = 0
    elsewhere: dict[str, int] = {}
    backups: list[SourceState] = []


class BrokerStore(StoreSource):
    """All shards of a broker, at one moment: the broker stops them for it."""

    def __init__(self, url: str, token: str, trust: Trust) -> None:
        self._broker = broker = BrokerSource(url, token, trust)
        self._kept_at = time.monotonic()
        self._sources = [broker]
        found, store = broker.described(), None
        if isinstance(found, _Several):
            self._sources = [BrokerSource(url, token, trust, shard, self._keep) for shard in range(found.shards)]
            key = found.backups[0].identity.id_key
            store = Shards(SHARDS_FORMAT, found.shards, key, found.elsewhere)
        super().__init__(self._sources, store)

    def __enter__(self) -> BrokerStore:
        return self

    def __exit__(self, *_: object) -> None:
        for source in (self._broker, *self._sources):
            source.close()

    def states(self) -> list[SourceState]:
        found = self._broker.described()
        self._kept_at = time.monotonic()
        return found.backups if isinstance(found, _Several) else [found]

    def _keep(self) -> None:
        """While one shard is copied, the others must keep their files too."""
        if time.monotonic() > self._kept_at + _KEPT_SECONDS:
            self._kept_at = time.monotonic()
            for source in self.shards:
                source.state()


class BrokerSource:
    """One shard."""

    def __init__(
        self,
        url: str,
        token: str,
        trust: Trust,
        shard: int | None = None,
        after_piece: Callable[[], None] = lambda: None,
    ) -> None:
        """`shard`: one of several. `after_piece`: called again and again while something is read."""
        self._url = url
        self._shard = {} if shard is None else {"shard": shard}
        self._after_piece = after_piece
        self._trust = trust
        self._parts = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> BrokerSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def described(self) -> SourceState | _Several:
        document = b"".join(self._get("/v1/backup"))
        several = decode_json(document, _Several)
        return several if several.shards else decode_json(document, SourceState)

    def state(self) -> SourceState:
        return decode_json(b"".join(self._get("/v1/backup")), SourceState)

    def snapshot(self, offset: int) -> Iterator[bytes]:
        return self._read("/v1/backup/snapshot", offset=offset)

    def history(self) -> Iterator[bytes]:
        return self._read("/v1/backup/history")

    def log(self, start: Position, end: Position) -> Iterator[bytes]:
        failed = 0
        while start < end:
            try:
                range_end = min(end, start + _RANGE_BYTES)
                for data in self._read("/v1/backup/log", **{"from": start, "to": range_end}):
                    start += len(data)
                    failed = 0
                    yield data
            except _BrokenOffError:
                failed += 1
                if failed == _TRIES:
                    raise

    def _read(self, path: str, **parameters: int) -> Iterator[bytes]:
        for data in self._get(path, **parameters):
            yield data
            self._after_piece()

    def _get(self, path: str, **parameters: int) -> Iterator[bytes]:
        target = f"{self._parts.path.rstrip('/')}{path}?{urlencode(self._shard | parameters)}".rstrip("?")
        try:
            response = self._ask(target)
            if response.status != 200:
                raise _refusal(self._url, path, response)
            left = int(response.getheader("Content-Length") or 0)
            while data := response.read(_READ_BYTES):
                left -= len(data)
                yield data
            if left > 0:  # The library does not notice it.
                raise http.client.IncompleteRead(b"", left)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _BrokenOffError(self._url, error) from error

    def _ask(self, target: str) -> http.client.HTTPResponse:
        connection = self._connection = self._connection or self._connect()
        connection.request("GET", target, headers=self._headers)
        return connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=_SECONDS_MAX, context=self._trust.context())
        return http.client.HTTPConnection(host, port, timeout=_SECONDS_MAX)

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None


class _BrokenOffError(CommandError):
    """A connection was lost. What follows can be asked for again."""

    def __init__(self, url: str, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        broken = f"the connection to {url} broke off: {reason}; run the backup again when the broker is there"
        super().__init__(explain(error, url) or broken, Exit.UNREACHABLE)


def _refusal(url: str, path: str, response: http.client.HTTPResponse) -> CommandError:
    body = response.read()
    try:
        sentence = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        sentence = f"status {response.status}"
    if response.status == 401:
        sentence += "; give it with --token, PENSTOCK_TOKEN or a profile"
    return CommandError(f"{url} refuses {path}: {sentence}", exit_of_status(response.status))
