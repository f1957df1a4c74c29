"""The broker: can it be reached, does it take the token, is it well, and how long does its certificate last?"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import SplitResult, urlsplit

from penstock.cli.doctor.finding import Finding, State, graded
from penstock.cli.profiles import Target

_SECONDS_MAX = 5.0
_CERTIFICATE_DAYS_GOOD = 14
_HEALTH = {"green": State.OK, "yellow": State.WARN}


def findings(target: Target) -> Iterator[Finding]:
    """Ask the broker two questions: one that needs no token, and one that does."""
    where = urlsplit(target.url.text)
    try:
        with contextlib.closing(_connection(where)) as connection:
            yield _health(connection, target.url.text)
            yield _access(connection, target)
            if isinstance(connection, HTTPSConnection):
                yield _certificate(connection)
    except (OSError, HTTPException, ValueError) as error:
        # Without an address of its own, the doctor looks where a broker would be: none may be running yet.
        state = State.WARN if target.url.source == "default" else State.FAIL
        found = f"{target.url.text} cannot be reached: {error}"
        yield Finding("broker", state, found, "start one with `penstock serve`, or name another with --url")


def _connection(where: SplitResult) -> HTTPConnection:
    host = where.hostname or ""
    if where.scheme == "https":
        return HTTPSConnection(host, where.port, timeout=_SECONDS_MAX, context=ssl.create_default_context())
    return HTTPConnection(host, where.port, timeout=_SECONDS_MAX)


def _health(connection: HTTPConnection, url: str) -> Finding:
    began = time.perf_counter()
    connection.request("GET", "/health")
    answer = connection.getresponse()
    said = answer.read().decode("utf-8", "replace").strip()
    color = said.partition(":")[0]
    found = f"{url} is {said} (answered in {(time.perf_counter() - began) * 1000:.0f} ms)"
    state = _HEALTH.get(color, State.FAIL)
    remedy = "" if state is State.OK else "the log of the broker says more; docs/operating.md has what to do"
    return Finding("broker", state, found, remedy)


def _access(connection: HTTPConnection, target: Target) -> Finding:
    headers = {"Authorization": f"Bearer {target.token.text}"} if target.token.text else {}
    connection.request("GET", "/v1/queues?limit=1", headers=headers)
    answer = connection.getresponse()
    answer.read()
    token = f"token from {target.token.source}" if target.token.text else "no token"
    return graded(
        "access",
        f"{token}: {'accepted' if answer.status == 200 else f'refused with {answer.status}'}",
        fails=answer.status != 200,
        warns=False,
        remedy="give the right token with --token, PENSTOCK_TOKEN or a profile",
    )


def _certificate(connection: HTTPSConnection) -> Finding:
    assert isinstance(connection.sock, ssl.SSLSocket)
    certificate = connection.sock.getpeercert() or {}
    ends = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    days = (ends - time.time()) / 86_400
    return graded(
        "certificate",
        f"good for {days:.0f} days",
        fails=False,
        warns=days < _CERTIFICATE_DAYS_GOOD,
        remedy="renew it before clients refuse to connect",
    )
