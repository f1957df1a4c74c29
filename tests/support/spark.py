"""Spark as the tests start it: without what pays off only in a process that lives long.

A Java process that lives for seconds spends half of its time on compiling well, and half of the rest on loading
Spark's classes. So the tests use the simple compiler and an archive of the loaded classes. And Spark's own Python
comes from the installed package, which is compiled, instead of from the zip file that Spark ships.

`make test` makes the archive once (`make_archive`) and keeps it in .venv. Tests use it if it is there and never wait
for it: without it they only take longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from bench import lives
from penstock.pipeline.session import JAVA_VERSION_MIN, java_description, java_version

_INSTALLED = Path(pyspark.__file__).parent
_HOME = Path(sys.prefix, "spark-tests")
_FLAGS = " ".join(
    (
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-XX:TieredStopAtLevel=1",
        "-XX:ReservedCodeCacheSize=240m",  # Not less than two compilers have: else code goes again.
        "-XX:+UseSerialGC",
        "-Xlog:disable",  # Where the archive is of no use it says so, and on standard output.
        "-Xlog:all=error:stderr",
    )
)
_SECONDS_MAX = 600  # A busy machine takes a few minutes.
_MESSAGES = 100


def environment() -> dict[str, str]:
    """For a process that starts Spark."""
    _HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars"):  # And not `python`, where that zip file is.
        with contextlib.suppress(FileExistsError):
            (_HOME / name).symlink_to(_INSTALLED / name)
    archive = _archive()
    return _environment(f"-XX:SharedArchiveFile='{archive}'" if archive.exists() else "-Xshare:auto")


def make_archive() -> None:
    """Make the archive from the classes that a pipeline loads. If Java cannot do it, the tests go on without it."""
    if java_version() < JAVA_VERSION_MIN or _archive().exists():
        return
    environment()
    for old in _HOME.glob("classes-*"):
        old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        problem = _make(_archive(), Path(scratch))
    if problem:
        print(f"Spark starts more slowly in these tests, since its classes could not be archived: {problem}")


def _environment(flag: str) -> dict[str, str]:
    return {"SPARK_HOME": str(_HOME), "JAVA_TOOL_OPTIONS": f"{_FLAGS} {flag}"}


def _archive() -> Path:
    """Java rejects an archive made from other libraries or by another Java, so its name depends on both."""
    origin = f"{java_description()} {(_INSTALLED / 'jars').stat().st_mtime_ns}"
    return _HOME / f"classes-{hashlib.sha256(origin.encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path, scratch: Path) -> str:
    """What went wrong, if anything."""
    lives.make(scratch / "data", _MESSAGES)
    made = scratch / archive.name
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "run", "--once", "--data", str(scratch / "data")]
    command += ["--lake", str(scratch / "lake"), "--master", "local[2]"]
    own = os.environ | _environment(f"-XX:ArchiveClassesAtExit='{made}'")
    # The output ends when Java ends, which writes the archive after the command has ended.
    try:
        ended = subprocess.run(command, env=own, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return f"no archive after {_SECONDS_MAX} s"
    if ended.returncode or not made.exists():
        return f"exit code {ended.returncode}\n{ended.stderr}"
    shutil.copy(made, archive.with_suffix(".copy"))
    archive.with_suffix(".copy").rename(archive)
    return ""
