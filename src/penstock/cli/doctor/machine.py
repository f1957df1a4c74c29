"""The machine beside its disk: limits, ports and the clock."""

from __future__ import annotations

import ctypes
import datetime
import errno
import os
import resource
import socket
import time
from collections.abc import Iterator

from penstock.cli.doctor.finding import Finding, State, graded
from penstock.config.config import Address, Config
from penstock.limits import DESCRIPTORS_MIN
from penstock.shells.listening import listening_process

_DESCRIPTORS_GOOD = 4096
_DRIFT_SECONDS_MAX = 0.005
_LOOK_SECONDS = 0.1
_EARLIEST_YEAR = 2026  # A machine that starts without a clock is in an earlier year.
_TIMEX_BYTES = 512  # More than the kernel's `struct timex` has anywhere.
_NOT_SYNCHRONISED = 5  # TIME_ERROR


def open_files() -> Finding:
    """The broker raises its soft limit to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    unlimited = hard == resource.RLIM_INFINITY
    return graded(
        "open files",
        "no limit" if unlimited else f"at most {hard:,}",
        fails=not unlimited and hard < DESCRIPTORS_MIN,
        warns=not unlimited and hard < _DESCRIPTORS_GOOD,
        remedy=f"each connection needs one: raise the limit to {_DESCRIPTORS_GOOD:,} (ulimit -n, LimitNOFILE=)",
    )


def ports(settings: Config) -> Iterator[Finding]:
    """Whether the broker could listen where its settings say."""
    for key, address in (("http.address", settings.http.address), ("lines.address", settings.lines.address)):
        yield _port(key, address)


def _port(key: str, address: Address) -> Finding:
    flag = "--" + key.partition(".")[0]
    try:
        family, kind, number, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
    except OSError as error:
        held = os.strerror(error.errno or 0)
        if error.errno == errno.EADDRINUSE:
            held = listening_process(address.port) or "nobody listens there, but somebody has the port"
        remedy = f"if that is not your broker, choose another address with {flag}"
        return Finding(key, State.WARN, f"{address} cannot be taken: {held}", remedy)
    return Finding(key, State.OK, f"{address} is free")


def clock() -> Iterator[Finding]:
    """Leases and delays follow the monotonic clock; times that people read follow the wall clock."""
    now = datetime.datetime.now(datetime.UTC)
    yield graded(
        "wall clock",
        now.isoformat(sep=" ", timespec="seconds"),
        fails=now.year < _EARLIEST_YEAR,
        warns=False,
        remedy="set the clock: messages get the time of this machine",
    )
    drift = abs(_drift())
    yield graded(
        "clock rate",
        f"wall and monotonic clock differ by {drift * 1000:.3f} ms in {_LOOK_SECONDS * 1000:.0f} ms",
        fails=False,
        warns=drift > _DRIFT_SECONDS_MAX,
        remedy="something sets the clock right now; the broker follows it slowly",
    )
    yield _synchronised()


def _drift() -> float:
    wall, steady = time.time(), time.monotonic()
    time.sleep(_LOOK_SECONDS)
    return (time.time() - wall) - (time.monotonic() - steady)


def _synchronised() -> Finding:
    """Ask the kernel whether something like NTP keeps the clock right."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        return Finding("clock source", State.OK, "not known: the kernel does not answer here")
    return graded(
        "clock source",
        "not synchronised" if state == _NOT_SYNCHRONISED else "synchronised",
        fails=False,
        warns=state == _NOT_SYNCHRONISED,
        remedy="run an NTP client (chrony, systemd-timesyncd) here, or on the host of this container",
    )
