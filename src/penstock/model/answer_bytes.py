"""Answers as values that can be encoded: lists have a name too, so that any answer can be told from any other."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.model import answers
from penstock.model.commands import Command
from penstock.model.values import Packed


def kinds_in(*modules: Any) -> list[type[Struct]]:
    """The types that have a tag, in an order that is the same in every process."""
    found = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    kinds = [each for each in found - {Packed, Command} if issubclass(each, Struct) and each.__struct_config__.tag]
    return sorted(kinds, key=lambda each: each.__name__)


ANSWERS = kinds_in(answers)


class Several(Packed, frozen=True, gc=False):
    """An answer that is a list."""

    items: list[AnyAnswer]


if TYPE_CHECKING:
    AnyAnswer = Any
else:
    AnyAnswer = reduce(or_, [*ANSWERS, Several])


def pack(answer: Any) -> Any:
    if not isinstance(answer, list | tuple):
        return answer
    has_lists = not {list, tuple}.isdisjoint(map(type, answer))
    return Several([pack(each) for each in answer] if has_lists else answer)  # type: ignore[arg-type]


def unpack(answer: Any) -> Any:
    """The answer as its sender had it."""
    if type(answer) is not Several:
        return answer
    return [unpack(each) for each in answer.items] if Several in map(type, answer.items) else answer.items
