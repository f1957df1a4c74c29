"""The house stays easy to live in: sizes, names and pages that a newcomer relies on."""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.documentation import ROOT

SOURCE = ROOT / "src/penstock"
FILES = sorted(SOURCE.rglob("*.py"))
DOCS = ROOT / "docs"
GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_no_code(statement: ast.stmt) -> bool:
    """Whether this is an import, or a text that stands alone: a docstring."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    return isinstance(statement, ast.Import | ast.ImportFrom)


@cache
def code_lines(path: Path) -> dict[int, str]:
    """The lines of a file that are code: no comments, no docstrings, no blank lines, no imports."""
    text = path.read_text()
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in quiet:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.stmt) and is_no_code(node):
            numbers.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.splitlines()
    return {number: lines[number - 1].strip() for number in sorted(numbers)}


def functions() -> Iterator[tuple[str, int]]:
    """Every function with the number of code lines in its body."""
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, Function):
                body = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
                yield f"{relative(path)}:{node.lineno} {node.name}", sum(line in code_lines(path) for line in body)


def test_no_file_is_longer_than_500_lines() -> None:
    assert not [relative(path) for path in FILES if len(path.read_text().splitlines()) > 500]


def test_functions_are_short() -> None:
    lengths = dict(functions())
    assert not [name for name, length in lengths.items() if length > 60]
    assert statistics.median(lengths.values()) <= 5


def test_a_class_with_more_than_30_methods_says_why() -> None:
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and sum(isinstance(member, Function) for member in node.body) > 30:
                assert "methods" in (ast.get_docstring(node) or ""), f"{relative(path)}: {node.name}"


def test_no_nine_lines_of_code_stand_twice() -> None:
    seen: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in FILES:
        lines = list(code_lines(path).items())
        for start in range(len(lines) - 8):
            piece = lines[start : start + 9]
            seen[tuple(text for _, text in piece)].append(f"{relative(path)}:{piece[0][0]}")
    assert not [places for places in seen.values() if len(places) > 1]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_module_opens_with_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


NAMED = re.compile(r"`((?:[a-z_]+/)+(?:[\w.-]+\.(?:py|md|json|toml))?|[a-z_]+\.py)`")


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", DOCS / "architecture.md", DOCS / "glossary.md"], ids=relative
)
def test_files_named_in_the_guides_exist(page: Path) -> None:
    names = NAMED.findall(page.read_text())
    assert not [name for name in names if not any((root / name).exists() for root in (ROOT, SOURCE))]
    assert names


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", GUIDES, ids=relative)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_index_lists_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "adr"]
    assert not [page for page in pages if page != "README.md" and f"({page})" not in index]


def test_every_decision_has_a_date_a_status_and_a_line_in_the_index() -> None:
    index = (DOCS / "adr/README.md").read_text()
    for page in sorted((DOCS / "adr").glob("0*.md")):
        row = next((line for line in index.splitlines() if f"({page.name})" in line), "")
        assert re.search(r"\d{4}-\d\d-\d\d", row), page.name
        assert re.search(r"Date: \d{4}-\d\d-\d\d.*Status: \w+", page.read_text(), re.S), page.name


def test_the_glossary_is_sorted() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\*", (DOCS / "glossary.md").read_text(), re.M)
    assert words == sorted(words, key=str.lower)
    assert len(words) > 20
