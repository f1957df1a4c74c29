"""Hooks of the documentation site: files outside docs/ that pages link to, reference pages from code, diagrams."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from scripts.docs_diagrams import STYLE, drawn
from scripts.docs_reference import reference_pages

ROOT = Path(__file__).parents[1]
_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_FOLDERS = ("examples", "deploy")
_HOME = "project"  # Where these files are in the site.
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")
_STYLES = "site.css"  # Named in mkdocs.yml, like the next one.
_WORKER = "iframe-worker.js"
_TABLES = """\
@media (max-width: 45em) {
  .md-typeset table:not([class]) { font-size: 0.6rem; }
  .md-typeset table:not([class]) th, .md-typeset table:not([class]) td { padding: 0.5em 0.6em; min-width: 5em; }
  .md-typeset table:not([class]) td code { white-space: normal; overflow-wrap: anywhere; }
}
"""
_DECISION = re.compile(r"adr/\d{4}-")


def on_files(files: Files, config: Any) -> Files:
    for path in _mounted():
        place = f"{_HOME}/{path.relative_to(ROOT)}"
        files.append(File.generated(config, place, content=_page(path) if path.suffix == ".md" else path.read_text()))
    for place, text in reference_pages().items():
        files.append(File.generated(config, place, content=text))
    files.append(File.generated(config, _STYLES, content=STYLE + _TABLES))
    files.append(File.generated(config, _WORKER, content=(Path(__file__).parent / "docs_worker.js").read_text()))
    for file in files.documentation_pages():
        if _DECISION.match(file.src_uri):
            file.inclusion = file.inclusion.NOT_IN_NAV  # adr/README.md lists them.
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Diagrams are drawn. Links that leave docs/ lead to the copies in the site; those that stay there are kept."""
    markdown = drawn(markdown)
    if page.file.src_uri.startswith(f"{_HOME}/"):
        return markdown
    depth = page.file.src_uri.count("/")

    def moved(link: re.Match[str]) -> str:
        ups = link[1].count("../")
        if ups <= depth:
            return link[0]
        return f"]({'../' * depth}{_HOME}/{_file(link[2])}{link[3] or ''})"

    return _OUTSIDE.sub(moved, markdown)


def _mounted() -> list[Path]:
    pages = [ROOT / name for name in _PAGES if (ROOT / name).exists()]
    return pages + [path for folder in _FOLDERS for path in sorted((ROOT / folder).glob("*")) if path.is_file()]


def _page(path: Path) -> str:
    """A page of the project's root: its links into docs/ lead one level up, those elsewhere to the file itself."""
    text = re.sub(r"\]\(docs/\)", "](../README.md)", path.read_text())
    text = re.sub(r"\]\(docs/([^)]*)\)", r"](../\1)", text)
    return re.sub(r'src="docs/([^"]*)"', r'src="../\1"', text)


def _file(target: str) -> str:
    """A folder is shown by its first file, because a site has no listings."""
    if not target.endswith("/"):
        return target
    first = next(path for path in sorted((ROOT / target).glob("*")) if path.is_file())
    return str(first.relative_to(ROOT))
