"""Merges small files, publishes tables and removes old files while the stream runs."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import LakeError
from penstock.limits import LAKE_PUBLISH_REST, LAKE_PUBLISH_SECONDS
from penstock.pipeline.lake import publication
from penstock.pipeline.lake.compaction import compact, vacuum
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.tables import TABLES

logger = logging.getLogger(__name__)

_JOBS = "housekeeping"
_VACUUM_SECONDS = 3600.0


class Housekeeper:
    """Compacts, publishes and removes in a thread of its own, whenever a batch has been written.

    Publishing takes at most an eleventh of the time: the longer it took, the longer the pause before the next one."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._due = threading.Event()
        self._ended = False
        self._vacuumed_at = time.monotonic()
        self._publish_at = 0.0
        self._publisher: subprocess.Popen[str] | None = None
        self._publisher_lock = threading.Lock()  # Held while it is started or ended.
        self._thread = threading.Thread(target=self._run, name="housekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._due.set()

    def stop(self) -> None:
        """Cancel the work under way: it changes nothing before its commit."""
        self._ended = True
        self._spark.sparkContext.cancelJobGroup(_JOBS)
        with self._publisher_lock:
            if self._publisher is not None:
                self._publisher.terminate()
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _JOBS)
        self._spark.sparkContext.setJobGroup(_JOBS, "compacts", interruptOnCancel=True)
        written = False  # Since the last publication.
        while not self._ended:
            if self._due.wait(LAKE_PUBLISH_SECONDS):
                self._due.clear()
                written = True
                self._compact()
                self._vacuum()
            if written and time.monotonic() >= self._publish_at:
                written = False
                self._publish()

    def _compact(self) -> None:
        for table in TABLES.values():
            self._try(f"compact {table.name}", partial(compact, self._spark, self._lake, table))

    def _vacuum(self) -> None:
        if time.monotonic() - self._vacuumed_at > _VACUUM_SECONDS:
            self._vacuumed_at = time.monotonic()
            self._try("remove old files", partial(vacuum, self._lake))

    def _publish(self) -> None:
        begun = time.monotonic()
        self._try("publish", self._run_publisher)
        taken = time.monotonic() - begun
        self._publish_at = time.monotonic() + max(LAKE_PUBLISH_SECONDS, LAKE_PUBLISH_REST * taken)

    def _run_publisher(self) -> None:
        """Publish in another process with one thread and the lowest priority, so that batches are not slowed down."""
        command = [sys.executable, "-m", publication.__name__, str(self._lake.path)]
        with self._publisher_lock:
            if self._ended:
                return
            # In a session of its own, so that Ctrl-C reaches only the pipeline, which then stops this process.
            self._publisher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        errors = self._publisher.communicate()[1].strip()
        if self._publisher.returncode:
            raise LakeError(errors or f"the process ended with exit code {self._publisher.returncode}")

    def _try(self, what: str, do: Callable[[], object]) -> None:
        if self._ended:
            return
        try:
            do()
        except (LakeError, PySparkException, Py4JError, OSError) as error:
            # The table has not changed, and this is tried again after the next batch.
            if not self._ended:
                logger.warning("could not %s: %s", what, error)
