"""The broker's description of itself: the part of each dialect, merged into one OpenAPI and one AsyncAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from penstock import __version__
from penstock.dialects.native.publish import describe as describe_message_fields
from penstock.dialects.native.queue_document import describe as describe_settings

_ASYNCAPI_INTRODUCTION = "Protocols of connections that stay open. For HTTP requests see /openapi.json."


@cache
def openapi_document() -> bytes:
    return msgspec.json.encode(openapi()) + b"\n"


@cache
def asyncapi_document() -> bytes:
    return msgspec.json.encode(asyncapi()) + b"\n"


def openapi() -> dict[str, Any]:
    parts = _parts("openapi")
    whole = parts.pop("mqs.json")  # It also has what all dialects share.
    for part in parts.values():
        whole["tags"] += part["tags"]
        whole["paths"] |= part["paths"]
        for section, entries in part.get("components", {}).items():
            whole["components"].setdefault(section, {}).update(entries)
    describe_settings(whole["components"]["schemas"])
    describe_message_fields(whole)
    whole["info"]["version"] = __version__
    return whole


def asyncapi() -> dict[str, Any]:
    parts = _parts("asyncapi").values()
    about = [f"## {part['info']['title']}\n\n{part['info']['description']}" for part in parts]
    kinds = sorted({kind for part in parts for kind in part["components"]})
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Penstock",
            "version": __version__,
            "license": {"name": "Apache-2.0"},
            "description": "\n\n".join([_ASYNCAPI_INTRODUCTION, *about]),
        },
        "defaultContentType": "application/json",
        **{section: _merged(part[section] for part in parts) for section in ("servers", "channels", "operations")},
        "components": {kind: _merged(part["components"].get(kind, {}) for part in parts) for kind in kinds},
    }


def _parts(folder: str) -> dict[str, dict[str, Any]]:
    """The documents of all dialects, by file name."""
    files = resources.files("penstock.dialects").joinpath(folder).iterdir()
    return {file.name: msgspec.json.decode(file.read_bytes()) for file in sorted(files, key=str)}


def _merged(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: entry for each in entries for name, entry in each.items()}
