"""Writes down what the package index says of what is pinned: when it was released, and under which licence.

python -m scripts.releases INDEX      the address of a package index that says when files were uploaded (PEP 700)
python -m scripts.releases --list     which licences the pinned packages have, without a network
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from html import unescape
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

from scripts.audit import LOCKS, RELEASES, ROOT, Pins, pins_of

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5"
_SECONDS_MAX = 120
_LINK = re.compile(r"<a\s([^>]*)>([^<]*)</a>")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
# What older packages say instead of an SPDX expression.
_CLASSIFIED = {
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
}


class File(NamedTuple):
    version: str
    released: str  # The day.
    address: str


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Release dates and licences of what is pinned.")
    parser.add_argument("index", nargs="?", metavar="INDEX", help="the address of a package index")
    parser.add_argument("--list", action="store_true", help="list the licences")
    options = parser.parse_args(arguments)
    if options.index:
        found = dict(facts(options.index, pins_of(*(root / lock for lock in LOCKS))))
        (root / RELEASES).write_text(json.dumps(found, indent=1) + "\n")
    elif not options.list:
        parser.error("give the address of an index, or --list")
    for licence, packages in sorted(by_licence(json.loads((root / RELEASES).read_text())).items()):
        print(f"{licence or 'unknown'}: {', '.join(packages)}")
    return 0


def by_licence(releases: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for pin, facts_of_pin in releases.items():
        found[facts_of_pin["licence"]].append(pin)
    return found


def facts(index: str, pins: Pins) -> Iterator[tuple[str, dict[str, str]]]:
    for name, versions in sorted(pins.items()):
        address = f"{index.rstrip('/')}/{name}/"
        with _opened(address) as answer:
            files = files_in(answer.headers.get_content_type(), answer.read().decode(), address)
        for version in sorted(versions):
            mine = [file for file in files if file.version == version]
            if not mine:
                raise SystemExit(f"{address} has no {name} {version} with the time of its upload")
            released = min(file.released for file in mine)
            yield f"{name} {version}", {"released": released, "licence": _licence(name, mine)}


def files_in(content_type: str, text: str, address: str) -> list[File]:
    """The files that an index lists, in either form."""
    if content_type.endswith("json"):
        listed = [(file["filename"], file.get("upload-time"), file["url"]) for file in json.loads(text)["files"]]
    else:
        links = [(dict(_ATTRIBUTE.findall(attributes)), name) for attributes, name in _LINK.findall(text)]
        listed = [(name.strip(), link.get("data-upload-time"), unescape(link["href"])) for link, name in links]
    return [
        File(version, time[:10], urljoin(address, link.partition("#")[0]))
        for name, time, link in listed
        if time and (version := _version_in(name))
    ]


def _version_in(filename: str) -> str | None:
    try:
        if filename.endswith(".whl"):
            return str(parse_wheel_filename(filename)[1])
        return str(parse_sdist_filename(filename)[1])
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def _licence(name: str, files: list[File]) -> str:
    """As the installed package says, or else a wheel on the index: some pins are for other versions of Python."""
    try:
        installed = distribution(name)
        if installed.version == files[0].version:
            return licence_in(installed.metadata)  # type: ignore[arg-type]
    except PackageNotFoundError:
        pass
    with _opened(next(file.address for file in files if file.address.endswith(".whl"))) as answer:
        wheel = zipfile.ZipFile(io.BytesIO(answer.read()))
    metadata = next(entry for entry in wheel.namelist() if entry.endswith(".dist-info/METADATA"))
    return licence_in(BytesParser().parsebytes(wheel.read(metadata)))


def licence_in(metadata: Message) -> str:
    """In terms of SPDX; empty if the metadata do not say."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or ()]
    if known := [_CLASSIFIED[each] for each in classifiers if each in _CLASSIFIED]:
        return " AND ".join(known)
    stated = str(metadata.get("License") or "")
    return stated if stated and "\n" not in stated else ""


def _opened(address: str):  # type: ignore[no-untyped-def]
    return urllib.request.urlopen(urllib.request.Request(address, headers={"Accept": _ACCEPT}), timeout=_SECONDS_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
