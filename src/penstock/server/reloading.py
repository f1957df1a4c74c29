"""Settings that are read again while the broker serves: an operator asks for it with SIGHUP.

Some of them have an effect at once. Others need a restart, and are named in the log. If what is found now is wrong,
all stays as it was, and the log says why: a signal never ends a broker that serves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter

from msgspec.structs import force_setattr, replace

from penstock.config.config import Config
from penstock.errors import ConfigError
from penstock.server.settings import SETTINGS

logger = logging.getLogger(__name__)

_LIVE = ("auth.tokens", "logging.", "quota.", "tls.")  # What can be changed while the broker serves.

Apply = Callable[[Config], None]
"""Has these settings take effect. Raises `ConfigError` before it has changed anything."""


class Reloading:
    """How to read the settings again, and what they were."""

    def __init__(self, read: Callable[[], Config]) -> None:
        """Raises `ConfigError`, as `read` does."""
        self._read = read
        self.config = read()

    def reload(self, used: Config, apply: Apply) -> None:
        """`used`: what the broker works with, which has these settings too from now on."""
        try:
            found = self._read()
            changed = [key for key in SETTINGS if attrgetter(key)(found) != attrgetter(key)(self.config)]
            live = [key for key in changed if key.startswith(_LIVE)]
            apply(with_live(used, found))
        except ConfigError as error:
            logger.error("settings_refused", extra={"reason": str(error), "still_used": "the settings of before"})
            return
        for config in (used, self.config):
            _take_live(config, found)
        needs_restart = [key for key in changed if key not in live]
        logger.info("settings_reloaded", extra={"changed": ",".join(live), "need_restart": ",".join(needs_restart)})


def with_live(used: Config, found: Config) -> Config:
    """These settings, with those of the others that can be changed while the broker serves."""
    auth = replace(used.auth, tokens=found.auth.tokens)
    return replace(used, auth=auth, logging=found.logging, quota=found.quota, tls=found.tls)


def _take_live(config: Config, found: Config) -> None:
    """In place, because everybody has the same settings, and reads them when they are needed."""
    changed = with_live(config, found)
    for name in ("auth", "logging", "quota", "tls"):
        force_setattr(config, name, getattr(changed, name))
    live = {key: source for key, source in found.sources.items() if key.startswith(_LIVE)}
    kept = {key: source for key, source in config.sources.items() if not key.startswith(_LIVE)}
    force_setattr(config, "sources", kept | live)
