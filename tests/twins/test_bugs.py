"""Programs show bugs: each that is seeded on purpose is found by a seed, or by a program that is about it.

When the code changes, another seed may find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.twins.bugs import BUGS
from tests.twins.examples import EXAMPLES
from tests.twins.many import alone, programs_of
from tests.twins.programs import ADMIN, Back, Hang, Http, Pass, Program, Step, Watch

SEEDS = {
    "a queue that is deleted stays in the policies of other shards": 168,
    "parts are carried out before permission is asked for": 14,
    "the beginning of all logs is refused": 2,
}
SEEDS_MORE = 200
STEPS = 25


@pytest.mark.parametrize("name", SEEDS)
def test_a_bug_that_is_seeded_on_purpose_is_found(name: str) -> None:
    seeds = range(SEEDS[name], SEEDS[name] + SEEDS_MORE)
    with BUGS[name]():
        assert any(alone(program, "simulated2").found for program in programs_of(seeds, STEPS, "simulated2"))


def _ask(method: str, target: str, body: Any = None) -> Step:
    return Http(ADMIN, method, target, body)


def _queues(stamp: str, **settings: Any) -> tuple[Step, ...]:
    return tuple(_ask("PUT", f"/v1/queues/{letter}-{stamp}", settings) for letter in "abc")


def _move_a_schedule(stamp: str) -> tuple[Step, ...]:
    def every_second(queue: str) -> Step:
        return _ask("PUT", f"/v1/schedules/s-{stamp}", {"queue": f"{queue}-{stamp}", "every": 1, "message": 1})

    return (*_queues(stamp), every_second("a"), Pass(1.43), every_second("b"), Pass(3.47))


def _change_an_object(stamp: str) -> tuple[Step, ...]:
    def change(queue: str, message: int) -> Step:
        document = {"topics": [f"{queue}-{stamp}"], "message": message, "object": f"o-{stamp}", "key": "k"}
        return _ask("POST", "/v1/publish", document)

    changes = [("a", 1), ("b", 2), ("a", 1), ("c", 1), ("a", 2), ("b", 2)]
    return (*_queues(stamp, detect_unchanged=True), *(change(*each) for each in changes))


def _follow_one_queue(stamp: str) -> tuple[Step, ...]:
    return (*_queues(stamp), Watch(f"a-{stamp}", f"b-{stamp}"))


def _publish_to_a_process_that_stands_still(stamp: str) -> tuple[Step, ...]:
    publishes = [_ask("POST", f"/messages/a-{stamp}", text) for text in ("one", "two", "three")]
    return (*_queues(stamp), Hang(f"a-{stamp}", 0.0001, 9), *publishes, Back())


def _ask_a_process_that_stands_still(stamp: str) -> tuple[Step, ...]:
    return (*_queues(stamp), Hang(f"a-{stamp}", 0, 40), _ask("POST", f"/messages/a-{stamp}", "m"))


STAMPS = [f"bug{number}" for number in range(20)]
STORIES: dict[str, Callable[[str], tuple[Step, ...]]] = {
    "a process that stands still is not noticed": _ask_a_process_that_stands_still,
    "a schedule that moves stays where it was, too": _move_a_schedule,
    "content is compared with the versions of one shard": _change_an_object,
    "followers wait as long as another shard is busy": _follow_one_queue,
    "what was under way to a process is refused when that stands still": _publish_to_a_process_that_stands_still,
}


@pytest.mark.parametrize("name", STORIES)
def test_a_bug_is_found_by_a_program_that_is_about_it(name: str) -> None:
    """Not by all: in some the queues are in shards of one process, or the process stands still too late."""
    programs = [Program(stamp, STORIES[name](stamp)) for stamp in STAMPS]
    assert not any(alone(program, "simulated2").found for program in programs[:3])
    with BUGS[name]():
        assert any(alone(program, "simulated2").found for program in programs)


def test_a_pull_that_is_refused_because_one_queue_is_away_is_not_what_the_list_says() -> None:
    about = "pulls while one is away"
    program = Program("apart", EXAMPLES[about]("apart"))
    with BUGS["a pull is refused if one of its queues is away"]():
        assert about not in alone(program, "simulated2").met
