"""Hypothesis makes values of any type of the model, from its annotations."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Meta, Struct, structs

from penstock.model.access import EVERYTHING, Access

_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
    Any: st.one_of(st.none(), st.booleans(), st.integers(0, 1 << 40), st.text(max_size=20)),
    Access: st.just(EVERYTHING),  # Others are compared by identity.
}


def any_value(kind: Any) -> st.SearchStrategy[Any]:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(*arguments[:2]) if isinstance(arguments[1], Meta) else any_value(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(any_value, arguments))
    if origin in (list, Sequence):
        return st.lists(any_value(arguments[0]), max_size=3)
    if origin is frozenset:
        return st.frozensets(any_value(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(any_value(arguments[0]), any_value(arguments[1]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(any_value(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(any_value, arguments))
    return any_object(kind)


def _bounded(kind: Any, meta: Any) -> st.SearchStrategy[Any]:
    """Of a type with bounds."""
    if kind in (int, float) and meta.le is not None:
        numbers: Any = st.integers if kind is int else st.floats
        low = meta.ge if meta.gt is None else meta.gt + 1
        return cast("st.SearchStrategy[Any]", numbers(low, meta.le))
    if get_origin(kind) is list:
        return st.lists(any_value(get_args(kind)[0]), min_size=meta.min_length or 0, max_size=3)
    return any_value(kind)


def any_object(kind: type[Any]) -> st.SearchStrategy[Any]:
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if issubclass(kind, Struct):
        return st.builds(kind, **{field.name: any_value(field.type) for field in structs.fields(kind)})
    return st.builds(kind, **{name: any_value(hint) for name, hint in get_type_hints(kind).items()})
