"""Settings as clients write them, made from their declarations in `model/settings.py`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.errors import ProtocolError
from penstock.limits import NEVER_NS
from penstock.model.settings import Setting, settings_of
from penstock.model.times import nanos_of


def document_type(
    name: str,
    kind: type[Struct],
    only: Collection[str] | None = None,
    required: Collection[str] = (),
    *,
    first_names: bool = False,
    **given: Any,
) -> type[Any]:
    """The type of a document with these settings, by their names and their old names. `only`: names of fields.
    `required`: names of settings that have a default, and must be given nevertheless. `first_names`: settings that
    were renamed have their old names alone. `given`: types of settings that differ from their declaration."""
    must = {field.name for field in msgspec.structs.fields(kind) if field.required}
    fields: list[Any] = []
    for field, setting in settings_of(kind).items():
        if only is not None and field not in only:
            continue
        old = setting.old_spelling
        for spelling, declared in (
            old.items() if first_names and old else {setting.name: setting.written, **old}.items()
        ):
            written = given.get(spelling, declared)
            if isinstance(written, type) and issubclass(written, Struct):
                written = document_type(f"{name}_{spelling}", written) | None
            required_here = field in must or spelling in required
            fields.append((spelling, written) if required_here else (spelling, written | UnsetType, UNSET))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def settings_in(document: Struct, kind: type[Struct], absent: Any = UNSET) -> dict[str, Any]:
    """The settings that a document names, by their fields. Raises `ProtocolError` if a setting has two values."""
    found: dict[str, Any] = {}
    for field, setting in settings_of(kind).items():
        value = _given(document, setting, absent)
        if value is absent:
            continue
        if isinstance(value, Struct):
            value = setting.written(**settings_in(value, setting.written))
        elif field.endswith("_ns"):
            value = NEVER_NS if value is None else nanos_of(value) or int(value > 0)
        elif value is None and setting.no_limit is not None:
            value = setting.no_limit
        found[field] = value
    return found


def _given(document: Struct, setting: Setting, absent: Any) -> Any:
    """The value of a setting, which may be under its old name, or under both: so it is in a document that we have
    shown."""
    value, renamed = getattr(document, setting.name, absent), setting.renamed
    if renamed is None or (old := getattr(document, renamed.old, absent)) is absent:
        return value
    if value is not absent and value != renamed.to_new(old):
        raise ProtocolError(
            f"{renamed.old} is the old name of {renamed.new}, and they differ: give only {renamed.new}"
            f" - at `$.{renamed.old}`"
        )
    return renamed.to_new(old)
