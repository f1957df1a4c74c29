"""Settings as clients write them, made from their declarations in `model/settings.py`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.dialects.wire.times import nanos_of
from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model.settings import settings_of
from penstock.model.values import Nanos


def document_type(
    name: str, kind: type[Struct], only: Collection[str] | None = None, required: Collection[str] = (), **given: Any
) -> type[Any]:
    """The type of a document with these settings. `only`: names of fields. `required`: names of settings that have a
    default, and must be given nevertheless. `given`: types of settings that differ from their declaration."""
    must = {field.name for field in msgspec.structs.fields(kind) if field.required}
    fields: list[Any] = []
    for field, setting in settings_of(kind).items():
        if only is not None and field not in only:
            continue
        written = given.get(setting.name, setting.written)
        if isinstance(written, type) and issubclass(written, Struct):
            written = document_type(f"{name}_{setting.name}", written) | None
        required_here = field in must or setting.name in required
        fields.append((setting.name, written) if required_here else (setting.name, written | UnsetType, UNSET))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def settings_in(document: Struct, kind: type[Struct], absent: Any = UNSET) -> dict[str, Any]:
    """The settings that a document names, by their fields."""
    found: dict[str, Any] = {}
    for field, setting in settings_of(kind).items():
        value = getattr(document, setting.name, absent)
        if value is absent:
            continue
        if isinstance(value, Struct):
            value = setting.written(**settings_in(value, setting.written))
        elif field.endswith("_ns"):
            value = NEVER_NS if value is None else nanos_of(value) or int(value > 0)
        found[field] = value
    return found


def as_written(settings: Struct, only: Collection[str] | None = None) -> dict[str, Any]:
    """Settings as a document shows them. `only`: names of fields."""
    shown = {}
    for field, setting in settings_of(type(settings)).items():
        if only is None or field in only:
            value = getattr(settings, field)
            if isinstance(value, Struct):
                value = as_written(value)
            shown[setting.name] = seconds(value) if field.endswith("_ns") else value
    return shown


def seconds(nanos: Nanos) -> float | None:
    """Whole seconds without a fraction; what has no end is null."""
    if nanos == NEVER_NS:
        return None
    return nanos // SECOND_NS if nanos % SECOND_NS == 0 else nanos / SECOND_NS
