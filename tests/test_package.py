"""The package as it is built and installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

import penstock
from tests.support.documentation import ROOT


def test_the_installed_version_is_the_one_the_source_states() -> None:
    assert version("penstock") == penstock.__version__


def test_the_changelog_has_a_section_for_the_version() -> None:
    assert f"## [{penstock.__version__}] - 20" in (ROOT / "CHANGELOG.md").read_text()


def test_a_registry_can_show_what_the_package_is() -> None:
    facts = metadata("penstock")
    assert facts["Description-Content-Type"] == "text/markdown"
    assert "# Penstock" in str(facts.json["description"])
    assert {link.partition(",")[0] for link in facts.get_all("Project-URL", [])} >= {"Documentation", "Changelog"}
    assert "Typing :: Typed" in facts.get_all("Classifier", [])


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The built wheel, unpacked apart from the source; the environment in which Python finds it first."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    built, place = tmp_path / "dist", tmp_path / "place"
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", built, ROOT], check=True)
    (wheel,) = built.glob("penstock-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", place, wheel], check=True)
    return os.environ | {"PYTHONPATH": str(place), "TMPDIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}


def test_the_demo_works_from_the_wheel(installed: dict[str, str], tmp_path: Path) -> None:
    where = [sys.executable, "-c", "import penstock; print(penstock.__file__)"]
    found = subprocess.run(where, env=installed, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(installed["PYTHONPATH"])
    demo = [sys.executable, "-m", "penstock.cli", "demo", "--brief"]
    shown = subprocess.run(demo, env=installed, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "to Oslo: done" in shown.stdout
