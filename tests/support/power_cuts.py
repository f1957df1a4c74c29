"""Power cuts between the commits of a lake."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SparkError
from penstock.pipeline.lake.delta import LakeTable
from tests.support.lakes import FilledLake


class PowerCutError(Exception):
    pass


def fill_until_cut(filled: FilledLake, survived: int, **options: Any) -> None:
    """Fill the lake until so many commits are done, and the power fails at the next."""
    commit, done = LakeTable._commit, 0

    def dying(self: LakeTable, *given: Any, **more: Any) -> None:
        nonlocal done
        if done == survived:
            raise PowerCutError
        done += 1
        commit(self, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeTable, "_commit", dying)
        with pytest.raises(SparkError, match="PowerCutError"):
            filled.fill(**options)
