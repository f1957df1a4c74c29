"""How fast the load itself can go, against a server that does nothing.

Every other HTTP figure must stay well below this one, or it measures the load.
"""

import sys
from pathlib import Path

from bench.cores import on_load_core
from bench.load import CONNECTIONS, publish_rate
from bench.servers import accepts, free_port, running, scratch_directory
from bench.targets import Figures, Plan, Target

NAME = "ceiling"


def measure(plan: Plan) -> Figures:
    port = free_port()
    with scratch_directory(plan.scratch) as directory:
        command = [sys.executable, "-m", "bench.trivial", str(port)]
        with running(command, directory, lambda: accepts(port)):
            return Figures(on_load_core(publish_rate, port, CONNECTIONS, plan.warm_seconds, plan.seconds))


TARGETS = (
    Target(
        NAME,
        "(the load itself)",
        measure,
        lambda: Path(sys.executable),
        note="against a server that does nothing: what the HTTP load can ask at most",
    ),
)
