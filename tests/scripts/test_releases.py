"""Release dates and licences are read from an index in both of its forms, and from metadata old and new."""

from __future__ import annotations

import json
from email.message import Message

import pytest

from scripts.releases import File, files_in, licence_in, main

ADDRESS = "https://index.example/simple/some-name/"
HTML = (
    '<a href="../../files/some_name-1.0-py3-none-any.whl#sha256=0" data-upload-time="2026-01-31T10:00:00Z">'
    "some_name-1.0-py3-none-any.whl</a><br/>\n"
    '<a href="/files/some_name-1.1.tar.gz">some_name-1.1.tar.gz</a>\n'
    '<a href="/files/odd" data-upload-time="2026-01-31T10:00:00Z">odd</a>'
)
WHEEL = File("1.0", "2026-01-31", "https://index.example/files/some_name-1.0-py3-none-any.whl")


def test_both_forms_of_an_index_say_the_same() -> None:
    file = {"filename": "some_name-1.0-py3-none-any.whl", "url": WHEEL.address, "upload-time": "2026-01-31T10:00:00Z"}
    assert files_in("text/html", HTML, ADDRESS) == [WHEEL]
    assert files_in("application/vnd.pypi.simple.v1+json", json.dumps({"files": [file]}), ADDRESS) == [WHEEL]


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "other")], "MIT OR Apache-2.0"),
        ([("License", "the MIT"), ("Classifier", "License :: OSI Approved :: MIT License")], "MIT"),
        (
            [
                ("Classifier", "License :: OSI Approved :: MIT License"),
                ("Classifier", "License :: OSI Approved :: BSD License"),
            ],
            "MIT AND BSD",
        ),
        ([("License", "Apache-2.0")], "Apache-2.0"),
        ([("License", "Copyright\n a long text")], ""),
        ([], ""),
    ],
)
def test_a_licence_is_what_the_metadata_say(fields: list[tuple[str, str]], licence: str) -> None:
    metadata = Message()
    for name, value in fields:
        metadata[name] = value
    assert licence_in(metadata) == licence


def test_the_licences_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "\nOLDAP-2.8: lmdb " in capsys.readouterr().out
