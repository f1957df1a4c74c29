"""Spark as the tests start it: without what only a long life of a process would repay.

Half of the time of a process of Java that lives for seconds goes into compiling well, and half of the rest into
reading the classes of Spark. So the simple compiler is enough, and the classes lie in an archive. And Spark's own
Python comes from the installed package, which is compiled, instead of the source in a zip file that comes with it.

All this is made once, and kept in a folder of the environment of Python that it is made from.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from bench import lives
from penstock.pipeline.session import java_tells

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
_SECONDS_MAX = 100
_MESSAGES = 100


def environment(scratch: Path) -> dict[str, str]:
    """For a process that starts Spark; what has to be made first is made in `scratch`."""
    _HOME.mkdir(exist_ok=True)
    for name in ("bin", "jars"):  # And not `python`, where that zip file is.
        if not (_HOME / name).exists():
            (_HOME / name).symlink_to(_INSTALLED / name)
    archive = _archive()
    with (_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Two runs of tests at a time make one.
        if not archive.exists():
            _make(archive, scratch)
    return _environment(f"-XX:SharedArchiveFile='{archive}'")


def _environment(flag: str) -> dict[str, str]:
    return {"SPARK_HOME": str(_HOME), "JAVA_TOOL_OPTIONS": f"{_FLAGS} {flag}"}


def _archive() -> Path:
    """Java takes no archive that is of other libraries or of another Java; so neither do we."""
    origin = f"{java_tells()} {(_INSTALLED / 'jars').stat().st_mtime_ns}"
    return _HOME / f"classes-{hashlib.sha256(origin.encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path, scratch: Path) -> None:
    """From the classes that a pipeline needs. A Java that cannot, or not soon, does without: tests take longer."""
    for old in _HOME.glob("classes-*"):
        old.unlink(missing_ok=True)
    lives.make(scratch / "data", _MESSAGES)
    made = archive.with_suffix(".made")
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "run", "--once", "--data", str(scratch / "data")]
    command += ["--lake", str(scratch / "lake"), "--master", "local[2]"]
    own = os.environ | _environment(f"-XX:ArchiveClassesAtExit='{made}'")
    # Its output ends with Java, which writes the archive after the command has ended.
    try:
        ended = subprocess.run(command, env=own, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return
    assert ended.returncode == 0, ended.stderr
    if made.exists():
        made.rename(archive)
