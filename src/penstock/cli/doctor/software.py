"""Versions of Python, of the libraries, and of Java."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from penstock import __version__
from penstock.cli.doctor.finding import Finding, State, graded

_PYTHON_MIN = (3, 11)
_LIBRARIES = ("msgspec", "uvloop", "httptools", "websockets", "lmdb", "crc32c", "numpy", "prometheus-client")
_OPTIONAL = {
    "pyarrow": "answers in Arrow form and Spark need it: pip install 'penstock[arrow]'",
    "pyspark": "the pipeline needs it: pip install 'penstock[spark]'",
    "pyjwt": "auth.jwt_keys needs it: pip install 'penstock[jwt]'",
    "duckdb": "penstock sql needs it: pip install 'penstock[spark]'",
}


def findings() -> Iterator[Finding]:
    """Everything that is installed, or missing."""
    yield Finding("penstock", State.OK, __version__)
    yield graded(
        "python",
        f"{platform.python_version()} ({platform.python_implementation()}, {platform.machine()})",
        fails=sys.version_info < _PYTHON_MIN,
        warns=False,
        remedy="install Python 3.11 or newer",
    )
    yield _libraries()
    for name, remedy in _OPTIONAL.items():
        found = installed(name)
        yield Finding(name, State.OK, found or f"not installed; {remedy}")
    if installed("pyspark"):
        yield _java()


def _libraries() -> Finding:
    found = {name: installed(name) for name in _LIBRARIES}
    missing = [name for name, its_version in found.items() if not its_version]
    said = ", ".join(f"{name} {its_version}" for name, its_version in found.items() if its_version)
    remedy = f"install them: pip install {' '.join(missing)}"
    return graded("libraries", said, fails=bool(missing), warns=False, remedy=remedy)


def installed(name: str) -> str:
    """The version of a library; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _java() -> Finding:
    from penstock.errors import SparkError
    from penstock.pipeline.session import check_java, java_version

    try:
        check_java()
    except SparkError as error:
        return Finding("java", State.WARN, "not usable", str(error))
    return Finding("java", State.OK, str(java_version()))
