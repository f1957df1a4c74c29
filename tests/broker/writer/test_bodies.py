"""What is delivered is read back from the log."""

from __future__ import annotations

from penstock.broker.writer.loop import Loop
from penstock.model.commands import (
    Draw,
    NewMessage,
    Publish,
    Pull,
)
from penstock.model.settings import QueueSettings
from tests.support.live_loop import ask, live_with

HELLO = NewMessage(b"hello")

live = live_with("q", QueueSettings(keep="all"))


@live
async def test_messages_are_read_back_whole_however_they_lie_in_the_log(loop: Loop) -> None:
    with_parts = NewMessage(b"with parts", key=b"key", headers=b"headers")
    await ask(loop, Publish("q", [NewMessage(b"%d" % number) for number in range(20)]))
    await ask(loop, Publish("q", [NewMessage(b""), with_parts, HELLO]))
    await ask(loop, Publish("q", [NewMessage(b"%d" % number) for number in range(20, 40)]))
    (drawn,) = (await ask(loop, Pull("r", [Draw("q", most=99)]))).drawn
    numbers = [b"%d" % number for number in range(40)]
    assert drawn.bodies == [*numbers[:20], b"", b"with parts", b"hello", *numbers[20:]]
    assert [headers for headers in drawn.headers if headers] == [b"headers"]


@live
async def test_bodies_that_do_not_lie_together_are_read_each_from_its_place(loop: Loop) -> None:
    for number in range(3):
        await ask(loop, Publish("q", [NewMessage(b"%d" % number)]))
    (drawn,) = (await ask(loop, Pull("r", [Draw("q", most=99)]))).drawn
    assert drawn.bodies == [b"0", b"1", b"2"]
    assert drawn.headers == [b"", b"", b""]
