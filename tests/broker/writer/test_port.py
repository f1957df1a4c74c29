"""While commits pause, the log ends where it ends, and clients wait as for a slow disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.broker.writer.loop import Loop
from penstock.model.answers import Refused
from penstock.model.commands import NewMessage, Publish
from penstock.model.values import Stage
from tests.support.live_loop import live, settled, until

HELLO = NewMessage(b"hello")


def slow(loop: Loop) -> list[Callable[[], None]]:
    """The commits of the log, from now on: each is done when it is called."""
    commits: list[Callable[[], None]] = []
    commit = loop.log.commit
    setattr(loop.log, "commit", lambda *begun: commits.append(partial(commit, *begun)))  # noqa: B010 - A method.
    return commits


@live
async def test_nothing_is_committed_or_acknowledged_until_the_pause_ends(loop: Loop) -> None:
    begun: list[int] = []
    pause = loop.pause(lambda: begun.append(loop.log.end.offset))
    assert begun == [loop.log.end.offset], "no commit is under way, so it begins at once"
    answers: list[Any] = []
    loop.submit(Publish("work", [HELLO]), answers.append)
    loop.submit(Publish("work", [HELLO]), answers.append, Stage.WRITE)
    loop.decide_collected()
    assert (answers, begun) == ([], [loop.log.end.offset])
    assert loop.resume(pause)
    await settled(loop)
    assert len(answers) == 2
    assert loop.log.end.offset > begun[0]


@live
async def test_a_pause_begins_when_the_commit_that_is_under_way_has_ended(loop: Loop) -> None:
    order: list[str] = []
    written = slow(loop)
    loop.submit(Publish("work", [HELLO]), lambda _: order.append("answered"))
    await until(lambda: len(written) == 1)
    pause = loop.pause(lambda: order.append("paused"))
    assert order == []
    written.pop()()
    await until(lambda: len(order) == 2)
    loop.submit(Publish("work", [HELLO]), lambda _: order.append("answered"))
    loop.decide_collected()
    assert (written, sorted(order)) == ([], ["answered", "paused"])
    assert loop.resume(pause)
    await until(lambda: len(written) == 1)


@live
async def test_several_pauses_last_until_the_last_of_them_ends(loop: Loop) -> None:
    first, second = (loop.pause(lambda: None) for _ in range(2))
    answers: list[Any] = []
    loop.submit(Publish("work", [HELLO]), answers.append)
    assert loop.resume(first)
    loop.decide_collected()
    assert answers == []
    assert loop.resume(second)
    await settled(loop)
    assert len(answers) == 1


@live
async def test_a_pause_that_ended_has_not_lasted(loop: Loop) -> None:
    pause = loop.pause(lambda: None)
    assert loop.resume(pause)
    assert not loop.resume(pause)


@live
async def test_a_pause_that_ends_before_it_begins_keeps_nobody_waiting(loop: Loop) -> None:
    begun: list[str] = []
    answers: list[Any] = []
    written = slow(loop)
    loop.submit(Publish("work", [HELLO]), answers.append)
    await until(lambda: len(written) == 1)
    pause = loop.pause(partial(begun.append, "paused"))
    assert not loop.resume(pause)
    written.pop()()
    await until(lambda: len(answers) == 1)
    assert begun == []


@live
async def test_a_log_that_fails_does_not_end_the_pause_of_the_others(loop: Loop) -> None:
    pause = loop.pause(lambda: None)
    answers: list[Any] = []
    loop.submit(Publish("work", [HELLO]), answers.append)
    loop.decide_collected()
    loop.fail(OSError("the disk is gone"))
    assert isinstance(answers[0], Refused)
    assert loop.resume(pause)
