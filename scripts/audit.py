"""Compares what the lock files pin with `security/`: known advisories, what was judged of newer releases, licences,
and the bill of materials. No network.

Advisories tell nothing of what was released after them. So each such pin needs a judgement: somebody has written down
what was read about it, and when.

python scripts/audit.py                          `make check` runs this: exit 1 if something has to be done
python scripts/audit.py --refresh DIRECTORY      take the advisories for our packages from a checkout of the
                                                 Python Packaging Advisory Database
python scripts/audit.py --sbom FILE              keep a bill of materials of requirements.lock that was just made
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock")
ADVISORIES = "security/advisories.json"
SBOM = "security/sbom.cdx.json"
RELEASES = "security/releases.json"  # By "package version": when it was released, and its licence.
JUDGEMENTS = "security/judgements.toml"
_ADVISORY_DAYS_MAX = 180
# What may be used unchanged by a program under any licence. Those of the last line want their own changes published.
_ALLOWED_LICENCES = frozenset(
    (
        *("MIT", "MIT-0", "MIT-CMU", "ISC", "Zlib", "0BSD", "BSD", "BSD-2-Clause", "BSD-3-Clause"),
        *("Apache-2.0", "PSF-2.0", "OLDAP-2.8", "CC0-1.0"),
        *("MPL-2.0", "LGPL-2.1-or-later", "LGPL-3.0-only"),
    )
)

Pins = Mapping[str, set[str]]  # A package may be pinned twice, for different versions of Python.


def main(arguments: list[str], root: Path = ROOT, today: date | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the lock files with security/.")
    parser.add_argument("--refresh", type=Path, metavar="DIRECTORY", help="a checkout with the folder vulns/")
    parser.add_argument("--sbom", type=Path, metavar="FILE", help="a bill of materials as cyclonedx-py wrote it")
    options = parser.parse_args(arguments)
    pins = pins_of(*(root / lock for lock in LOCKS))
    if options.refresh:
        write_advisories(root / ADVISORIES, options.refresh, pins)
    if options.sbom:
        write_sbom(root / SBOM, options.sbom)
    known = json.loads((root / ADVISORIES).read_text())
    releases = json.loads((root / RELEASES).read_text())
    judgements = tomllib.loads((root / JUDGEMENTS).read_text())
    problems = [
        *affected(pins, known["advisories"]),
        *unjudged(pins, releases, known["as_of"], judgements["judgement"]),
        *forbidden(pins, releases, judgements["licences"]),
        *unlisted(pins_of(root / LOCKS[0]), root / SBOM),
    ]
    days = ((today or date.today()) - date.fromisoformat(known["as_of"])).days  # noqa: DTZ011 - It is about days.
    if days > _ADVISORY_DAYS_MAX:
        print(f"warning: the advisories are {days} days old: make advisories DATABASE=…", file=sys.stderr)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(
            f"{len(pins)} packages, {len(known['advisories'])} advisories as of {known['as_of']}: none affects them"
        )
    return 1 if problems else 0


def pins_of(*locks: Path) -> Pins:
    """The packages of lock files, with their versions."""
    pins: dict[str, set[str]] = {}
    for lock in locks:
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lock.read_text(), re.M):
            pins.setdefault(normalised(name), set()).add(version)
    return pins


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# ── Advisories ────────────────────────────────────────────────────────────────────────────────────────────────


def affected(pins: Pins, advisories: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each advisory about a version that is pinned."""
    for advisory in advisories:
        for version in sorted(pins.get(advisory["package"], ())):
            if is_affected(Version(version), advisory):
                names = ", ".join([advisory["id"], *advisory["aliases"]])
                fixed = [each["fixed"] for each in advisory["ranges"] if "fixed" in each]
                remedy = f"pin {' or '.join(fixed)} or later" if fixed else "no version is known to mend it"
                yield f"{advisory['package']} {version} is affected by {names}: {remedy} (make lock)"


def is_affected(version: Version, advisory: dict[str, Any]) -> bool:
    if str(version) in advisory["versions"]:
        return True
    return any(
        Version(each["introduced"]) <= version
        and ("fixed" not in each or version < Version(each["fixed"]))
        and ("last_affected" not in each or version <= Version(each["last_affected"]))
        for each in advisory["ranges"]
    )


