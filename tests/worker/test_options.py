"""Wrong options of a task or a worker are refused where they are given."""

from __future__ import annotations

import math
from typing import Any

import pytest

from penstock import App
from penstock.worker import TaskError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_attempts": "5"}, "option max_attempts: expected `int | null`, got `str`"),
        ({"max_attempts": 0}, "option max_attempts: expected `int` >= 1"),
        ({"timeout": "3"}, "option timeout: expected `float | null`, got `str`"),
        ({"timeout": -1}, "option timeout: expected `float` > 0"),
        ({"timeout": math.nan}, "option timeout: expected `float` > 0"),
        ({"retry_backoff": "expo"}, "option retry_backoff: invalid enum value 'expo'"),
        ({"retry_jitter": 2}, "option retry_jitter: expected `float` <= 1"),
        ({"payload": "pickle"}, "option payload: invalid enum value 'pickle'"),
        ({"queue": 17}, "option queue: expected `str | null`, got `int`"),
        ({"queue": ""}, "option queue: expected `str` of length >= 1"),
        ({"priority": "high"}, "option priority: expected `int`, got `str`"),
        ({"no_retry": ValueError}, "no_retry is a list of exception classes"),
        ({"no_retry": ["ValueError"]}, "no_retry is a list of exception classes"),
        ({"dead_letters": "x"}, "unknown options: dead_letters"),
    ],
    ids=str,
)
def test_a_wrong_option_of_a_task_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskError) as told:
        App().task(name="resize", **options)(lambda: None)
    assert str(told.value).startswith("task resize: ")
    assert said in str(told.value)


def test_right_options_are_taken() -> None:
    options: dict[str, Any] = {"max_attempts": None, "timeout": 3, "lease": 2, "no_retry": (ValueError,), "every": 1}
    task = App().task(name="resize", queue="images", retry_delay_max=None, dead_letter_queue=None, **options)
    assert task(lambda: None).timeout == 3


def test_a_worker_for_a_queue_that_no_task_has_is_refused() -> None:
    app = App()
    app.task(queue="images")(lambda: None)
    with pytest.raises(TaskError, match="no task of the app has the queue imagse; its queues are images"):
        app.worker(queues=["imagse"])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_an_argument_that_json_has_no_number_for_is_refused_and_msgpack_takes_it(number: float) -> None:
    app = App()

    @app.task
    def scale(factor: Any) -> None: ...

    @app.task(payload="msgpack")
    def stretch(factor: Any) -> None: ...

    with pytest.raises(TypeError, match=f"task scale: JSON has no number {number}"):
        scale.with_options().body([number])
    assert stretch.with_options().body([number])
