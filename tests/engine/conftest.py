"""What the tests of the engine share."""

from __future__ import annotations

import pytest

from tests.support.engine_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()
