"""The audit of pinned packages: it passes today, and fails for a version with a known fault."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import pytest
from packaging.version import Version

from scripts import audit
from tests.support.documentation import ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that the audit reads, to be changed by a test."""
    (tmp_path / "security").mkdir()
    for name in (*audit.LOCKS, audit.ADVISORIES, audit.SBOM, audit.RELEASES, audit.JUDGEMENTS):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_nothing_that_is_pinned_has_a_known_fault_and_the_bill_of_materials_is_current() -> None:
    assert audit.main([]) == 0


def test_a_version_with_a_known_fault_fails_the_audit(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = copy / "requirements-dev.lock"
    pinned = next(line for line in lock.read_text().splitlines() if line.startswith("urllib3=="))
    lock.write_text(lock.read_text().replace(pinned, "urllib3==1.26.4 \\"))
    assert audit.main([], copy) == 1
    assert "urllib3 1.26.4 is affected by PYSEC-2021-108, CVE-2021-33503" in (said := capsys.readouterr().err)
    assert "pin 1.26.5 or later (make lock)" in said


def change(path: Path, pin: str, **facts: str) -> None:
    releases = json.loads(path.read_text())
    path.write_text(json.dumps(releases | {pin: releases[pin] | facts}))


def test_a_pin_that_is_newer_than_the_advisories_needs_a_judgement(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main([], copy) == 0
    judgements = copy / audit.JUDGEMENTS
    written = judgements.read_text()
    judgements.write_text(written.replace('"msgspec 0.22.0",', ""))
    assert audit.main([], copy) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    assert line.startswith(
        "msgspec 0.22.0 was released on 2026-09-29, and the advisories are of 2024-10-10: renew them"
    )
    judgements.write_text(written)
    change(copy / audit.RELEASES, "msgspec 0.22.0", released="2024-10-10")
    judgements.write_text(written.replace('"msgspec 0.22.0",', ""))
    assert audit.main([], copy) == 0, "the advisories are about it"


def test_a_judgement_that_is_older_than_its_release_or_says_nothing_is_none(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(copy / audit.RELEASES, "msgspec 0.22.0", released="2099-01-01")
    assert audit.main([], copy) == 1
    assert "msgspec 0.22.0: its judgement in security/judgements.toml is older" in capsys.readouterr().err
    silent = [{"date": "2026-11-19", "read": " ", "finding": "fine", "pins": ["a 1"]}]
    assert list(audit.unjudged({"a": {"1"}}, {"a 1": {"released": "2026-01-01"}}, "2024-10-10", silent))


def test_a_pin_without_a_date_fails_the_audit(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    releases = copy / audit.RELEASES
    releases.write_text(releases.read_text().replace('"lmdb 3.0.0"', '"lmdb 2.0.0"'))
    assert audit.main([], copy) == 1
    assert "lmdb 3.0.0: security/releases.json does not say when it was released" in capsys.readouterr().err


def test_the_age_of_the_advisories_only_warns(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([], copy, date(2024, 11, 10)) == 0
    assert "warning" not in capsys.readouterr().err
    assert audit.main([], copy, date(2025, 10, 10)) == 0
    assert "warning: the advisories are 365 days old" in capsys.readouterr().err


@pytest.mark.parametrize("licence", ["GPL-3.0-only", "MIT AND GPL-2.0-only", "Proprietary", ""])
def test_a_licence_that_is_not_allowed_fails_the_audit(
    copy: Path, capsys: pytest.CaptureFixture[str], licence: str
) -> None:
    change(copy / audit.RELEASES, "lmdb 3.0.0", licence=licence)
    assert audit.main([], copy) == 1
    assert f"lmdb 3.0.0: its licence, {licence or 'which is unknown'}, is not one of" in capsys.readouterr().err


def test_of_alternative_licences_one_is_enough() -> None:
    assert audit.is_allowed("MIT OR GPL-2.0-only")
    assert audit.is_allowed("BSD-3-Clause AND MIT OR GPL-2.0-only")
    assert not audit.is_allowed("GPL-2.0-only OR AGPL-3.0-only")


def test_a_bill_of_materials_of_other_versions_fails_the_audit(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = copy / "requirements.lock"
    lock.write_text(lock.read_text() + "\nnew-package==1.0\n")
    assert audit.main([], copy) == 1
    assert "is older than requirements.lock: new-package. Write it anew: make sbom" in capsys.readouterr().err


def test_every_pinned_package_is_in_the_bill_of_materials_with_its_hashes() -> None:
    components = json.loads((ROOT / audit.SBOM).read_text())["components"]
    assert all(component["hashes"] and component["purl"] for component in components)


@pytest.mark.parametrize(
    ("version", "range_", "yes"),
    [
        ("1.0", {"introduced": "0"}, True),
        ("1.0", {"introduced": "0", "fixed": "1.0"}, False),
        ("1.0rc1", {"introduced": "0", "fixed": "1.0"}, True),
        ("1.10", {"introduced": "1.9", "fixed": "2"}, True),
        ("1.0", {"introduced": "0", "last_affected": "1.0"}, True),
        ("1.1", {"introduced": "0", "last_affected": "1.0"}, False),
    ],
)
def test_a_version_is_affected_from_its_introduction_to_the_fix(
    version: str, range_: dict[str, str], yes: bool
) -> None:
    assert audit.is_affected(Version(version), {"ranges": [range_], "versions": []}) is yes


def test_advisories_are_taken_from_a_checkout_of_the_database(copy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "database/vulns/numpy"
    folder.mkdir(parents=True)
    (folder / "PYSEC-1.yaml").write_text(
        "id: PYSEC-1\naffected:\n- package: {name: numpy}\n  ranges:\n  - type: ECOSYSTEM\n"
        '    events:\n    - introduced: "0"\n    - fixed: 99.0\nmodified: "2026-01-31T00:00:00Z"\n'
    )
    assert audit.main(["--refresh", str(tmp_path / "database")], copy) == 1
    kept = json.loads((copy / audit.ADVISORIES).read_text())
    assert (kept["as_of"], [each["id"] for each in kept["advisories"]]) == ("2026-01-31", ["PYSEC-1"])
