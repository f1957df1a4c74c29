"""Programs of requests, drawn by a seed: what is asked one after the other of each twin.

A step is data, so that a program can be shown, cut and played again. What only a twin knows (ids, jobs, cursors) is
named by reference: `{id:2}` is the last id but two that the twin has seen, `{cursor:0}` its newest cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from msgspec import Struct

GUEST, ADMIN, PART, READER = "guest", "admin", "part", "reader"
SCOPES = {PART: ["publish,consume,read,manage:a-*"], READER: ["read:*"]}
"""Who asks, and what they may do, beside an administrator and somebody without a token."""


class Http(Struct, frozen=True, tag="http"):
    """A request. `body`: text, or what is sent as JSON."""

    who: str
    method: str
    target: str
    body: Any = None
    headers: dict[str, str] = {}
    on: str = ""  # The connection on which it waits for its answer, while others go on; none: nobody goes on.


class Say(Struct, frozen=True, tag="say"):
    """Something said in a conversation: text, or what is sent as JSON."""

    on: str  # The name of a client, whose first letters say what it speaks.
    what: Any


class Pass(Struct, frozen=True, tag="pass"):
    """Time passes, where time is simulated."""

    seconds: float


class Watch(Struct, frozen=True, tag="watch"):
    """Somebody follows the events of one queue, into which a message is put, while another queue is busy, where time
    is simulated. The answer is what is seen by then."""

    queue: str
    busy: str


class Hang(Struct, frozen=True, tag="hang"):
    """The process that has a queue stands still from a moment after now on, where there are several. Clients connect
    to the others. The time ends with `Back`."""

    queue: str
    after: float
    seconds: float


class Back(Struct, frozen=True, tag="back"):
    """No process stands still any more."""


Step = Http | Say | Pass | Watch | Hang | Back


class Program(Struct, frozen=True):
    stamp: str  # In all its names, which no other program has.
    steps: tuple[Step, ...]


Row = Callable[["Draw"], Step]


class Draw:
    """Names and values for one program."""

    def __init__(self, random: Random, stamp: str, *, is_timed: bool) -> None:
        """`is_timed`: time passes in this program, so leases and delays may be short."""
        self.random, self.stamp, self.is_timed = random, stamp, is_timed
        self.chance = random.random
        self.one_of = random.choice

    def name(self, letter: str) -> str:
        return f"{letter}-{self.stamp}"

    def queue(self) -> str:
        """Mostly one that the program begins with."""
        return self.name(self.random.choices("abcdkxn", (8, 5, 4, 3, 3, 1, 1))[0])

    def channel(self) -> str:
        return self.name(self.random.choices("hiax", (8, 4, 1, 1))[0])

    def topic(self) -> str:
        return self.queue() + self.one_of(["", ".red", ".red", ".green", ".red.dark"])

    def pattern(self) -> str:
        return self.one_of([self.topic(), self.name("a") + ".*", self.name("b") + ".*", self.name("a") + ".red*"])

    def who(self) -> str:
        return self.random.choices([ADMIN, PART, READER, GUEST], (12, 4, 1, 1))[0]

    def id(self) -> str:
        return self.random.choices(
            [f"{{id:{self.back()}}}", "5" * 8 + "-5555-5555-8555-" + "5" * 12, "no-id"], (20, 1, 1)
        )[0]

    def back(self) -> int:
        return min(int(self.random.expovariate(0.5)), 9)

    def text(self) -> str:
        return self.one_of(["one", "two", "three", "zwölf", "x" * 300, ""])

    def content(self) -> Any:
        """The body of a message in the native API."""
        return self.one_of([self.text(), {"n": self.random.randrange(3)}, [1, 2], None, 7])

    def seconds(self) -> float:
        """Until something runs out: soon only where time passes."""
        return self.one_of([1, 2, 5, 30] if self.is_timed else [600, 3600])

    def any_of(self, **fields: Any) -> dict[str, Any]:
        """Some of these fields."""
        return {name: value for name, value in fields.items() if self.chance() < 0.4}

    def spoilt(self, document: dict[str, Any], odds: float = 0.06) -> Any:
        """Sometimes with something wrong in it."""
        if self.chance() >= odds:
            return document
        name = self.one_of(list(document) or ["none"])
        return self.one_of(
            [
                document | {"unknown": 1},
                document | {name: -1},
                document | {name: [None]},
                {each: value for each, value in document.items() if each != name},
                "{not json",
                [],
            ]
        )


def program_of(
    seed: int, rows: Mapping[Row, int], beginning: Callable[[Draw], list[Step]], steps: int, *, is_timed: bool
) -> Program:
    """`rows`: each with how often it is drawn."""
    random = Random(seed)
    draw = Draw(random, f"{seed:x}t" if is_timed else f"{seed:x}", is_timed=is_timed)
    if is_timed:
        rows = {**rows, pass_time: sum(rows.values()) // 10}
    chosen = random.choices(list(rows), list(rows.values()), k=steps)
    program = [*beginning(draw), *(row(draw) for row in chosen)]
    if is_timed and draw.chance() < 0.1:
        program.append(watch(draw))
    return Program(draw.stamp, tuple(program))


def hanging_program_of(
    seed: int, rows: Mapping[Row, int], beginning: Callable[[Draw], list[Step]], steps: int
) -> Program:
    """A process stands still in the middle of it. Nothing lasts so short that this would change it."""
    random = Random(seed)
    draw = Draw(random, f"{seed:x}h", is_timed=False)
    chosen = [row(draw) for row in random.choices(list(rows), list(rows.values()), k=2 * steps)]
    at_once = [step for step in chosen if isinstance(step, Http) and not step.on][:steps]
    hang = Hang(draw.queue(), draw.one_of([0, 0.0002, 0.0005, 0.002, 0.004]), draw.one_of([9, 40]))
    middle = len(at_once) // 2
    during, later = at_once[middle : middle + 2], at_once[middle + 2 :]
    return Program(draw.stamp, (*beginning(draw), *at_once[:middle], hang, *during, Back(), *later))


def pass_time(draw: Draw) -> Step:
    """Not as long as anything lasts, so that nothing ends at the same moment."""
    return Pass(draw.one_of([0.41, 1.43, 3.47, 7.53, 33.59]))


def watch(draw: Draw) -> Step:
    return Watch(draw.queue(), draw.queue())
