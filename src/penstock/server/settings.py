"""The settings of a broker by key: where each may be set, how its value is read, and the table in the manual.

A later source overrides an earlier one: the default, the file `penstock.toml`, the environment (`PENSTOCK_*`), `--set
key=value`, a flag of its own. An unknown key and a value out of range are refused wherever they are set, so a broker
that starts does what its settings say.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv6Address
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from penstock.config.config import Address, Config, parse_address
from penstock.config.types import AddressText, FileName, HostName, Origin, StoreUrl, Text
from penstock.errors import ConfigError
from penstock.limits import LINE_BYTES_MAX, NAME_BYTES_MAX
from penstock.model.values import has_control_characters
from penstock.renamed import BROKER_SETTINGS, RENAMED, deprecated, successors

FILE_NAME = "penstock.toml"
VARIABLE_PREFIX = "PENSTOCK_"
CLIENT_VARIABLES = frozenset(  # For commands that are clients.
    f"PENSTOCK_{name}" for name in ("LAKE", "URL", "TOKEN", "PROFILE", "CA", "CERTIFICATE", "CERTIFICATE_KEY")
)

_SERVICE_LINK = re.compile(r"PENSTOCK_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")


def load(file: Path | None, environ: Mapping[str, str], flags: Sequence[str], overrides: Mapping[str, str]) -> Config:
    """The settings from all sources. `file`: named by the operator; None: ./penstock.toml, if it exists.

    `flags`: what followed each `--set`. `overrides`: flags of their own, by the key that they set.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source in (
        _from_file(file),
        _from_environment(environ),
        _from_flags(flags),
        _Source("command line", SETTINGS, overrides),
    ):
        for name, raw in source.given.items():
            setting = source.known.get(name)
            if setting is None:
                raise ConfigError(f'{source.title}: unknown setting "{name}"; {_nearest(name, source.known)}')
            if name in _OLD_NAMES:
                deprecated(BROKER_SETTINGS, _OLD_NAMES[name])
            if sources.get(setting.key) == source.title:
                raise ConfigError(f"{source.title}: {setting.key} is given under two names: give only {setting.key}")
            values[setting.key] = _read(setting, raw, f"{source.title}: {name}")
            sources[setting.key] = source.title
    config = _build({**values, "sources": sources})
    _check(config)
    return config


class Setting(NamedTuple):
    """One key, with all that the manual, the environment and the command line need."""

    key: str
    variable: str
    default: Any
    description: str
    expected: str
    read: Callable[[Any], Any]  # From TOML, or from text; raises ValueError.

    @property
    def secret(self) -> bool:
        return self.key in ("auth.tokens", "store")  # An address may hold a password.


# ── Sources ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Source(NamedTuple):
    title: str
    known: Mapping[str, Setting]
    given: Mapping[str, Any]


def _from_file(file: Path | None) -> _Source:
    path = file or Path(FILE_NAME)
    if file is None and not path.exists():
        return _Source(FILE_NAME, _KEYS, {})
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return _Source(str(path), _KEYS, _flatten(tables))


def _flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in tables.items():
        key = prefix + name
        if isinstance(value, dict) and (key in _SECTIONS or (value and not prefix and key not in SETTINGS)):
            given.update(_flatten(value, f"{key}."))
        else:
            given[key] = value
    return given


def _from_environment(environ: Mapping[str, str]) -> _Source:
    known = {_variable(key): setting for key, setting in _KEYS.items()}
    given = {
        name: value
        for name, value in environ.items()
        if name.startswith(VARIABLE_PREFIX) and name not in CLIENT_VARIABLES and not _is_service_link(name, value)
    }
    return _Source("environment", known, given)


def _is_service_link(name: str, value: str) -> bool:
    """Kubernetes sets such variables in every pod if there is a service named penstock. They are not settings."""
    return bool(_SERVICE_LINK.fullmatch(name)) or (name.endswith("_PORT") and "://" in value)


def _from_flags(flags: Sequence[str]) -> _Source:
    given: dict[str, Any] = {}
    for flag in flags:
        key, equals, value = flag.partition("=")
        if not equals:
            word = re.match(r"[\w.]*", flag)  # No more of it: the rest may be a token.
            raise ConfigError(f'--set: "{word[0] if word else ""}" has no value; expected key=value')
        given[key.strip()] = value
    return _Source("--set", _KEYS, given)


def _nearest(name: str, known: Mapping[str, Setting]) -> str:
    if near := difflib.get_close_matches(name, known, n=1):
        return f'did you mean "{near[0]}"?'
    return f"expected one of {', '.join(known)}"


