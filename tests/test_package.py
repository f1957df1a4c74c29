"""The package as installed."""

from importlib.metadata import version

import penstock


def test_the_installed_version_is_the_one_the_source_states() -> None:
    assert version("penstock") == penstock.__version__
