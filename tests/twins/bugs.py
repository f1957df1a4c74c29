"""Bugs seeded on purpose, each in the code for several shards. `test_bugs.py` has seeds of those that are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final
from unittest.mock import patch

from penstock.broker import recovery
from penstock.broker.services.channels_elsewhere import ChannelsElsewhere
from penstock.cluster.links import calls
from penstock.cluster.routing import merged_events, ports, pulls, router
from penstock.cluster.workers.lookout import Lookout
from penstock.dialects.native import event_log
from penstock.engine.decide import administer, schedules
from penstock.engine.history import History, SharedHistory
from penstock.model.answers import Refused
from penstock.model.event_log import Word
from penstock.model.values import Compared

Bug = Callable[[], AbstractContextManager[Any]]


def _instead(target: Any, name: str, other: Any) -> Bug:
    return lambda: patch.object(target, name, other)


def _all_of(*bugs: Bug) -> Bug:
    def put_back() -> ExitStack:
        stack = ExitStack()
        for bug in bugs:
            stack.enter_context(bug())
        return stack

    return put_back


async def _notices_nobody(*_: Any) -> None: ...


class _OwnVersions(SharedHistory):
    """Knows only what its own shard has stored."""

    def __init__(self, own: History, _: Any) -> None:
        super().__init__(own, lambda *_: True)

    def compare(self, about: str, keys: Sequence[bytes], digests: Sequence[bytes]) -> Compared:
        return self._own.compare(about, keys, digests)


def _is_any_refused(_: Any, answers: Sequence[Any]) -> Any:
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    return refused[0] if refused else _PULLED(_, answers)


_PULLED = pulls._pulled
_MARK = merged_events.LogReader.mark


def _marks_nothing(reader: merged_events.LogReader, position: bytes, word: Word, _: Any) -> None:
    _MARK(reader, position, word, -1)


BUGS: Final[dict[str, Bug]] = {
    "a queue that is deleted stays in the policies of other shards": _instead(administer, "promise", lambda *_: None),
    "a schedule that moves stays where it was, too": _instead(schedules, "promise", lambda *_: None),
    "a process that stands still is not noticed": _instead(Lookout, "_look_after", _notices_nobody),
    "parts are carried out before permission is asked for": _instead(router, "forbidden", lambda *_: None),
    "the beginning of all logs is refused": lambda: patch.dict(
        event_log._EACH, {name: start for name, start in event_log._EACH.items() if name != "0"}, clear=True
    ),
    "a pull is refused if one of its queues is away": _instead(pulls, "_pulled", _is_any_refused),
    "content is compared with the versions of one shard": _all_of(
        _instead(recovery, "SharedHistory", _OwnVersions), _instead(ports, "keys_of", lambda *_: ())
    ),
    "followers wait as long as another shard is busy": _all_of(
        _instead(merged_events.LogReader, "mark", _marks_nothing),
        _instead(merged_events.Order, "_hurry", lambda _: None),
    ),
    "a channel of another shard may be the root of a topic": _instead(
        ChannelsElsewhere, "__contains__", lambda *_: False
    ),
    "what was under way to a process is refused when that stands still": _all_of(
        _instead(calls.Call, "is_asked_again", property(lambda _: False)),
        _instead(calls.Call, "lose", lambda call: calls.give(call.reply, calls.LOST)),
    ),
}
