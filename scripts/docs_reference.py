"""Reference pages made from code: the command line, the Python API, HTTP requests, and frames of WebSocket and lines.

`python -m scripts.docs_reference DIR` writes them; the documentation site has them without files.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer.main

import penstock
from penstock.cli import verbs
from penstock.server.openapi import asyncapi_document, openapi_document

_METHODS = ("get", "put", "post", "patch", "delete")


def reference_pages() -> dict[str, str]:
    return {
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "reference/http.md": http_page(),
        "reference/frames.md": frames_page(),
    }


# ── The command line ────────────────────────────────────────────────────────────────────────────────────────


def commands_page() -> str:
    command = typer.main.get_command(verbs.app)
    body = "\n\n".join(_command(command, "penstock"))
    return f"# Every command\n\nMade from the code. [cli.md](../cli.md) explains the verbs in prose.\n\n{body}\n"


def _command(command: Any, path: str) -> Iterator[str]:
    """The sections of a command, or of all commands of a group."""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from _command(command.get_command(None, name), f"{path} {name}")
        return
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    rows = [_option(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    table = "| | |\n|---|---|\n" + "\n".join(rows) if rows else ""
    yield f"## {path}\n\n{text}\n\n{table}".rstrip()


def _option(parameter: Any) -> str:
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
    shown = ", ".join(f"`{name}`" for name in (*names, *parameter.secondary_opts))
    return f"| {shown} | {_cell(parameter.help or '')} |"


# ── Python ──────────────────────────────────────────────────────────────────────────────────────────────────


def python_page() -> str:
    sections = [_object(name, getattr(penstock, name)) for name in sorted(penstock.__all__)]
    body = "\n\n".join(section for section in sections if section)
    return (
        "# The Python API\n\nMade from the code. [client.md](../client.md) and [tasks.md](../tasks.md) explain it in"
        f" prose.\n\n{body}\n"
    )


def _object(name: str, value: Any) -> str:
    if not callable(value):
        return ""
    lines = [f"## penstock.{name}", "", f"```text\n{name}{_signature(value)}\n```", "", inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        for method, found in _methods(value):
            lines += [
                "",
                f"### {name}.{method}",
                "",
                f"```text\n{method}{_signature(found)}\n```",
                "",
                inspect.getdoc(found) or "",
            ]
    return "\n".join(lines).rstrip()


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, found in inspect.getmembers(kind):
        if not name.startswith("_") and inspect.isroutine(found) and not issubclass(kind, BaseException):
            yield name, found


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)).replace("'", "")
    except (TypeError, ValueError):
        return "(…)"


# ── Protocols ───────────────────────────────────────────────────────────────────────────────────────────────


def http_page() -> str:
    document = msgspec.json.decode(openapi_document())
    parts = ["# Every HTTP request\n\nMade from `GET /openapi.json`, which has the schemas of all bodies as well.\n"]
    for path in sorted(document["paths"]):
        for method in _METHODS:
            if operation := document["paths"][path].get(method):
                parts.append(_operation(document, method, path, operation))
    return "\n".join(parts)


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"## {method.upper()} `{path}`", "", operation.get("summary") or operation.get("description", "")]
    parameters = [_resolved(document, each) for each in operation.get("parameters", [])]
    if parameters:
        lines += ["", "| parameter | in | |", "|---|---|---|"]
        lines += [
            f"| `{each['name']}` | {each['in']} | {_cell(each.get('description', ''))} |" for each in parameters
        ]
    lines += ["", "| answer | |", "|---|---|"]
    for status, answer in operation["responses"].items():
        lines.append(f"| {status} | {_cell(_resolved(document, answer).get('description', ''))} |")
    return "\n".join([*lines, ""])


def frames_page() -> str:
    document = msgspec.json.decode(asyncapi_document())
    parts = ["# Every frame of glovebox and etzel\n\nMade from `GET /asyncapi.json`, which has all schemas.\n"]
    for name, message in document["components"]["messages"].items():
        dialect, frame = name.split(".")
        parts.append(f"## {dialect}: `{frame}`\n\n{_sentences(message)}\n")
        fields = _resolved(document, message.get("payload", {})).get("properties", {})
        if fields:
            rows = [
                f"| `{field}` | {_cell(_resolved(document, about).get('description', ''))} |"
                for field, about in fields.items()
            ]
            parts.append("\n".join(["| field | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _sentences(message: dict[str, Any]) -> str:
    found = [message.get(name, "").rstrip(".") for name in ("title", "summary", "description")]
    return ". ".join(text for text in found if text) + "."


def _resolved(document: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in value:
        found: Any = document
        for step in value["$ref"].removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]
        value = found
    return value


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    folder = Path(sys.argv[1])
    for place, text in reference_pages().items():
        path = folder / Path(place).name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
