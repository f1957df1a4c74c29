"""Inputs that are kept: each reached code that no smaller one did, or broke something once."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from tests.fuzz.target import Target

HERE = Path(__file__).parent / "corpus"


def known_inputs(target: Target) -> list[bytes]:
    """The seeds of a target, and what is kept for it."""
    kept = [path.read_bytes() for path in sorted((HERE / target.name).glob("*"))]
    return [*target.seeds(), *kept]


def keep(folder: Path, data: bytes) -> Path:
    """Write an input under a name that follows from its content."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path
