"""Diagrams of the documentation site: sequence diagrams become SVG, state diagrams become tables.

The pages have them in Mermaid, which many viewers of Markdown draw. The site loads nothing from other hosts, so it
draws by itself the small part of Mermaid that the pages use.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import NamedTuple

_BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)(-?->>)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+): (.+)")
_CHANGE = re.compile(r"(\S+) --> (\S+): (.+)")

_CHARACTER, _ROW, _TOP, _MARGIN = 6.7, 34, 56, 16  # Pixels.
_COLUMN_MIN, _LOOP = 96, 28


def drawn(markdown: str) -> str:
    """A page with its diagrams drawn. Raises `ValueError` for a kind of diagram that cannot be."""
    return _BLOCK.sub(lambda block: _draw(block[1]), markdown)


def _draw(text: str) -> str:
    kind, *lines = [line.strip() for line in text.strip().splitlines()]
    if kind not in _KINDS:
        raise ValueError(f"the site cannot draw a {kind}; draw it as text, or add it to scripts/docs_diagrams.py")
    return _KINDS[kind](lines)


# ── States ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _states(lines: list[str]) -> str:
    changes = [match.groups() for line in lines if (match := _CHANGE.fullmatch(line))]
    rows = [f"| {_state(old, 'new')} | {_state(new, 'gone')} | {what} |" for old, new, what in changes]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows])


def _state(name: str, outside: str) -> str:
    return f"*{outside}*" if name == "[*]" else name


# ── Sequences ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Step(NamedTuple):
    """A message from one column to another, or a note over one."""

    source: int
    target: int
    text: str
    kind: str  # "message", "answer" or "note".

    @property
    def width(self) -> float:
        return len(self.text) * _CHARACTER + _MARGIN


def _sequence(lines: list[str]) -> str:
    names = {match[1]: match[2] for line in lines if (match := _PARTICIPANT.fullmatch(line))}
    columns = list(names)
    steps = [step for line in lines if (step := _step(line, columns))]
    places = _places(list(names.values()), steps)
    height = _TOP + _ROW * len(steps) + _MARGIN
    width = max([places[-1] + _COLUMN_MIN / 2, *[_right(step, places) for step in steps]]) + _MARGIN
    parts = [_head(name, place, height) for name, place in zip(names.values(), places, strict=True)]
    parts += [_drawn_step(step, places, _TOP + _ROW * (row + 0.7)) for row, step in enumerate(steps)]
    label = escape("; ".join(f"{step.text}" for step in steps))
    return (
        f'<div class="diagram"><svg role="img" aria-label="{label}" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}">{"".join(parts)}</svg></div>'
    )


def _step(line: str, columns: list[str]) -> _Step | None:
    if match := _MESSAGE.fullmatch(line):
        source, arrow, target, text = match.groups()
        kind = "answer" if arrow.startswith("--") else "message"
        return _Step(columns.index(source), columns.index(target), text, kind)
    if match := _NOTE.fullmatch(line):
        return _Step(columns.index(match[1]), columns.index(match[1]), match[2], "note")
    return None


def _places(names: list[str], steps: list[_Step]) -> list[float]:
    """Where each column is, with room for the texts between them."""
    first = max([_COLUMN_MIN / 2, *[step.width / 2 for step in steps if step.kind == "note" and not step.source]])
    places = [first + _MARGIN]
    for column in range(1, len(names)):
        heads = (len(names[column - 1]) + len(names[column])) / 2 * _CHARACTER + 2 * _MARGIN
        before = [
            places[low] + step.width + _MARGIN
            for step in steps
            if (low := min(step.source, step.target)) < max(step.source, step.target) == column
        ]
        places.append(max([places[-1] + max(_COLUMN_MIN, heads), *before]))
    return places


def _right(step: _Step, places: list[float]) -> float:
    if step.kind == "note":
        return places[step.source] + step.width / 2
    return places[step.source] + _LOOP + step.width if step.source == step.target else 0


def _head(name: str, place: float, height: float) -> str:
    width = len(name) * _CHARACTER + _MARGIN
    return (
        f'<line x1="{place:.0f}" y1="32" x2="{place:.0f}" y2="{height:.0f}" class="life"/>'
        f'<rect x="{place - width / 2:.0f}" y="4" width="{width:.0f}" height="28" rx="4" class="box"/>'
        f'<text x="{place:.0f}" y="22" class="name">{escape(name)}</text>'
    )


def _drawn_step(step: _Step, places: list[float], y: float) -> str:
    source, target, text = places[step.source], places[step.target], escape(step.text)
    if step.kind == "note":
        left = source - step.width / 2
        box = f'<rect x="{left:.0f}" y="{y - 16:.0f}" width="{step.width:.0f}" height="24" rx="4" class="note"/>'
        return box + f'<text x="{source:.0f}" y="{y:.0f}" class="name">{text}</text>'
    if source == target:
        path = f"M{source:.0f} {y - 10:.0f}h{_LOOP - 8}v14h-{_LOOP - 10}"
        words = f'<text x="{source + _LOOP:.0f}" y="{y:.0f}">{text}</text>'
        return f'<path d="{path}" class="{step.kind}"/>{_tip(source, y + 4, left=True)}{words}'
    middle = (source + target) / 2
    line = f'<path d="M{source:.0f} {y:.0f}H{target:.0f}" class="{step.kind}"/>'
    words = f'<text x="{middle:.0f}" y="{y - 6:.0f}" class="name">{text}</text>'
    return line + _tip(target, y, left=target < source) + words


def _tip(x: float, y: float, *, left: bool) -> str:
    back = 7 if left else -7
    return f'<path d="M{x:.0f} {y:.0f}l{back} -4v8z" class="tip"/>'


_KINDS: dict[str, Callable[[list[str]], str]] = {"sequenceDiagram": _sequence, "stateDiagram-v2": _states}

STYLE = """\
.diagram { overflow-x: auto; margin: 1em 0; }
.diagram svg { min-width: 640px; height: auto; font-size: 12px; color: var(--md-typeset-color); }
.diagram text { fill: currentColor; }
.diagram .name { text-anchor: middle; }
.diagram .box, .diagram .note { fill: var(--md-code-bg-color); stroke: var(--md-default-fg-color--lighter); }
.diagram .note { stroke-dasharray: 2 2; }
.diagram .life { stroke: var(--md-default-fg-color--lighter); }
.diagram .message, .diagram .answer { stroke: currentColor; fill: none; }
.diagram .answer { stroke-dasharray: 4 3; }
.diagram .tip { fill: currentColor; }
"""
