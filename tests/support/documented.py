"""Tables and pictures of the documentation, made of what they are about."""

from __future__ import annotations

from penstock.model.kinds import LETTERS, State
from penstock.model.lifecycle import TRANSITIONS
from penstock.model.metrics import FAMILIES
from penstock.server.settings import SETTINGS


def diagram() -> str:
    """The picture of the table, in Mermaid."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, kind), targets in TRANSITIONS.items():
        for target in targets:
            label = f"{LETTERS.get(kind, '')} {kind.name.lower().replace('_', ' ')}"
            arrows.setdefault((_node(state), _node(target)), []).append(label.strip())
    arrows[State.DELAYED.name.title(), State.READY.name.title()].append("its time comes")
    lines = [f"    {source} --> {target}: {', '.join(labels)}" for (source, target), labels in arrows.items()]
    return "\n".join(["stateDiagram-v2", *lines])


def _node(state: State) -> str:
    return "[*]" if state is State.GONE else state.name.title()


def settings_table() -> str:
    """Every key as a Markdown table: what `docs/operating.md` shows."""
    lines = ["| key | variable | default | expected | what it is |", "|---|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = f"`{_shown(setting.default)}`" if setting.default not in ((), "") else "none"
        lines.append(
            f"| `{setting.key}` | `{setting.variable}` | {default} | {setting.expected} | {setting.description} |"
        )
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def metrics_table() -> str:
    """Every metric as a Markdown table: what `docs/operating.md` shows."""
    lines = ["| metric | type | labels | what it is |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.type} | {labels} | {family.help} |")
    return "\n".join(lines) + "\n"
