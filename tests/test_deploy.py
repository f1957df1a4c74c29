"""The files in `deploy/` do what their pages say."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.support.documentation import ROOT

ALERTS_TEST = ROOT / "deploy/alerts_test.yaml"
UNIT = ROOT / "deploy/penstock.service"
EXPOSURE_MAX = 3.0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_takes_from_the_broker_what_it_does_not_need() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    level = re.search(r"exposure level for penstock.service: ([\d.]+)", found)
    assert level, found
    assert float(level[1]) <= EXPOSURE_MAX
    shown = re.search(r"rates it ([\d.]+)", (ROOT / "docs/deploy/systemd.md").read_text())
    assert shown
    assert float(shown[1]) == pytest.approx(float(level[1]), abs=0.3)  # Versions of systemd differ a little.


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_every_alert_fires_when_it_should_and_keeps_quiet_otherwise() -> None:
    found = subprocess.run(
        ["promtool", "test", "rules", str(ALERTS_TEST)], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_alert_is_tested_and_explained() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "deploy/alerts.yaml").read_text())
    tested = ALERTS_TEST.read_text()
    page = (ROOT / "docs/deploy/monitoring.md").read_text()
    assert alerts
    for alert in alerts:
        assert f"name: {alert} fires" in tested
        assert f"name: {alert} keeps quiet" in tested
        assert f"| `{alert}` |" in page


def test_a_reload_of_the_unit_is_the_signal_that_the_broker_heeds() -> None:
    assert "ExecReload=/bin/kill -HUP $MAINPID" in UNIT.read_text().splitlines()
