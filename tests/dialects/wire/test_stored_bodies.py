"""Stored bodies in their own content types are made in one place, and a browser does not get them as pages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import penstock
from penstock.dialects.wire.http import Headers
from penstock.dialects.wire.stored_bodies import check_use, stored_bodies, stored_body
from penstock.errors import Fault, RequestError

SOURCE = Path(penstock.__file__).parent
MAKER = "dialects/wire/stored_bodies.py"


def test_no_other_answer_has_the_content_type_of_a_message() -> None:
    users = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if _uses(path)]
    assert users == [MAKER]


def _uses(path: Path) -> bool:
    imported = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return any(name.name == "content_type_header" for node in imported for name in node.names)


def test_what_is_shown_runs_nothing() -> None:
    for response in (stored_body(b"x", "text/html", b"A: b\r\n"), stored_bodies(b"x", b"boundary")):
        lines = response.headers.split(b"\r\n")
        assert {b"Content-Security-Policy: sandbox", b"X-Content-Type-Options: nosniff"} <= set(lines)


@pytest.mark.parametrize(
    "headers",
    [{}, {b"sec-fetch-dest": b"empty"}, {b"sec-fetch-dest": b"empty", b"sec-fetch-mode": b"cors"}],
    ids=str,
)
def test_programs_and_scripts_get_a_body(headers: Headers) -> None:
    check_use(headers)


@pytest.mark.parametrize(
    "use", ["document", "iframe", "frame", "embed", "object", "script", "serviceworker", "image"]
)
def test_whoever_shows_or_runs_it_does_not(use: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_use({b"sec-fetch-dest": use.encode()})
    assert (refused.value.error, use in str(refused.value)) == (Fault.FORBIDDEN_USE, True)


def test_a_download_by_navigation_does_not_either() -> None:
    with pytest.raises(RequestError):
        check_use({b"sec-fetch-dest": b"empty", b"sec-fetch-mode": b"navigate"})
