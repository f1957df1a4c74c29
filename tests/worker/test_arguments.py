"""Arguments are checked against the function's signature and types, and arrive with these types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from penstock.worker.arguments import Arguments
from penstock.worker.errors import TaskError


@dataclass
class Address:
    city: str
    zip: int


def pay(who: str, /, amount: int, *extra: float, at: datetime | None = None, **more: Address) -> bool:
    return bool((who, amount, extra, at, more))


ARGUMENTS = Arguments("pay", pay)


def round_trip(arguments: Arguments, *args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    named = arguments.named(*args, **kwargs)
    arguments.check(named)
    in_json = arguments.decode(msgspec.Raw(msgspec.json.encode(named)), as_json=True)
    in_msgpack = arguments.decode(msgspec.Raw(msgspec.msgpack.encode(named)), as_json=False)
    assert in_json == in_msgpack
    return in_json


def test_every_kind_of_parameter_arrives_with_its_type() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    args, kwargs = round_trip(ARGUMENTS, "ann", 3, 0.5, 1, at=at, home=Address("Bern", 3000))
    assert args == ["ann", 3, 0.5, 1.0]
    assert kwargs == {"at": at, "home": Address("Bern", 3000)}


def test_defaults_need_not_be_sent() -> None:
    assert round_trip(ARGUMENTS, "ann", 3) == (["ann", 3], {"at": None})


@pytest.mark.parametrize(
    ("args", "kwargs", "sentence"),
    [
        (("ann", "x"), {}, "task pay: argument amount: expected `int`, got `str`"),
        (("ann",), {}, "task pay: missing a required argument: 'amount'"),
        (("ann", 1), {"at": "soon"}, "task pay: argument at: invalid RFC3339 encoded datetime"),
        (
            ("ann", 1),
            {"home": {"city": "Bern"}},
            "task pay: argument more (at [...]): object missing required field `zip`",
        ),
        (("ann", 1), {"at": object()}, "task pay: Encoding objects of type object is unsupported"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_call(args: Any, kwargs: Any, sentence: str) -> None:
    with pytest.raises(TypeError) as refused:
        ARGUMENTS.check(ARGUMENTS.named(*args, **kwargs))
    assert str(refused.value).startswith(sentence)


def test_an_unknown_argument_in_a_message_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        ARGUMENTS.decode(msgspec.Raw(b'{"who":"ann","amount":1,"sum":2}'), as_json=True)


def test_the_result_of_a_task_before_goes_into_the_first_parameter() -> None:
    assert ARGUMENTS.first == "who"
    assert ARGUMENTS.named_after(3) == {"amount": 3}


def test_a_function_without_parameters_cannot_follow_another() -> None:
    with pytest.raises(TaskError, match="no argument for the result"):
        _ = Arguments("nothing", lambda: None).first


def test_types_that_cannot_be_told_apart_are_refused_with_the_name_of_the_task() -> None:
    def several(items: list[int] | tuple[str, ...]) -> None: ...

    with pytest.raises(TaskError, match="task several: its arguments cannot be sent"):
        Arguments("several", several)