def write_advisories(path: Path, database: Path, pins: Pins) -> None:
    """Keep ids and versions of what is about our packages. The newest change to any advisory dates all of them."""
    documents = [document for name in sorted(pins) for document in _documents(database / "vulns" / name)]
    files = (database / "vulns").rglob("*.yaml")
    newest = max(re.findall(r'^modified: "?([0-9-]{10})', "\n".join(file.read_text() for file in files), re.M))
    kept = {
        "source": "Python Packaging Advisory Database (PyPA), CC-BY 4.0",
        "as_of": newest,
        "advisories": [_facts(document) for document in documents if not document.get("withdrawn")],
    }
    path.write_text(json.dumps(kept, indent=1) + "\n")


def _documents(folder: Path) -> Iterator[dict[str, Any]]:
    import yaml

    for path in sorted(folder.glob("*.yaml")):
        yield yaml.safe_load(path.read_text())


def _facts(document: dict[str, Any]) -> dict[str, Any]:
    package = document["affected"][0]
    ranges: list[dict[str, str]] = []
    for each in package.get("ranges", ()):
        for event in each["events"] if each["type"] == "ECOSYSTEM" else ():
            if "introduced" in event:
                ranges.append({"introduced": str(event["introduced"])})
            else:
                ranges[-1] |= {name: str(value) for name, value in event.items()}
    return {
        "id": document["id"],
        "package": normalised(package["package"]["name"]),
        "aliases": sorted(document.get("aliases", ())),
        "ranges": ranges,
        "versions": [] if ranges else [str(each) for each in package.get("versions", ())],
    }


# ── What is newer than the advisories ─────────────────────────────────────────────────────────────────────────


def unjudged(pins: Pins, releases: Mapping[str, Any], as_of: str, judgements: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each pin that was released after the advisories, and about which nobody has read since."""
    judged = {pin: judgement for judgement in judgements for pin in judgement["pins"]}
    for pin in pins_in(pins):
        if pin not in releases:
            yield f"{pin}: {RELEASES} does not say when it was released: make releases INDEX=…"
            continue
        released, judgement = releases[pin]["released"], judged.get(pin)
        if released <= as_of:
            continue
        if judgement is None:
            yield (
                f"{pin} was released on {released}, and the advisories are of {as_of}: renew them, or read about it"
                f" and write into {JUDGEMENTS} what you have read and found"
            )
        elif str(judgement["date"]) < released or not (judgement["read"].strip() and judgement["finding"].strip()):
            yield f"{pin}: its judgement in {JUDGEMENTS} is older than the release, or does not say what was read"


def forbidden(pins: Pins, releases: Mapping[str, Any], by_hand: Mapping[str, str]) -> Iterator[str]:
    """One line for each pin with a licence that nobody has allowed. `by_hand`: of those whose metadata say none."""
    for pin in pins_in(pins):
        licence = releases.get(pin, {}).get("licence") or by_hand.get(pin, "")
        if pin in releases and not is_allowed(licence):
            shown = licence or "which is unknown"
            yield f"{pin}: its licence, {shown}, is not one of those that scripts/audit.py allows"


def is_allowed(licence: str) -> bool:
    """An SPDX expression without parentheses: all parts, and of alternatives one."""
    return all(_ALLOWED_LICENCES.intersection(part.split(" OR ")) for part in licence.split(" AND "))


def pins_in(pins: Pins) -> list[str]:
    return [f"{name} {version}" for name in sorted(pins) for version in sorted(pins[name])]


# ── The bill of materials ─────────────────────────────────────────────────────────────────────────────────────


def write_sbom(path: Path, made: Path) -> None:
    """Without what repeats the lock file, and without addresses: packages come from whatever index is configured."""
    document = json.loads(made.read_text())
    for component in document["components"]:
        del component["description"]
        component["hashes"] = component.pop("externalReferences")[0]["hashes"]
    for tool in document["metadata"]["tools"]["components"]:
        tool.pop("externalReferences", None)
    path.write_text(json.dumps(document, indent=1) + "\n")


def unlisted(pins: Pins, sbom: Path) -> Iterator[str]:
    """One line if the bill of materials is not that of the lock file."""
    listed: dict[str, set[str]] = {}
    for component in json.loads(sbom.read_text())["components"]:
        listed.setdefault(normalised(component["name"]), set()).add(component["version"])
    differing = sorted(name for name in {*pins, *listed} if pins.get(name) != listed.get(name))
    if differing:
        yield f"{SBOM} is older than {LOCKS[0]}: {', '.join(differing)}. Write it anew: make sbom"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
