"""Answers as values that can be encoded: lists have a name too, so that any answer can be told from any other."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.model import (
    answers,
    backups,
    connections,
    consumers,
    event_log,
    figures,
    health,
    jobs,
    message_reports,
    metrics,
    pushes,
    queries,
    searches,
    staging,
    waits,
    workers,
)
from penstock.model.commands import Command
from penstock.model.queries import Act, Page, Pages, Query, Reading
from penstock.model.values import Packed


def kinds_in(*modules: Any) -> list[type[Struct]]:
    """The types that have a tag, in an order that is the same in every process."""
    found = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    kinds = [
        each
        for each in found - {Packed, Command, Query, Act, Pages, Page, Reading}
        if issubclass(each, Struct) and each.__struct_config__.tag
    ]
    return sorted(kinds, key=lambda each: each.__name__)


_MODULES = (
    queries,
    backups,
    connections,
    consumers,
    event_log,
    figures,
    health,
    jobs,
    message_reports,
    metrics,
    pushes,
    searches,
    staging,
    waits,
    workers,
)
_OF_QUESTIONS = [each for each in kinds_in(*_MODULES) if not (issubclass(each, Command) or each.__name__[0] == "_")]
QUERIES = [each for each in _OF_QUESTIONS if issubclass(each, Query)]
ANSWERS = list(dict.fromkeys([*kinds_in(answers), *[each for each in _OF_QUESTIONS if each not in QUERIES]]))
_LISTS = frozenset((list, tuple))


class Several(Packed, frozen=True, gc=False):
    """An answer that is a list."""

    items: list[AnyAnswer]


if TYPE_CHECKING:
    AnyAnswer = Any
else:
    AnyAnswer = reduce(or_, [*ANSWERS, Several])


def pack(answer: Any) -> Any:
    if type(answer) not in _LISTS:
        return answer
    return Several(answer if _LISTS.isdisjoint(map(type, answer)) else [pack(each) for each in answer])


def unpack(answer: Any) -> Any:
    """The answer as its sender had it."""
    if type(answer) is not Several:
        return answer
    return [unpack(each) for each in answer.items] if Several in map(type, answer.items) else answer.items
