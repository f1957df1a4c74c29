"""The broker: can it be reached, does it take the token, is it well, and how long does its certificate last?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import SplitResult, urlsplit

from penstock.cli.certificates import shown_by, trust_of
from penstock.cli.doctor.finding import Finding, State, graded
from penstock.cli.profiles import Target
from penstock.client.trust import Trust, explain
from penstock.shells.tls import CERTIFICATE_DAYS_GOOD

_SECONDS_MAX = 5.0
_HEALTH = {"green": State.OK, "yellow": State.WARN}


def findings(target: Target) -> Iterator[Finding]:
    """Ask the broker two questions: one that needs no token, and one that does."""
    where = urlsplit(target.url.text)
    try:
        if where.scheme == "https":
            yield _certificate(target)
        with contextlib.closing(_connection(where, trust_of(target))) as connection:
            yield _health(connection, target.url.text)
            yield _access(connection, target)
    except (OSError, HTTPException, ValueError) as error:
        if explained := explain(error, target.url.text):
            yield Finding("broker", State.FAIL, explained, "docs/tls.md has the options of every client")
            return
        # Without an address of its own, the doctor looks where a broker would be: none may be running yet.
        state = State.WARN if target.url.source == "default" else State.FAIL
        found = f"{target.url.text} cannot be reached: {error}"
        yield Finding("broker", state, found, "start one with `penstock serve`, or name another with --url")


def _connection(where: SplitResult, trust: Trust) -> HTTPConnection:
    host = where.hostname or ""
    if where.scheme == "https":
        return HTTPSConnection(host, where.port, timeout=_SECONDS_MAX, context=trust.context())
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


def _certificate(target: Target) -> Finding:
    certificate = shown_by(target)
    days = certificate.days_left(time.time())
    until = f"{certificate.ends:%Y-%m-%d}, for {', '.join(certificate.names) or certificate.common_name}"
    return graded(
        "certificate",
        f"good for {days:.0f} days, until {until}" if days > 0 else f"expired since {until}",
        fails=days <= 0,
        warns=days < CERTIFICATE_DAYS_GOOD,
        remedy="renew it before clients refuse to connect; the broker takes the new files without a restart",
    )
