"""The acts that the audit records: all that needs the right to manage something."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from penstock.model.access import Verb
from penstock.model.audit import ACTS
from penstock.model.permissions import PERMISSIONS
from penstock.model.probe import Probe
from penstock.model.tokens import DescribeToken, ListTokens
from tests.support.any_value import any_object

CHANGES_NOTHING = {DescribeToken, ListTokens}


@pytest.mark.parametrize("kind", [kind for kind in PERMISSIONS if kind is not Probe], ids=lambda kind: kind.__name__)
def test_whatever_only_a_manager_may_do_is_recorded(kind: type[Any]) -> None:
    row, verbs = PERMISSIONS[kind], set[Verb]()

    @settings(max_examples=5)
    @given(any_object(kind))
    def ask(command: Any) -> None:
        for wanted, _ in row(command, lambda _: "orders") if row else ():
            verbs.update(wanted if len(wanted) == 1 else ())

    ask()
    assert (kind in ACTS) == bool(verbs & {Verb.MANAGE, Verb.ADMIN} and kind not in CHANGES_NOTHING)
