"""A shared broker, and the command line at it."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.command_line import penstock

Verb = Callable[..., subprocess.CompletedProcess[str]]

_numbers = itertools.count(1)


@pytest.fixture
def verb(broker: Broker) -> Verb:
    """Runs a verb at the shared broker."""

    def run(*arguments: str, given: str | bytes | None = None) -> subprocess.CompletedProcess[str]:
        return penstock(*arguments, given=given, PENSTOCK_URL="http://{}:{}".format(*broker.http))

    return run


@pytest.fixture
def ask(verb: Verb) -> Callable[..., Any]:
    """Runs a verb with `--json`, and decodes what it prints: a list of documents, one a line."""

    def run(*arguments: str, given: str | bytes | None = None) -> list[Any]:
        ended = verb(*arguments, "--json", given=given)
        assert ended.returncode == 0, ended
        return [json.loads(line) for line in ended.stdout.splitlines()]

    return run


@pytest.fixture
def queue(broker: Broker) -> str:
    """A queue of the test's own."""
    name = f"cli-{next(_numbers)}"
    assert broker.request("PUT", f"/v1/queues/{name}", body=b"{}").status == 201
    return name
