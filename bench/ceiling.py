"""How fast the load generator itself is, measured with a server that does nothing.

Every other HTTP figure must be well below this one; otherwise it would measure the load generator.
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
        note="with a server that does nothing: the highest rate of the HTTP load",
    ),
)
