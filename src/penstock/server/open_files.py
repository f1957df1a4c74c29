"""File descriptors: how many the process may open, and how many of them connections may take.

Without a free descriptor the log cannot open its next file, and the broker fails. So some are reserved, and
connections share the rest.
"""

from __future__ import annotations

import logging
import resource
from typing import NamedTuple

from msgspec.structs import replace

from penstock.config.config import Config
from penstock.errors import ConfigError
from penstock.limits import BACKLOG_MAX, DESCRIPTORS_MIN, DESCRIPTORS_RESERVED_MAX, DESCRIPTORS_RESERVED_MIN

logger = logging.getLogger(__name__)


_SETTINGS = frozenset(f"{shell}.connections_max" for shell in ("http", "lines", "push"))
_FEW = 1000  # Connections: an operator should know, even if nobody has asked for more.


class Plan(NamedTuple):
    """The settings, with limits that fit. `backlog`: connections that may wait at each address to be accepted. All of
    them may be accepted at once, even beyond the limits, only to be refused."""

    config: Config
    backlog: int


def available() -> int:
    """Raise the soft limit to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def plan(config: Config, descriptors: int) -> Plan:
    """Lower the limits on connections if need be. Raises `ConfigError` if there are too few descriptors."""
    if descriptors < DESCRIPTORS_MIN:
        raise ConfigError(
            f"the limit on open files is {descriptors}, and a broker needs at least {DESCRIPTORS_MIN}:"
            " raise it (ulimit -n, LimitNOFILE=)"
        )
    reserved = min(max(descriptors // 8, DESCRIPTORS_RESERVED_MIN), DESCRIPTORS_RESERVED_MAX, descriptors // 2)
    backlog = min(BACKLOG_MAX, reserved // 4)
    http, lines, push = config.http.connections_max, config.lines.connections_max, config.push.connections_max
    room = descriptors - reserved
    if http + lines + push <= room:
        return Plan(config, backlog)
    push = min(push, room // 4)
    left = room - push
    http, lines = (max(1, each * left // (http + lines)) for each in (http, lines))
    facts = {"descriptors": descriptors, "http": http, "lines": lines, "push": push}
    logger.log(_level(config, http), "connections_limited", extra=facts)
    return Plan(
        replace(
            config,
            http=replace(config.http, connections_max=min(http, config.http.connections_max)),
            lines=replace(config.lines, connections_max=min(lines, config.lines.connections_max)),
            push=replace(config.push, connections_max=push),
        ),
        backlog,
    )


def _level(config: Config, http: int) -> int:
    """The defaults are generous: nobody misses connections that nobody asked for."""
    return logging.WARNING if http < _FEW or not _SETTINGS.isdisjoint(config.sources) else logging.INFO
