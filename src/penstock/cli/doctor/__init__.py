"""`penstock doctor`: check the machine, the software and the broker, and say what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.doctor.finding import Finding, State
from penstock.cli.exits import Exit
from penstock.cli.session import Session, verb

_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red"}


@verb
def doctor(
    session: Session,
    data: Annotated[str | None, typer.Option(help="The data directory [default: as for serve]")] = None,
    config: Annotated[Path | None, typer.Option(help="The broker's settings file [default: as for serve]")] = None,
) -> None:
    """Check disk, limits, ports, clock, Java, versions and the broker. Exit code 1 if a check fails."""
    findings: list[Finding] = []
    for finding in _findings(session, data, config):
        findings.append(finding)
        if not session.as_json:
            _print(finding)
    if session.as_json:
        output.emit([finding._asdict() for finding in findings])
    if any(finding.state is State.FAIL for finding in findings):
        raise typer.Exit(Exit.FAILED)


def _findings(session: Session, data: str | None, config: Path | None) -> Iterator[Finding]:
    from penstock.cli.doctor import broker, disk, machine, software
    from penstock.server.settings import load

    own: dict[str, str] = {} if data is None else {"data": data}
    settings = load(config, os.environ, [], own)
    yield from disk.findings(Path(settings.data))
    yield machine.open_files()
    yield from machine.ports(settings)
    yield from machine.clock()
    yield from software.findings()
    yield from broker.findings(session.target)


def _print(finding: Finding) -> None:
    line = f"{finding.check:<16} {finding.found}"
    output.styled((f"{finding.state:<5}", _STYLES[finding.state]), (line, ""))
    if finding.remedy:
        output.styled((f"{'':22} → {finding.remedy}", "dim"))
