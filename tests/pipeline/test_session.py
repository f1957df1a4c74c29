"""The pipeline's Spark session."""

from __future__ import annotations

import subprocess
import sys

SESSION = """
import sys
from penstock.pipeline.session import open_session, silence

def say(word):
    print(word, file=sys.stderr, flush=True)
    return word

spark = open_session("silence", "local[1]")
spark.sparkContext.parallelize(["early"], 1).map(say).collect()
input()
silence(spark)
print(*spark.sparkContext.parallelize(["late"], 1).map(say).collect())
spark.stop()
"""


def test_a_silenced_session_hides_what_its_workers_print_from_then_on(java: None) -> None:
    command = [sys.executable, "-c", SESSION]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert "early\n" in process.stderr, "a worker is heard before"
        said, complained = process.communicate("\n")
    assert (process.returncode, said) == (0, "late\n"), complained
    assert complained == ""