def _read(setting: Setting, raw: object, where: str) -> Any:
    try:
        return setting.read(raw)
    except (ValueError, msgspec.ValidationError):
        shown = "" if setting.secret else f" = {str(raw)[:100]!r}"
        raise ConfigError(f"{where}{shown}: expected {setting.expected}") from None


def _build(values: Mapping[str, Any]) -> Config:
    fields: dict[str, dict[str, Any]] = {section: {} for section in ("", *_SECTIONS)}
    for key, value in values.items():
        section, _, field = key.rpartition(".")
        fields[section][field] = value
    lines = fields["lines"]
    if "line_bytes_max" not in lines:  # Who allows little for all lines need not say that one may not be larger.
        lines["line_bytes_max"] = min(LINE_BYTES_MAX, lines.get("buffered_bytes_max", LINE_BYTES_MAX))
    for section in sorted(_SECTIONS, key=len, reverse=True):  # A section comes before the one that it is part of.
        outer, _, name = section.rpartition(".")
        fields[outer][name] = _SECTIONS[section](**fields[section])
    return Config(**fields[""])


def _check(config: Config) -> None:
    """Raises `ConfigError` for settings that contradict each other."""
    http, lines, topics = config.http, config.lines, config.topics
    for section, size, largest, buffered in (
        ("http", "body_bytes_max", http.body_bytes_max, http.buffered_bytes_max),
        ("lines", "line_bytes_max", lines.line_bytes_max, lines.buffered_bytes_max),
    ):
        if largest > buffered:
            raise ConfigError(
                f"{section}.buffered_bytes_max = {buffered} is less than {section}.{size} = {largest}:"
                " raise the first or lower the second"
            )
    _check_needs(config)
    given = [bool(each) for each in (config.auth.jwt_keys, config.auth.jwt_issuer, config.auth.jwt_audience)]
    if any(given) and not all(given):
        raise ConfigError("auth.jwt_keys, auth.jwt_issuer and auth.jwt_audience belong together: set all three")
    if topics.dead_letter_queue and not topics.max_attempts:
        raise ConfigError(
            f"topics.dead_letter_queue = {topics.dead_letter_queue} has no effect with topics.max_attempts = 0: set"
            " topics.max_attempts to 1 or more"
        )


_NEEDS = (
    ("tls.certificate", "tls.key"),
    ("tls.key", "tls.certificate"),
    ("tls.client_ca", "tls.certificate"),
    ("tls.client_required", "tls.client_ca"),
    ("cluster.advertise", "store"),
    ("cluster.listen", "cluster.advertise"),
    ("cluster.ca", "tls.certificate"),
)


def _check_needs(config: Config) -> None:
    for key, needed in _NEEDS:
        if attrgetter(key)(config) and not attrgetter(needed)(config):
            raise ConfigError(f"{key} has no effect without {needed}: set both, or neither")


# ── Values ────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse_address_text(text: object) -> AddressText:
    if text and not parse_address(text).port:
        raise ValueError("not an address that others can use")
    return AddressText(text)


def _parse_path(text: object) -> Path:
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError("not a path")
    return Path(text)


def _parse_file_name(text: object) -> FileName:
    return FileName(_parse_path(text)) if text else FileName()


def _parse_list(given: object, pattern: str) -> list[str]:
    """A list, or text with commas between the entries; each entry matches the pattern."""
    if isinstance(given, str):
        given = [entry.strip() for entry in given.split(",")] if given.strip() else []
    entries: list[str] = msgspec.convert(given, list[str])
    if not all(re.fullmatch(pattern, entry) for entry in entries):
        raise ValueError("not as expected")
    return entries


def _parse_tokens(given: object) -> tuple[str, ...]:
    return tuple(_parse_list(given, r"[!-+\--~]{1,1024}"))  # Visible ASCII without the comma.


def _parse_origins(given: object) -> tuple[Origin, ...]:
    return tuple(map(Origin, _parse_list(given, r"\*|null|[a-z][a-z0-9+.-]*://[^\s/,]+")))


def _parse_hosts(given: object) -> tuple[HostName, ...]:
    entries = _parse_list(given, r"(?a)\*|[\w-]+(\.[\w-]+)*|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")
    hosts = [HostName(entry.lower()) for entry in entries]
    for host in hosts:
        if ":" in host:
            IPv6Address(host)
    return tuple(hosts)


