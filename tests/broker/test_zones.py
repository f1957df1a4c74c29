"""Time zones by their names, also where the system has none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.broker.recovery import zone_of


def test_a_zone_has_its_name() -> None:
    assert str(zone_of("Europe/Berlin")) == "Europe/Berlin"
    assert str(zone_of("UTC")) == "UTC"


@pytest.mark.parametrize("name", ["", "Mars", "Europe", "../../etc/passwd", "/etc/passwd", "a\0b", "ö", "x" * 5000])
def test_what_is_no_zone_is_none(name: str) -> None:
    assert zone_of(name) is None


def test_a_machine_without_zones_has_those_of_the_package() -> None:
    program = "from penstock.broker.recovery import zone_of; print(zone_of('Europe/Berlin'), zone_of('Mars'))"
    environment = {**os.environ, "PYTHONTZPATH": ""}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert ended.stdout == b"Europe/Berlin None\n"
