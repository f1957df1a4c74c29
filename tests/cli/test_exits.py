"""Exit codes that scripts can trust."""

from __future__ import annotations

import pytest

from penstock.cli.exits import CommandError, Exit, code_of
from penstock.errors import BrokerError, ConfigError, InUseError, PenstockError


def refusal(status: int, code: str = "") -> PenstockError:
    error = PenstockError("refused")
    error.status, error.code = status, code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PenstockError("x"), 1),
        (BrokerError("x"), 1),
        (ConfigError("x"), 2),
        (InUseError("x"), 3),
        (CommandError("x", Exit.TIMED_OUT), 7),
        (refusal(400), 2),
        (refusal(401), 5),
        (refusal(404), 4),
        (refusal(409), 5),
        (refusal(409, "queue_exists"), 3),
        (refusal(410), 4),
        (refusal(500), 1),
        (refusal(0), 6),
    ],
)
def test_each_kind_of_error_has_its_code(error: PenstockError, code: int) -> None:
    assert code_of(error) == code
