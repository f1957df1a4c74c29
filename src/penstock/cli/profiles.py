"""Which broker a verb talks to: flags, then the environment, then a profile, then the default.

Profiles are in a TOML file in the user's configuration directory:

    default = "local"

    [profiles.local]
    url = "http://127.0.0.1:7843"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import ConfigError, SecretInUrlError

DEFAULT_URL = "http://127.0.0.1:7843"
TRUST = ("ca", "certificate", "certificate_key")
KEYS = ("url", "token", *TRUST)
BROKER = frozenset(("profile", *KEYS))  # The options that say which broker, and how to reach it.


class Value(NamedTuple):
    """A value and where it comes from."""

    text: str
    source: str


class Target(NamedTuple):
    """The broker to talk to."""

    url: Value
    token: Value
    profile: Value
    trust: dict[str, Value]  # By the names in `TRUST`: files of TLS.

    @property
    def options(self) -> dict[str, Any]:
        """What a client of this broker is made with."""
        trust = {key: value.text for key, value in self.trust.items()}
        return {"url": self.url.text, "token": self.token.text, **trust}


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the profiles are, by the XDG base directories."""
    base = environ.get("XDG_CONFIG_HOME", "")
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".config"
    return home / "penstock" / "config.toml"


def target(
    flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ, path: Path | None = None
) -> Target:
    """What the flags, the environment and the file add up to. Flags: `profile` and `KEYS`."""
    path = path or config_path(environ)
    document = read(path)
    chosen = _first(
        Value(flags.get("profile") or "", "--profile"),
        Value(environ.get("PENSTOCK_PROFILE", ""), "PENSTOCK_PROFILE"),
        Value(document.get("default", ""), str(path)),
    )
    profile = _profile(document, chosen, path) if chosen.text else {}
    named = f"profile {chosen.text}"
    url = _first(*_given("url", flags, environ), Value(profile.get("url", ""), named), Value(DEFAULT_URL, "default"))
    if "@" in url.text:
        raise SecretInUrlError(f"{url.source}: ")

    def found(key: str) -> Value:
        # The token of a profile is for the broker of that profile, and for no other.
        own = Value(profile.get(key, "") if url.source == named else "", named)
        return _first(*_given(key, flags, environ), own)

    return Target(url, found("token"), chosen, {key: found(key) for key in TRUST})


def _given(key: str, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[Value, Value]:
    variable = f"PENSTOCK_{key.upper()}"
    return Value(flags.get(key) or "", f"--{key.replace('_', '-')}"), Value(environ.get(variable, ""), variable)


def read(path: Path) -> dict[str, Any]:
    """The file, checked; an empty document if there is none."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; `penstock config init --force` replaces it") from None
    for name, profile in _tables(document, path).items():
        _check(profile, f"{path}: profile {name}")
    return document


def _tables(document: dict[str, Any], path: Path) -> dict[str, Any]:
    unknown = sorted(document.keys() - {"default", "profiles"})
    if unknown:
        raise ConfigError(f'{path}: unknown setting "{unknown[0]}"; there are default and profiles')
    profiles = document.get("profiles", {})
    if not isinstance(profiles, dict) or not isinstance(document.get("default", ""), str):
        raise ConfigError(
            f"{path}: default must name a profile, and profiles must be tables such as [profiles.local]"
        )
    return profiles


def _check(profile: Any, where: str) -> None:
    if not isinstance(profile, dict):
        raise ConfigError(f"{where} is not a table; write it as [profiles.NAME]")
    for key, value in profile.items():
        if key not in KEYS or not isinstance(value, str):
            raise ConfigError(f'{where}: "{key}" is not a setting with text; there are {", ".join(KEYS)}')
    if "@" in profile.get("url", ""):
        raise SecretInUrlError(f"{where}: ")


def _profile(document: dict[str, Any], chosen: Value, path: Path) -> dict[str, str]:
    profiles: dict[str, dict[str, str]] = document.get("profiles", {})
    if chosen.text not in profiles:
        there = ", ".join(sorted(profiles)) or "none; `penstock config init` writes a file to start from"
        raise ConfigError(f'profile "{chosen.text}" ({chosen.source}) is not in {path}; there are: {there}')
    return profiles[chosen.text]


def _first(*values: Value) -> Value:
    return next((value for value in values if value.text), Value("", "not set"))
