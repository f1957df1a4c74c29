"""Opens the pipeline's Spark session, on this machine or on a cluster."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import SparkError

JAVA_VERSION_MIN = 17
DEFAULT_MASTER = "local[*]"

_LOGGING = Path(__file__).with_name("log4j2.properties")
# A pipeline runs much code, most of it only a few times: without the optimising compiler the first batch after a cold
# start took 6.4 s instead of 10.4 s, and a later large one 29 s instead of 26 s. A larger initial heap avoids many
# garbage collections at the start.
_JAVA_FLAGS = ("-XX:TieredStopAtLevel=1", "-Xms512m")
_NOISE = b"WARNING: Using incubator modules"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.driver.extraJavaOptions": " ".join((f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *_JAVA_FLAGS)),
}
_LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
}


def open_session(name: str, master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session with our settings; `settings` override them. Raises `SparkError` if Java is missing or too old,
    or if the cluster does not exist."""
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = master.startswith("local")
    if local and "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = _home_without_sources()
    ours = dict(_SETTINGS)
    if local:
        ours |= _LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(_cores(master))}
    all_settings: dict[str, bool | float | int | str | None] = {**ours, **(settings or {})}
    try:
        with _without_noise():
            spark = SparkSession.builder.master(master).appName(name).config(map=all_settings).getOrCreate()
    except (PySparkException, OSError) as error:
        raise SparkError(f"Spark cannot start on {master}: {error}") from None
    spark.sparkContext.setLogLevel("ERROR")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # Exceptions contain the same text.
    return spark


@contextmanager
def _without_noise() -> Iterator[None]:
    """Start Java without its warning about a module that Spark asks for: it cannot be turned off."""
    read_end, write_end = os.pipe()
    standard = os.dup(2)
    os.dup2(write_end, 2)
    threading.Thread(target=_pass_on, args=(read_end, standard), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(standard, 2)
        os.close(write_end)


def _pass_on(read_end: int, standard: int) -> None:
    """Until Java ends."""
    with open(read_end, "rb") as lines, open(standard, "wb", buffering=0) as errors:
        for line in lines:
            if not line.startswith(_NOISE):
                errors.write(line)


def _home_without_sources() -> str:
    """A Spark home without its `python` directory. Workers then import the installed package, which is compiled,
    instead of a zip file of sources that each worker would compile again when it starts."""
    home = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return str(home)


def silence(spark: SparkSession) -> None:
    """Stop all output of Java and of Spark's Python workers: when jobs are interrupted on purpose, both report errors
    that are none."""
    spark.sparkContext.setLogLevel("OFF")
    java = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no other way to Java's standard error.
    if java is not None:
        # Closed, not replaced: what workers print goes through threads of Java that keep the stream they began with.
        java.java.lang.System.err.close()


def check_java() -> None:
    """Raises `SparkError` if there is no Java that Spark can use."""
    found = java_version()
    if found >= JAVA_VERSION_MIN:
        return
    home = os.environ.get("JAVA_HOME")
    if home:
        has = f"has Java {found}" if found else "has no bin/java that runs"
        raise SparkError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, but JAVA_HOME is {home}, which {has}:"
            " correct or unset JAVA_HOME"
        )
    has = f"this machine has Java {found}" if found else "this machine has none"
    raise SparkError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, but {has}: run make java, or,"
        " on Debian and Ubuntu, apt-get install default-jre-headless"
    )


def java_version() -> int:
    """The major version of Java, 0 if there is none."""
    match = re.search(r'version "(\d+)', java_description())
    return int(match[1]) if match else 0


def java_description() -> str:
    """What `java -version` prints, empty if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    try:
        return subprocess.run([java or "java", "-version"], capture_output=True, check=True, text=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cores(master: str) -> int:
    match = re.match(r"local\[(\d+)", master)
    if match:
        return int(match[1])
    return 1 if master == "local" else os.cpu_count() or 1
