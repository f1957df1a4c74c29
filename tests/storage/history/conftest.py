"""An Object History that notes what is published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.noter import Noter


@pytest.fixture
def noter(tmp_path: Path) -> Iterator[Noter]:
    noter = Noter(tmp_path / "history")
    yield noter
    noter.history.close()