def _parse_text(given: object) -> Text:
    if not isinstance(given, str) or not re.fullmatch(r"[!-~]{0,1024}", given):
        raise ValueError("not as expected")
    return Text(given)


def _parse_store_url(given: object) -> StoreUrl:
    if not isinstance(given, str) or not re.fullmatch(r"(postgres(ql)?://[!-~]{1,1024})?", given):
        raise ValueError("not as expected")
    return StoreUrl(given)


def _parse_queue_name(text: object) -> str:
    if not isinstance(text, str) or len(text.encode()) > NAME_BYTES_MAX or has_control_characters(text):
        raise ValueError("not a name")
    return text


def _variable(key: str) -> str:
    return VARIABLE_PREFIX + key.replace(".", "_").upper()


def _setting(key: str, hint: Any, default: Any) -> Setting:
    kind, meta = get_args(hint)
    known: dict[Any, tuple[str, Callable[[Any], Any]]] = {
        Address: ("HOST:PORT, the port from 0 to 65535, an IPv6 host in brackets", parse_address),
        AddressText: ("HOST:PORT, an IPv6 host in brackets, or nothing", _parse_address_text),
        Path: ("a path", _parse_path),
        Text: ("up to 1024 visible ASCII characters, or nothing", _parse_text),
        StoreUrl: ("postgresql://USER@HOST:PORT/DATABASE, or nothing", _parse_store_url),
        FileName: ("the path of a file, or nothing", _parse_file_name),
        tuple[str, ...]: ("tokens of 1 to 1024 visible ASCII characters, separated by commas", _parse_tokens),
        tuple[HostName, ...]: ("names or addresses without a port, or *, separated by commas", _parse_hosts),
        tuple[Origin, ...]: ("origins such as https://example.org, or *, separated by commas", _parse_origins),
        bool: ("true or false", lambda raw: _convert(raw, hint)),
        str: (f"the name of a queue, up to {NAME_BYTES_MAX} bytes, or nothing", _parse_queue_name),
    }
    expected, read = known.get(kind) or (_range(kind, meta), lambda raw: _convert(raw, hint))
    return Setting(key, _variable(key), default, meta.description, expected, read)


def _convert(raw: object, hint: Any) -> Any:
    """A number or a choice, as itself or as text."""
    return msgspec.convert(raw, hint, strict=not isinstance(raw, str))


def _range(kind: Any, meta: Meta) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in get_args(kind))
    number = "a whole number" if kind is int else "a number"
    low = f"above {meta.gt}, up" if meta.gt is not None else f"from {meta.ge}"
    return f"{number} {low} to {meta.le}"


# ── The table ─────────────────────────────────────────────────────────────────────────────────────────────────


def _list_settings(defaults: Struct, prefix: str = "") -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for name, hint in get_type_hints(type(defaults), include_extras=True).items():
        key, default = prefix + name, getattr(defaults, name)
        if isinstance(default, Struct):
            settings |= _list_settings(default, f"{key}.")
        elif key != "sources":
            settings[key] = _setting(key, hint, default)
    return settings


def _list_sections(defaults: Struct, prefix: str = "") -> dict[str, type[Struct]]:
    """The sections, which may be in other sections, by their keys."""
    sections: dict[str, type[Struct]] = {}
    for name in defaults.__struct_fields__:
        if isinstance(default := getattr(defaults, name), Struct):
            sections |= {prefix + name: type(default), **_list_sections(default, f"{prefix}{name}.")}
    return sections


_SECTIONS = _list_sections(Config())

SETTINGS = _list_settings(Config())
"""Every key there is, in the order of `Config`."""


_KEYS = SETTINGS | {row.old: SETTINGS[row.new] for row in RENAMED[BROKER_SETTINGS]}
_OLD_NAMES = {spelling: old for old in successors(BROKER_SETTINGS) for spelling in (old, _variable(old))}


def effective_settings(config: Config) -> list[dict[str, Any]]:
    """Every setting with its value and where that comes from. Secrets are left out."""
    return [
        {
            "key": setting.key,
            "value": "(hidden)" if setting.secret and value else _written(value),
            "default": _written(setting.default),
            "source": config.sources.get(setting.key, "default" if value == setting.default else "broker"),
            "description": setting.description,
        }
        for setting in SETTINGS.values()
        for value in [attrgetter(setting.key)(config)]
    ]


def _written(value: Any) -> Any:
    """A value as JSON."""
    if isinstance(value, Address | Path | str):
        return str(value)
    return list(map(str, value)) if isinstance(value, tuple) else value
