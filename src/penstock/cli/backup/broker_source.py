"""A broker as the source of a backup: its files over HTTP. A read that breaks off is continued."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlencode, urlsplit

import msgspec

from penstock.cli.exits import CommandError, Exit, exit_of_status
from penstock.client.trust import Trust, explain
from penstock.model.values import Position
from penstock.storage.backup.manifest import SourceState

_SECONDS_MAX = 60.0
_READ_BYTES = 1 << 20
_RANGE_BYTES = 16 << 20
_TRIES = 5


class _Several(msgspec.Struct):
    """What a broker with several shards answers."""

    shards: int = 0


class BrokerSource:
    def __init__(self, url: str, token: str, trust: Trust) -> None:
        self._url = url
        self._trust = trust
        self._parts = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> BrokerSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def state(self) -> SourceState:
        document = b"".join(self._get("/v1/backup"))
        if shards := msgspec.json.decode(document, type=_Several).shards:
            raise CommandError(
                f"{self._url} has {shards} shards, which can be backed up only while nobody serves them: stop it, and"
                " give its data directory with --data"
            )
        return msgspec.json.decode(document, type=SourceState)

    def snapshot(self, offset: int) -> Iterator[bytes]:
        return self._get("/v1/backup/snapshot", offset=offset)

    def history(self) -> Iterator[bytes]:
        return self._get("/v1/backup/history")

    def log(self, start: Position, end: Position) -> Iterator[bytes]:
        failed = 0
        while start < end:
            try:
                range_end = min(end, start + _RANGE_BYTES)
                for data in self._get("/v1/backup/log", **{"from": start, "to": range_end}):
                    start += len(data)
                    failed = 0
                    yield data
            except _BrokenOffError:
                failed += 1
                if failed == _TRIES:
                    raise

    def _get(self, path: str, **parameters: int) -> Iterator[bytes]:
        target = f"{self._parts.path.rstrip('/')}{path}?{urlencode(parameters)}".rstrip("?")
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
            self._close()
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

    def _close(self) -> None:
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
