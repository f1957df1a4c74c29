"""Java as the tests of Spark start it.

None of its processes lives long: half of the time of each would go into compiling well, and half of the rest into
reading the classes of Spark. So the simple compiler is enough, and the classes lie in an archive that is made once,
and kept beside the libraries that it is made from.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from bench import lives
from penstock.pipeline.session import java_tells

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


def options(scratch: Path) -> str:
    """For `JAVA_TOOL_OPTIONS`."""
    archive = _archive()
    if not archive.exists():
        _make(archive, scratch)
    return f"{_FLAGS} -XX:SharedArchiveFile='{archive}'"


def _archive() -> Path:
    """Java takes no archive that is of other libraries or of another Java; so neither do we."""
    jars = Path(pyspark.__file__).parent / "jars"
    origin = hashlib.sha256(f"{java_tells()} {jars} {jars.stat().st_mtime_ns}".encode()).hexdigest()
    return Path(sys.prefix, f"spark-classes-{origin[:16]}.jsa")


def _make(archive: Path, scratch: Path) -> None:
    """From the classes that a pipeline needs. A Java that cannot does without, and its tests take longer."""
    for old in archive.parent.glob("spark-classes-*.jsa"):
        old.unlink(missing_ok=True)
    lives.make(scratch / "data", _MESSAGES)
    made = archive.with_name(f"{archive.name}-{os.getpid()}")  # No two tests make the same one.
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "run", "--once", "--data", str(scratch / "data")]
    command += ["--lake", str(scratch / "lake"), "--master", "local[2]"]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": f"{_FLAGS} -XX:ArchiveClassesAtExit='{made}'"}
    # Its output ends with Java, which writes the archive after the command has ended.
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, ended.stderr
    if made.exists():
        made.rename(archive)
